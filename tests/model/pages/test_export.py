"""Exported tables and pictures hold what was measured."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.text import Text

from model.inspection.recording import Recording
from model.pages import export, images
from tests.measurements import learned_recording, snapshot_of, write_recording
from tests.small_runs import csv_rows
from tests.watching import before_call

LAYERS, HEADS = 2, 3
TOKENS = ['"', "a\nb", "\r", ",", " ", "<b>&", "é界", "\u202e"]
SIZE = len(TOKENS)


@pytest.fixture
def run(tmp_path) -> Recording:
    """A recording that was written and read back."""
    folder = tmp_path / "attention"
    write_recording(learned_recording(LAYERS, HEADS, TOKENS, (0, 1, 4)), folder)
    return Recording.open(folder, "first")


def rows_of(run: Recording, folder: Path, step: int, names=None) -> list[dict[str, str]]:
    export.write_csv(run, folder / "maps.csv", step, export.choose_heads(run, names))
    return csv_rows(folder / "maps.csv")


def test_the_table_has_every_weight_exactly_as_recorded(run, tmp_path):
    maps = run.maps(1)["text"].astype(np.float16)
    rows = rows_of(run, tmp_path, 1)
    found = np.zeros_like(maps)
    for row in rows:
        layer, head, query, key = (int(row[name]) for name in ("layer", "head", "query", "key"))
        assert (row["run"], row["step"]) == ("first", "1")
        assert (row["query_token"], row["key_token"]) == (TOKENS[query], TOKENS[key])
        found[layer, head, query, key] = row["weight"]
    assert maps.dtype == found.dtype == np.float16 and (found == maps).all()
    assert len(rows) == LAYERS * HEADS * SIZE * (SIZE + 1) / 2


def test_a_table_has_only_the_chosen_heads_and_empty_cells_for_nan(run, tmp_path):
    maps = {kind: np.full_like(of_kind, np.nan) for kind, of_kind in run.maps(4).items()}
    broken = replace(run, snapshots=[snapshot_of(maps, run.probes, 4)])
    rows = rows_of(broken, tmp_path, 4, ["1.2", "0.1", "1.2"])
    assert list(dict.fromkeys((row["layer"], row["head"]) for row in rows)) == [("1", "2"), ("0", "1")]
    assert {row["weight"] for row in rows} == {""}


# ---- pictures


@pytest.mark.parametrize("names", [None, ["1.2", "0.1"]])
def test_a_picture_has_the_colour_of_every_weight_at_its_place(names, run, tmp_path, monkeypatch):
    figures = []
    before_call(monkeypatch.setattr, Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    rows = export.choose_heads(run, names)
    images.draw_maps(run, tmp_path / "maps.png", 4, rows)
    maps, [figure] = run.maps(4)["text"].astype(float), figures
    pitch = SIZE + 1  # a pixel between two maps
    [image] = figure.axes[0].images
    picture = image.to_rgba(image.get_array())[..., :3]
    inks = LinearSegmentedColormap.from_list("ink", images.COLOURS)
    for row, column in np.ndindex(len(rows), len(rows[0])):
        found = picture[row * pitch :, column * pitch :][:SIZE, :SIZE]
        np.testing.assert_allclose(found, inks(np.sqrt(maps[rows[row][column]]))[..., :3], atol=0.02)
    texts = {text.get_text() for text in figure.findobj(Text)}
    heads = {"head {}.{}".format(*head) for row in rows for head in row}
    assert {"weight", "0.25", *map(images.legible, TOKENS), *heads} <= texts
