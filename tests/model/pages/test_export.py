"""Exported tables hold what was measured."""

import tracemalloc
from dataclasses import replace

import numpy as np

from model.inspection.recording import Recording
from model.pages import export
from tests.measurements import learned_recording, snapshot_of
from tests.small_runs import csv_rows

TOKENS = ['"', "a\nb", "\r", ",", " ", "<b>&", "é界", "\u202e"]
SIZE = len(TOKENS)


def rows_of(run, folder, step, names=None):
    export.write_csv(run, folder / "maps.csv", step, export.choose_heads(run, names))
    return csv_rows(folder / "maps.csv")


def test_the_table_has_every_weight_exactly_as_recorded(tmp_path):
    learned_recording(2, 3, TOKENS, (0, 1, 4), folder=tmp_path)
    run = Recording.open(tmp_path, "first")
    maps = run.maps(1)["text"].astype(np.float16)
    rows = rows_of(run, tmp_path, 1)
    found = np.zeros_like(maps)
    for row in rows:
        layer, head, query, key = (int(row[name]) for name in ("layer", "head", "query", "key"))
        assert (row["run"], row["step"]) == ("first", "1")
        assert (row["query_token"], row["key_token"]) == (TOKENS[query], TOKENS[key])
        found[layer, head, query, key] = row["weight"]
    assert maps.dtype == found.dtype == np.float16 and (found == maps).all()
    assert len(rows) == 2 * 3 * SIZE * (SIZE + 1) / 2


def test_a_table_has_only_the_chosen_heads_and_empty_cells_for_nan(tmp_path):
    run = learned_recording(2, 3, TOKENS, [4])
    maps = {kind: np.full_like(of_kind, np.nan) for kind, of_kind in run.maps(4).items()}
    broken = replace(run, snapshots=[snapshot_of(maps, run.probes, 4)])
    rows = rows_of(broken, tmp_path, 4, ["1.2", "0.1", "1.2"])
    assert list(dict.fromkeys((row["layer"], row["head"]) for row in rows)) == [("1", "2"), ("0", "1")]
    assert {row["weight"] for row in rows} == {""}


def test_a_table_of_many_heads_needs_no_more_memory_than_one_of_a_single_head(tmp_path):
    recording = learned_recording(5, 4, TOKENS * 4, [0])

    def peak(names=None):
        tracemalloc.start()
        export.write_csv(recording, tmp_path / "maps.csv", 0, export.choose_heads(recording, names))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    assert peak() < 2 * peak(["0.0"])
