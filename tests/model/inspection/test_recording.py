"""Recordings: what is stored, resuming after an interruption, when a head has formed, and damaged files."""

import math
import shutil
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from model.inspection.formation import formation
from model.inspection.heads import SCORES
from model.inspection.reading import as_json, read
from model.inspection.recording import Recording, take_snapshot
from tests.command_lines import mistake
from tests.gpts import CONFIGS, random_gpt
from tests.measurements import WORDS, new_recording

GROUPED = CONFIGS["grouped heads"]


def record(folder, gpt, step, **options):
    recording = new_recording(folder)
    recording.append(take_snapshot(gpt, step, recording, **options))
    return recording


@pytest.fixture(scope="module")
def one_snapshot(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    record(folder, random_gpt(GROUPED), 0, with_losses=True)
    return folder


@pytest.fixture
def recorded(one_snapshot, tmp_path):
    """The folder of a recording with a snapshot of step 0."""
    return shutil.copytree(one_snapshot, tmp_path / "attention")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_snapshot_and_its_readings_can_be_read_back(tmp_path):
    gpt = random_gpt(GROUPED)
    recorded = replace(new_recording(tmp_path), words=WORDS)
    written = take_snapshot(gpt, 8, recorded, lambda token: f"({token})", with_losses=True)
    recorded.append(written)
    found = Recording.open(tmp_path, "demo")
    assert (found.name, found.steps, found.mapped) == ("demo", [8], [8])
    assert found.header() == recorded.header()
    assert as_json(found.at(8).to_json(), ".4f") == as_json(written.to_json(), ".4f")
    for kind, stored in found.readings(8).items():
        exact = read(gpt, found.probes[kind], label=lambda token: f"({token})")
        np.testing.assert_allclose(found.maps(8)[kind], exact.maps, atol=5e-4, rtol=0)
        assert stored.tokens == found.probes[kind].labels[0] and stored.figures == exact.figures
    for name, values in vars(found.frame(8)).items():
        expected = getattr(written.frame, name)
        if name == "top":
            assert values.tolist() == expected.tolist()
        else:
            torch.testing.assert_close(values, expected.to(values.dtype), atol=2e-3, rtol=2e-3)


def test_a_diverged_model_is_recorded_in_valid_json_with_a_warning(tmp_path):
    gpt = random_gpt(GROUPED)
    nn.init.constant_(gpt.blocks[0].attention.qkv_proj.weight, math.nan)
    record(tmp_path, gpt, 0, with_losses=True)
    found = Recording.open(tmp_path)
    texts = [*(path.read_text() for path in tmp_path.glob("*.json*")), str(np.load(found.path(0))["figures"])]
    assert len(texts) == 3 and not any("NaN" in text for text in texts)
    [snapshot] = found.snapshots
    assert ["diverged" in sentence for sentence in found.problems.values()] == [True, True]
    assert math.isnan(snapshot.loss["text"]) and np.isnan([*snapshot.ablation["text"].values()]).all()
    assert set(found.readings(0)["text"].figures["bits"]) == {None}
    assert not any(formed.any() for formed in snapshot.heads.formed.values())


def test_a_score_added_after_a_recording_is_missing_in_its_old_snapshots(recorded, monkeypatch):
    before = Recording.open(recorded).snapshots[0]
    monkeypatch.setitem(SCORES, "new", SCORES["first_token"])
    record(recorded, random_gpt(GROUPED), 1)
    old, new = Recording.open(recorded).snapshots
    assert np.isnan(old.scores["new"]).all() and not old.heads.formed["new"].any()
    assert np.array_equal(old.scores["first_token"], before.scores["first_token"])
    assert np.array_equal(new.scores["new"], new.scores["first_token"])
    monkeypatch.delitem(SCORES, "new")
    assert len(Recording.open(recorded).snapshots) == 2  # a score that was removed is ignored


@pytest.mark.parametrize("killed", ["os.fsync", "model.inspection.recording.append"])
def test_an_interrupted_snapshot_is_ignored_and_made_again(recorded, monkeypatch, killed):
    """Its maps and figures may be written, but not its scores, or half of them."""
    before = contents(recorded)
    gpt = random_gpt(GROUPED)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(killed, Mock(side_effect=KeyboardInterrupt))
        record(recorded, gpt, 1)
    assert before.items() <= contents(recorded).items()
    with (recorded / "scores.jsonl").open("a") as scores:
        scores.write('{"step": 1, "ch')
    assert Recording.open(recorded).steps == [0]
    (recorded / "scores.jsonl").write_bytes(before["scores.jsonl"])
    assert record(recorded, gpt, 1).steps == [0, 1]


DAMAGED = {  # other content, other arrays, or the number of bytes that are left
    "probe.json": [b"{", b"[]", b'{"version": 5, "tokenizer": "x", "probes": {"text": {"tokens": [[1]]}}}'],
    "scores.jsonl": [b'{"step": 0}\n', b"\xff\xfe\n"],
    "step_00000000.npz": [b"", b"PK\x03\x04 cut short", 500, -1, {"text": np.zeros(2)}, {"figures": np.array(b"{}")}],
}


@pytest.mark.parametrize("name, damage", [(name, each) for name, damages in DAMAGED.items() for each in damages])
def test_damaged_files_are_named(recorded, name, damage):
    """tests/test_hostile_files.py has maps that would run code."""
    path = recorded / name
    if isinstance(damage, dict):
        with np.load(path) as file:
            np.savez_compressed(path, **dict(file) | damage)
    else:
        path.write_bytes(damage if isinstance(damage, bytes) else path.read_bytes()[:damage])
    with mistake(rf"{name}.*damaged"):
        Recording.open(recorded).readings(0)


def test_a_recording_of_another_version_or_a_missing_one_is_named(recorded):
    (recorded / "probe.json").write_text("{}")
    with mistake("another version"):
        Recording.open(recorded)
    with mistake("no recorded maps"):
        Recording.open(recorded / "none")


# The steps of 0, 10, 20 and 40 with the pattern, and the step at which it has formed: after it is lost it has not.
@pytest.mark.parametrize(
    "has_pattern, formed", [((20, 40), 20), ((0, 20, 40), 20), ((0, 10, 20), None), ((0, 10, 20, 40), 0)]
)
def test_a_head_has_formed_at_the_step_from_which_all_snapshots_have_the_pattern(has_pattern, formed):
    flags = [(step, {"first_token": [[step in has_pattern]], "recent": [[False]]}) for step in (0, 10, 20, 40)]
    found = formation(flags)
    assert found["first_token"].get("0.0") == formed and not found["recent"]
