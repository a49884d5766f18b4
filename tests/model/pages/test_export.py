"""What is taken away, opened again by a reader of its kind, is what was measured."""

import base64
import csv
import io
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import product
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from model.inspection.archive import AttentionArchive, Snapshot
from model.inspection.heads import SCORES
from model.pages import export, images
from model.pages.history import History
from tests.measurements import learned_history, write_archive

LAYERS, HEADS = 2, 3
TOKENS = ['"', "a\nb", "\r", ",", " ", "<b>&", "é界", "\u202e"]
SIZE = len(TOKENS)
SVG = "{http://www.w3.org/2000/svg}"


def archived(folder: Path, seed: int, steps=(0, 1, 4), heads: int = HEADS) -> History:
    """A run as its archive is read back."""
    write_archive(learned_history(LAYERS, heads, TOKENS, steps, seed), folder / "attention")
    return History.of(AttentionArchive.open(folder / "attention"), folder.name)


@pytest.fixture
def runs(tmp_path) -> list[History]:
    return [archived(tmp_path / name, seed) for seed, name in enumerate(["first", 'second, "or so"'])]


def read_back(name: str, shown: list[History], folder: Path, step=None, probe="text", heads=None) -> list[dict]:
    """The rows of a table after it was written as CSV and as JSON, which must agree."""
    for file in ("table.csv", "table.json"):
        export.write_table(name, export.table_rows(name, shown, step, probe, heads), folder / file)
    with (folder / "table.csv").open(newline="", encoding="utf-8") as file:
        cells = list(csv.DictReader(file))
    described = json.loads((folder / "table.json").read_text())
    assert described["about"] and all(described["columns"].values())
    rows = [dict(zip(described["columns"], row, strict=True)) for row in described["rows"]]
    assert cells == [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]
    return rows


def test_every_weight_is_in_the_table_exactly_as_it_was_recorded(runs, tmp_path):
    maps = runs[0].load(1)["text"]
    rows = read_back("weights", runs[:1], tmp_path, 1)
    found = np.zeros_like(maps)
    for row in rows:
        assert (row["run"], row["step"], row["probe"]) == ("first", 1, "text")
        assert (row["query_token"], row["key_token"]) == (TOKENS[row["query"]], TOKENS[row["key"]])
        found[row["layer"], row["head"], row["query"], row["key"]] = row["weight"]
    assert maps.dtype == found.dtype == np.float16 and (found == maps).all()
    assert len(rows) == LAYERS * HEADS * SIZE * (SIZE + 1) / 2


def test_a_table_has_only_the_heads_that_were_chosen(runs, tmp_path):
    heads = export.choose_heads(["1.2", "0.1", "1.2"], runs)
    for name, shown in (("weights", runs[:1]), ("scores", runs)):
        rows = read_back(name, shown, tmp_path, probe="repeated", heads=heads)
        assert list(dict.fromkeys((row["layer"], row["head"]) for row in rows)) == [(1, 2), (0, 1)]


def test_the_difference_of_two_runs_is_that_of_their_weights(runs, tmp_path):
    first, second = (history.load(4)["text"].astype(float) for history in runs)
    for row in read_back("comparison", runs, tmp_path):
        place = row["layer"], row["head"], row["query"], row["key"]
        assert (row["run"], row["other_run"], row["step"], row["other_step"]) == ("first", runs[1].name, 4, 4)
        assert (row["weight"], row["other_weight"]) == pytest.approx((first[place], second[place]), rel=5e-5)
        assert row["difference"] == pytest.approx(first[place] - second[place], rel=5e-5)


def test_scores_are_those_of_the_file_and_empty_where_a_model_diverged(tmp_path):
    history = archived(tmp_path / "run", 0)
    lines = list(map(json.loads, (tmp_path / "run/attention/scores.jsonl").read_text().splitlines()))
    lines[1]["scores"]["sink"][0][2] = None
    lines[2]["copying"] = [[None] * HEADS] * LAYERS
    snapshots = [Snapshot.from_json(line) for line in lines]
    rows = read_back("scores", [replace(history, snapshots=snapshots)], tmp_path)
    assert len(rows) == len(lines) * LAYERS * HEADS
    for row, (line, layer, head) in zip(rows, product(lines, range(LAYERS), range(HEADS)), strict=True):
        assert (row["step"], row["layer"], row["head"]) == (line["step"], layer, head)
        for name in SCORES:
            assert row[name] == line["scores"][name][layer][head], name
        assert row["copying"] == line["copying"][layer][head]


@pytest.mark.parametrize("probe", ["text", "repeated"])
@pytest.mark.parametrize("measure", ["surprise", "lens", "attribution", "value_norms"])
def test_a_measurement_is_that_of_the_details(measure, probe, runs, tmp_path):
    details = runs[0].details(0)
    rows = read_back(measure, [replace(history, details=runs[0].details) for history in runs], tmp_path, 0, probe)
    found, texts = details["probes"][probe], details["tokens"]
    labels = runs[0].probes[probe].labels
    for row in rows:
        at = row["position"]
        assert (row["step"], row["probe"], row["token"]) == (0, probe, labels[at])
        assert row["next_token"] == [*labels, None][at + 1]
        if measure == "surprise":
            assert (row["bits"], row["rank"]) == (found["bits"][at], found["rank"][at])
            for place in range(5):
                assert row[f"top_{place + 1}"] == texts[str(found["top"][at][place])]
                assert row[f"top_{place + 1}_probability"] == found["top_probability"][at][place]
        elif measure == "lens":
            layer = details["sublayers"].index(row["sublayer"])
            assert row["likeliest"] == texts[str(found["lens"]["token"][layer][at])]
            for name in ("probability", "divergence"):
                assert row[name] == found["lens"][name][layer][at]
        elif measure == "attribution":
            part = details["parts"].index(row["part"])
            assert row["logit"] == found["attribution"][part][at]
        else:
            assert row["value_norm"] == found["value_norms"][row["layer"]][row["head"]][at]
    sizes = {"surprise": 1, "lens": len(details["sublayers"]), "attribution": len(details["parts"])}
    place = ("run", "sublayer", "part", "layer", "head", "position")
    places = {tuple(row.get(column) for column in place) for row in rows}
    assert len(places) == len(rows) == 2 * len(labels) * sizes.get(measure, LAYERS * HEADS)


def test_ablation_is_that_of_every_snapshot(runs, tmp_path):
    history, parts = runs[0], ["token embedding", *(f"head 0.{head}" for head in range(HEADS)), "feed-forward 0"]
    history.snapshots[1].ablation["text"]["head 0.1"] = math.nan
    rows = read_back("ablation", [history], tmp_path)
    assert [row["part"] for row in rows[: len(parts)]] == parts
    found = {(row["step"], row["probe"], row["part"]): row["loss_change"] for row in rows}
    assert len(found) == len(rows) and found.pop((1, "text", "head 0.1")) is None
    for (step, probe, part), change in found.items():
        assert change == history.by_step[step].ablation[probe][part]


# ---- pictures


def svg_of(path: Path) -> tuple[ElementTree.Element, list[str]]:
    """An SVG's root, and its texts."""
    root = ElementTree.parse(path).getroot()
    assert root.tag == f"{SVG}svg"
    return root, [text.text for text in root.iter(f"{SVG}text")]


def maps_of(root: ElementTree.Element) -> list[np.ndarray]:
    """The colours (T, T, 3) of each map in an SVG, which holds it as an image with a pixel for each weight."""
    links = [image.get("{http://www.w3.org/1999/xlink}href") for image in root.iter(f"{SVG}image")]
    pictures = [Image.open(io.BytesIO(base64.b64decode(link.partition("base64,")[2]))) for link in links]
    pixels = [np.asarray(picture.convert("RGBA"), float) / 255 for picture in pictures]
    return [one[..., :3] * one[..., 3:] + 1 - one[..., 3:] for one in pixels if one.shape == (SIZE, SIZE, 4)]


@pytest.mark.parametrize(
    ("heads", "rows", "columns"),
    [
        (None, ["layer 0", "layer 1"], ["head 0", "head 1", "head 2"]),
        ([(1, 2), (0, 1)], [""], ["head 1.2", "head 0.1"]),
    ],
)
def test_maps_are_an_svg_of_every_weight_in_its_colour_at_its_place(heads, rows, columns, runs, tmp_path):
    images.draw_maps(runs[:1], tmp_path / "maps.svg", None, "text", heads)
    root, texts = svg_of(tmp_path / "maps.svg")
    maps = runs[0].load(4)["text"].astype(float)
    shown = maps.reshape(-1, SIZE, SIZE) if heads is None else np.stack([maps[head] for head in heads])
    places = np.sqrt(shown) * (len(images.COLOURS) - 1)
    colours = np.array([to_rgb(colour) for colour in images.COLOURS])
    expected = np.stack([np.interp(places, range(len(colours)), channel) for channel in colours.T], axis=-1)
    np.testing.assert_allclose(maps_of(root), expected, atol=0.02)
    # Each image is scaled alike, turned in no direction, and moved to its place: matrix(40 0 0 40 right down).
    transforms = [image.get("transform") for image in root.iter(f"{SVG}image")][: len(shown)]
    numbers = np.array([re.findall(r"-?[\d.]+", one) for one in transforms], float)
    scale, (right, down) = numbers[0, 0], numbers[:, 4:].reshape(len(rows), len(columns), 2).transpose(2, 0, 1)
    assert (numbers[:, :4] == [scale, 0, 0, scale]).all() and scale > 0
    assert (np.diff(right) > SIZE * scale).all() and not np.ptp(right, axis=0).any()
    assert (np.diff(down, axis=0) > SIZE * scale).all() and not np.ptp(down, axis=1).any()
    title = "first, step 4: rows attend to columns"
    assert {title, "weight", "0.25", *map(images.printable, TOKENS), *rows, *columns} - {""} <= set(texts)


def test_a_difference_is_drawn_beside_both_maps(runs, tmp_path):
    images.draw_maps(runs, tmp_path / "maps.svg", None, "text", [(0, 1), (1, 0)])
    root, texts = svg_of(tmp_path / "maps.svg")
    assert {"A", "B", "A − B", "head 0.1", "head 1.0", "weight", "difference"} <= set(texts)
    drawn = np.stack(maps_of(root))
    assert len(drawn) == 6
    first, second = (history.load(4)["text"][[0, 1], [1, 0]].astype(float) for history in runs)
    found, expected = drawn[4:], np.sign(first - second)
    clear = np.abs(first - second) > 0.01  # else it is nearly white
    assert (np.sign(found[..., 2] - found[..., 0])[clear] == expected[clear]).all()
    assert (found[first == second] > 0.99).all()


def test_text_in_a_pdf_stays_text(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "pdf.compression", 0)  # so that it can be read
    images.draw_maps(runs[:1], tmp_path / "maps.pdf", 1, "text", None)
    images.draw_scores(runs[:1], tmp_path / "scores.pdf", None)
    texts = {"maps": ["layer 0", "layer 1", "head 2", "first, step 1: rows attend to columns", "weight", "<b>&"]}
    texts["scores"] = ["previous token", "induction", "step", "layer 1"]
    for name in texts:
        content = (tmp_path / f"{name}.pdf").read_bytes()
        assert content.startswith(b"%PDF-1.") and content.rstrip().endswith(b"%%EOF") and b"CreationDate" not in content
        strings = re.sub(rb"\) \S+\s\(|\0", b"", content)  # letters with kerning, and of two bytes each
        assert not [text for text in texts[name] if f"({text})".encode() not in strings]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_snapshots_make_the_same_file(suffix, runs, tmp_path):
    for name in ("one", "two"):
        images.draw_maps(runs, tmp_path / f"{name}{suffix}", None, "text", [(0, 0)], max_side=300)
    assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


def test_dpi_makes_a_png_larger_and_says_so(runs, tmp_path):
    sizes = {}
    for dpi in (None, 144, 216):
        images.draw_maps(runs[:1], tmp_path / "maps.png", None, "text", [(0, 0)], dpi=dpi)
        with Image.open(tmp_path / "maps.png") as image:
            sizes[dpi] = np.array(image.size)
            assert image.info["dpi"] == pytest.approx((dpi or 72,) * 2, abs=0.1)
    np.testing.assert_allclose(sizes[144] / sizes[None], 2, atol=0.01)
    np.testing.assert_allclose(sizes[216] / sizes[None], 3, atol=0.01)


@pytest.mark.parametrize("theme", images.THEMES)
def test_a_theme_colours_the_paper_and_what_is_on_it(theme, runs, tmp_path):
    for name, draw in {"maps": images.draw_maps, "scores": images.draw_scores}.items():
        options = (None, "text", [(0, 0)]) if name == "maps" else (None,)
        draw(runs[:1], tmp_path / f"{name}.png", *options, theme=theme, dpi=40)
        with Image.open(tmp_path / f"{name}.png") as image:
            lightness = np.asarray(image.convert("L"), float)
        paper, farthest = lightness[0, 0], np.abs(lightness - lightness[0, 0]).max()
        assert (paper > 250) if theme == "light" else (paper < 30)
        assert farthest > 150  # text stands out from it


def curves_of(root: ElementTree.Element) -> list[str]:
    """The curves of an SVG, panel by panel."""
    paths = (path for path in root.iter(f"{SVG}path") if "stroke-width: 1.5" in path.get("style", ""))
    return [path.get("d") for path in paths]


def test_two_runs_have_their_curves_under_each_other_on_the_same_axes_and_chosen_heads_have_theirs_alone(tmp_path):
    runs = [archived(tmp_path / "long", 0, steps=(0, 1, 64)), archived(tmp_path / "wide", 1, steps=(0, 8), heads=5)]
    images.draw_scores(runs[:1], tmp_path / "scores.svg", [(1, 1)])
    root, texts = svg_of(tmp_path / "scores.svg")
    alone = set(curves_of(root))
    assert "head 1.1" in texts and "layer 1" not in texts
    images.draw_scores(runs, tmp_path / "scores.svg", None)
    root, texts = svg_of(tmp_path / "scores.svg")
    assert "layer 1" in texts and len(set(curves_of(root))) > 8 * len(alone) > 0
    assert texts.count("long") == texts.count("wide") == texts.count("step") == 1
    assert all(texts.count(name.replace("_", " ")) == 2 for name in SCORES)
    assert texts.count("0") == images.MAX_COLUMNS  # only the lowest row has steps at its axes
    with pytest.raises(ValueError, match="wide was recorded at one step only"):
        images.draw_scores([runs[0], replace(runs[1], snapshots=runs[1].snapshots[:1])], tmp_path / "none.svg", None)
    assert not (tmp_path / "none.svg").exists()


def test_a_head_that_formed_has_a_note_and_a_dot_on_its_curve_and_one_that_is_not_drawn_has_none(tmp_path):
    run = archived(tmp_path / "run", 0)
    assert run.formation["previous_token"] == {"0.0": 4}
    images.draw_scores([run], tmp_path / "scores.svg", [(0, 0), (0, 1)])
    root, texts = svg_of(tmp_path / "scores.svg")
    *_, x, y = curves_of(root)[0].split()  # where the curve of head 0.0 ends, at step 4
    assert (x, y) in {(dot.get("x"), dot.get("y")) for dot in root.iter(f"{SVG}use")}
    assert texts[texts.index("forms at 4") - 1] == "head 0.0"
    images.draw_scores([run], tmp_path / "scores.svg", [(0, 1)])
    assert not [text for text in svg_of(tmp_path / "scores.svg")[1] if "forms" in text]


def test_a_probe_of_one_token_is_one_square(tmp_path):
    images.attention_grid(np.ones((1, 1, 1, 1)), ["a"], tmp_path / "one.svg")
    root, texts = svg_of(tmp_path / "one.svg")
    assert "a" in texts and next(root.iter(f"{SVG}image")).get("width") == "1"


def test_a_diverged_model_is_drawn_and_has_empty_cells(runs, tmp_path):
    broken = replace(runs[0], load=lambda step: {"text": np.full((LAYERS, HEADS, SIZE, SIZE), np.nan)})
    rows = read_back("comparison", [broken, runs[1]], tmp_path, heads=[(0, 0)])
    assert {row["weight"] for row in rows} == {row["difference"] for row in rows} == {None}
    images.draw_maps([broken, runs[1]], tmp_path / "maps.svg", None, "text", [(0, 0)])
    assert [bool((one < 1).any()) for one in maps_of(svg_of(tmp_path / "maps.svg")[0])] == [False, True, False]
