"""What is taken away, opened again by a reader of its kind, is what was measured."""

import base64
import csv
import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from model.inspection.recording import Recording
from model.pages import export, images
from tests.measurements import learned_recording, write_recording

LAYERS, HEADS = 2, 3
TOKENS = ['"', "a\nb", "\r", ",", " ", "<b>&", "é界", "\u202e"]
SIZE = len(TOKENS)
SVG = "{http://www.w3.org/2000/svg}"


def archived(folder: Path, seed: int, steps=(0, 1, 4), heads: int = HEADS) -> Recording:
    """A run as it is read back."""
    write_recording(learned_recording(LAYERS, heads, TOKENS, steps, seed), folder / "attention")
    return Recording.open(folder / "attention", folder.name)


@pytest.fixture
def run(tmp_path) -> Recording:
    return archived(tmp_path / "first", 0)


def rows_of(run: Recording, folder: Path, *chosen) -> list[dict[str, str]]:
    export.write_csv(run, folder / "maps.csv", *chosen)
    with (folder / "maps.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_weight_is_in_the_table_exactly_as_it_was_recorded(run, tmp_path):
    maps = run.maps(1)["text"]
    rows = rows_of(run, tmp_path, 1)
    found = np.zeros_like(maps)
    for row in rows:
        layer, head, query, key = (int(row[name]) for name in ("layer", "head", "query", "key"))
        assert (row["run"], row["step"]) == ("first", "1")
        assert (row["query_token"], row["key_token"]) == (TOKENS[query], TOKENS[key])
        found[layer, head, query, key] = row["weight"]
    assert maps.dtype == found.dtype == np.float16 and (found == maps).all()
    assert len(rows) == LAYERS * HEADS * SIZE * (SIZE + 1) / 2


def test_a_table_has_only_the_heads_that_were_chosen_and_empty_cells_where_a_model_diverged(run, tmp_path):
    broken = replace(run.at(4), maps={"text": np.full((LAYERS, HEADS, SIZE, SIZE), np.nan)})
    broken = replace(run, snapshots=[broken])
    rows = rows_of(broken, tmp_path, None, export.choose_heads(run, ["1.2", "0.1", "1.2"]))
    assert list(dict.fromkeys((row["layer"], row["head"]) for row in rows)) == [("1", "2"), ("0", "1")]
    assert {row["weight"] for row in rows} == {""}


# ---- pictures


def svg_of(path: Path) -> tuple[ElementTree.Element, list[str]]:
    """An SVG's root, and its texts."""
    root = ElementTree.parse(path).getroot()
    assert root.tag == f"{SVG}svg"
    return root, [text.text for text in root.iter(f"{SVG}text")]


def picture_of(root: ElementTree.Element) -> np.ndarray:
    """The colours (height, width, 3) of the maps in an SVG, which holds them as one image with a pixel a weight."""
    links = [image.get("{http://www.w3.org/1999/xlink}href") for image in root.iter(f"{SVG}image")]
    pictures = [Image.open(io.BytesIO(base64.b64decode(link.partition("base64,")[2]))) for link in links]
    pixels = np.asarray(pictures[0].convert("RGBA"), float) / 255  # the next is the bar of colours
    return pixels[..., :3] * pixels[..., 3:] + 1 - pixels[..., 3:]


@pytest.mark.parametrize(
    ("heads", "rows", "columns"),
    [
        (None, ["layer 0", "layer 1"], ["head 0", "head 1", "head 2"]),
        ([(1, 2), (0, 1)], [""], ["head 1.2", "head 0.1"]),
    ],
)
def test_maps_are_an_svg_of_every_weight_in_its_colour_at_its_place(heads, rows, columns, run, tmp_path):
    images.draw_maps(run, tmp_path / "maps.svg", None, heads)
    root, texts = svg_of(tmp_path / "maps.svg")
    maps = run.maps(4)["text"].astype(float)
    shown = maps.reshape(-1, SIZE, SIZE) if heads is None else np.stack([maps[head] for head in heads])
    places = np.sqrt(shown) * (len(images.COLOURS) - 1)
    colours = np.array([to_rgb(colour) for colour in images.COLOURS])
    expected = np.stack([np.interp(places, range(len(colours)), channel) for channel in colours.T], axis=-1)
    picture, pitch = picture_of(root), SIZE + 1  # a pixel between two maps
    assert picture.shape[:2] == (len(rows) * pitch - 1, len(columns) * pitch - 1)
    places = [(row, column) for row in range(len(rows)) for column in range(len(columns))]
    for (row, column), colours in zip(places, expected, strict=True):
        top, left = row * pitch, column * pitch
        np.testing.assert_allclose(picture[top : top + SIZE, left : left + SIZE], colours, atol=0.02)
    transform = next(root.iter(f"{SVG}image")).get("transform")
    scale, *turned, other = map(float, re.findall(r"-?[\d.]+", transform)[:4])
    assert scale == other > 0 and turned == [0, 0]
    title = "first, step 4: rows attend to columns"
    assert {title, "weight", "0.25", *map(images.printable, TOKENS), *rows, *columns} - {""} <= set(texts)


def test_text_in_a_pdf_stays_text(run, tmp_path, monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "pdf.compression", 0)  # so that it can be read
    images.draw_maps(run, tmp_path / "maps.pdf", 1)
    texts = ["layer 0", "layer 1", "head 2", "first, step 1: rows attend to columns", "weight", "<b>&"]
    content = (tmp_path / "maps.pdf").read_bytes()
    assert content.startswith(b"%PDF-1.") and content.rstrip().endswith(b"%%EOF") and b"CreationDate" not in content
    strings = re.sub(rb"\) \S+\s\(|\0", b"", content)  # letters with kerning, and of two bytes each
    assert not [text for text in texts if f"({text})".encode() not in strings]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_snapshots_make_the_same_file(suffix, run, tmp_path):
    for name in ("one", "two"):
        images.draw_maps(run, tmp_path / f"{name}{suffix}", None, [(0, 0)])
    assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


def test_a_probe_of_one_token_is_one_square(tmp_path):
    images.attention_grid(np.ones((1, 1, 1, 1)), ["a"], tmp_path / "one.svg")
    root, texts = svg_of(tmp_path / "one.svg")
    assert "a" in texts and next(root.iter(f"{SVG}image")).get("width") == "1"
