"""What Weights & Biases is given: read back from the files of an offline run."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from model.inspection.archive import AttentionArchive
from model.inspection.heads import SCORES
from model.inspection.images import mosaic_pixels, score_pixels

internal = pytest.importorskip("wandb.proto.wandb_internal_pb2")


def records(path: Path) -> list:
    """Everything in a .wandb file: a header, then chunks (checksum, length, kind) in blocks, as in LevelDB."""
    content, place, found, parts = path.read_bytes(), 7, [], []
    while place + 7 <= len(content):
        if (room := 32768 - place % 32768) < 7:
            place += room
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        parts.append(content[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (1, 4):  # whole, or its last part
            found.append(internal.Record.FromString(b"".join(parts)))
            parts = []
    return found


def logged(found: list) -> dict[int, dict]:
    """What was logged, by step: numbers by name, and paths of files by the name of what they show."""
    steps = {}
    for record in found:
        if record.WhichOneof("record_type") == "history":
            items = {tuple(item.nested_key) or (item.key,): json.loads(item.value_json) for item in record.history.item}
            named = {name: value for (name, *rest), value in items.items() if rest in ([], ["path"])}
            steps.setdefault(named["_step"], {}).update(named)
    return steps


def test_an_offline_run_holds_figures_pictures_the_page_and_the_maps(train, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staging"))
    options = ["--trainer.max_steps=2", "--trainer.val_check_interval=2", "--wandb=offline", "--name=run"]
    assert train(*options) == 0
    [folder] = Path("runs/run/wandb").glob("offline-run-*")
    [file] = folder.glob("*.wandb")
    found = records(file)
    steps = logged(found)
    archive = AttentionArchive.open(Path("runs/run/attention"))
    assert sorted(steps) == archive.steps == [0, 1, 2]

    for snapshot in archive.snapshots:
        row = steps[snapshot.step]
        assert row["attention/fidelity"] == pytest.approx(snapshot.fidelity)
        pictures = {"attention/maps": mosaic_pixels(archive.maps(snapshot.step)["text"])}
        for name in SCORES:
            assert row[f"attention/{name}/layer_1"] == pytest.approx(snapshot.scores[name][1].max(), abs=1e-4)
            pictures[f"attention/{name}/heads"] = score_pixels(snapshot.scores[name])
        for name, pixels in pictures.items():
            shown = imread(folder / "files" / row[name])
            np.testing.assert_allclose(shown * 255, pixels, atol=1.01)

    page = (folder / "files" / steps[2]["attention/page"]).read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") and "wandb" not in page and 'id="block-0"' in page
    [artifact] = [record.artifact for record in found if record.WhichOneof("record_type") == "artifact"]
    kept = {entry.path for entry in artifact.manifest.contents}
    assert artifact.type == "attention-maps"
    assert kept >= {"probe.json", "scores.jsonl", *(archive.path(step).name for step in archive.steps)}
