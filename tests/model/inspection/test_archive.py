"""Archives of snapshots: what is kept of an interrupted or resumed recording, and how damage is named."""

import copy
import json
import os
import shutil

import numpy as np
import pytest

from model.inspection.archive import AttentionArchive
from model.inspection.recorder import record_snapshot
from tests.gpts import random_gpt
from tests.model.inspection.test_recorder import GROUPED, TEXT, new_archive


@pytest.fixture(scope="module")
def one_snapshot(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    record_snapshot(new_archive(folder), random_gpt(GROUPED), 0)
    return folder


@pytest.fixture
def recorded(one_snapshot, tmp_path):
    """The folder of an archive that holds a snapshot of step 0."""
    return shutil.copytree(one_snapshot, tmp_path / "attention")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_resuming_removes_later_snapshots_and_repeats_none(recorded):
    gpt = random_gpt(GROUPED)
    for step in (1, 2, 4):
        record_snapshot(new_archive(recorded), gpt, step)
    resumed = new_archive(recorded)
    record_snapshot(resumed, gpt, 2)
    record_snapshot(resumed, gpt, 3)
    assert [json.loads(line)["step"] for line in (recorded / "scores.jsonl").read_text().splitlines()] == [0, 1, 2, 3]
    files = {f"step_{step:08d}.{kind}" for step in (0, 1, 2, 3) for kind in ("json", "npz")}
    assert contents(recorded).keys() == {"probe.json", "scores.jsonl"} | files


def test_snapshots_of_different_probes_are_not_mixed(recorded, tmp_path):
    with pytest.raises(ValueError, match="another probe text or tokenizer"):
        new_archive(recorded, TEXT[1:])
    new_archive(tmp_path / "new", TEXT[1:])
    assert not (tmp_path / "new").exists()  # nothing is written before the first snapshot


@pytest.mark.parametrize("written", [0, 2, 4, 6])  # of these calls each file takes two
def test_an_interrupted_snapshot_does_not_count_and_is_made_again(recorded, tmp_path, monkeypatch, written):
    """The first or a later one, when maps and details are written and perhaps the probe, but not their scores."""
    fsync, calls = os.fsync, []

    def killed_later(file):
        calls.append(file)
        if len(calls) > written:
            raise KeyboardInterrupt
        fsync(file)

    before, gpt = contents(recorded), random_gpt(GROUPED)
    for folder, step in ((recorded, 1), (tmp_path / "new", 0)):
        calls[:] = [None] * (2 if step else 0)  # a later snapshot writes no probe
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("os.fsync", killed_later)
            record_snapshot(new_archive(folder), gpt, step)
        if step:
            assert before.items() <= contents(folder).items() and AttentionArchive.open(folder).steps == [0]
        record_snapshot(new_archive(folder), gpt, step)
        assert AttentionArchive.open(folder).steps[-1] == step


DAMAGED = {  # another content, or so many bytes of what was there
    "probe.json": [
        b"{",
        b'{"tokenizer": "x", "probes": {"text": {"tokens": [1], "labels": []}}}',
        b"[]",
        b'{"tokenizer": "x", "probes": {"text": {"tokens": [1], "labels": ["a"]}}}',
    ],
    "scores.jsonl": [b'{"step": 0}\n', b"\xff\xfe\n"],
    "step_00000000.json": [b"{", b"[]", b"{}"],
    "step_00000000.npz": [b"", b"PK\x03\x04 cut short", 500, -1],
}


@pytest.mark.parametrize(("name", "damage"), [(name, one) for name, all_ in DAMAGED.items() for one in all_])
def test_damaged_files_are_named(recorded, name, damage):
    """Maps that could run code are refused too, see tests/test_hostile_files.py."""
    path = recorded / name
    path.write_bytes(damage if isinstance(damage, bytes) else path.read_bytes()[:damage])
    with pytest.raises(ValueError, match=rf"{name}.*damaged"):
        archive = AttentionArchive.open(recorded)
        archive.maps(0)
        archive.details(0)


def test_maps_scores_and_details_of_another_shape_are_named(recorded):
    archive = AttentionArchive.open(recorded)
    np.savez(archive.path(0), text=np.zeros((1, 1, 3, 3)), repeated=np.zeros((1, 1, 3, 3)))
    with pytest.raises(ValueError, match=r"text maps \(1, 1, 3, 3\) in float64, not \(3, 4, 12, 12\) in float16"):
        archive.maps(0)
    details, line = (json.loads((recorded / name).read_text()) for name in ("step_00000000.json", "scores.jsonl"))
    for change in (
        lambda fields: fields["text"]["bits"].pop(),
        lambda fields: fields["repeated"]["rank"].__setitem__(0, "first"),
        lambda fields: fields["text"]["value_norms"][0].pop(),
        lambda fields: fields["text"]["lens"]["token"].pop(),
    ):
        broken = copy.deepcopy(details)
        change(broken["probes"])
        archive.path(0, ".json").write_text(json.dumps(broken))
        with pytest.raises(ValueError, match=r"step_00000000\.json is damaged \(.*\): remove it to see the"):
            archive.details(0)
    text = line["ablation"]["text"]
    for field, value in (
        ("scores", line["scores"] | {"sink": [[0.5]]}),
        ("copying", [[0.5]]),
        ("ablation", {"text": {part: text[part] for part in text if part != "head 2.3"}}),
        ("ablation", {"text": text | {"head 0.0": [0.5]}}),
        ("step", "x"),
    ):
        (recorded / "scores.jsonl").write_text(json.dumps(line | {field: value}) + "\n")
        with pytest.raises(ValueError, match=r"scores\.jsonl, line 1 is damaged"):
            AttentionArchive.open(recorded)
