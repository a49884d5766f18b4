"""Checkpoint files are complete or absent, and restore the random states."""

import errno
import io
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from model.checkpoint import read_checkpoint
from model.files import write_atomically
from model.runs import saving
from model.runs.records import read_metrics, write_metrics
from model.runs.run import Run
from model.runs.saving import AtomicCheckpointIO, rewind, seed_step
from tests.command_lines import mistake

OF_A_RUN = {"best": (), "callbacks": {}, "loops": {}, "loss_sum": (), "lr_schedulers": []}


@pytest.fixture
def whole(run_dir):
    """The content of a run's checkpoint."""
    return read_checkpoint(run_dir / "checkpoints/best.ckpt") | OF_A_RUN | {"optimizer_states": []}


def drawn(seed=1, step=2, rank=3, device="cpu"):
    """What is drawn in a step, after other numbers were drawn before it; one normal number leaves another in numpy."""
    np.random.standard_normal()
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device)))
    trainer.global_step, trainer.global_rank = step, rank
    seed_step(seed, trainer)
    return torch.rand(1).item(), np.random.standard_normal(), random.random()


def test_what_is_drawn_in_a_step_depends_on_seed_step_and_rank_alone():
    expected = drawn()
    assert drawn() == expected
    for other in (drawn(seed=2), drawn(step=3), drawn(rank=4)):
        assert not set(other) & set(expected)


def test_a_gpu_is_seeded_too(monkeypatch):
    seeds = []
    monkeypatch.setattr(torch.mps, "manual_seed", seeds.append)
    drawn(device="mps")
    assert seeds == [torch.initial_seed()]


def test_a_checkpoint_without_a_run_or_with_other_weights_is_named(tmp_path, whole):
    without = {name: value for name, value in whole.items() if name != "loops"}
    for content, message in ((without, "loops.* --model.init_from"), (whole | {"state_dict": {}}, "weights")):
        AtomicCheckpointIO().save_checkpoint(content, tmp_path / "x.ckpt")
        with mistake(rf"x\.ckpt .*{message}"):
            AtomicCheckpointIO().load_checkpoint(tmp_path / "x.ckpt")


def test_an_error_while_saving_is_passed_on_and_keeps_the_old_file(tmp_path, monkeypatch):
    def fail(checkpoint, file):
        file.write(b"after")
        raise RuntimeError("a bug")

    path = tmp_path / "new/last.ckpt"
    write_atomically(path, b"before")
    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        AtomicCheckpointIO().save_checkpoint({}, path)
    assert path.read_bytes() == b"before"
    assert [entry.name for entry in path.parent.iterdir()] == ["last.ckpt"]


class Interrupted(io.BytesIO):
    """A file; a signal comes in its third write."""

    writes = 0

    def write(self, content):
        self.writes += 1
        if self.writes == 3:
            raise KeyboardInterrupt
        return super().write(content)


def test_a_signal_during_a_save_ends_it_as_a_signal(monkeypatch):
    monkeypatch.setattr(saving, "atomic_file", lambda _: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        AtomicCheckpointIO().save_checkpoint({"w": torch.zeros(10**5)}, "x.ckpt")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full")
def test_a_full_disk_keeps_the_old_file_and_the_message_names_it(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    (tmp_path / ".file.aside").symlink_to("/dev/full")
    with mistake(rf"{path}: No space left"):
        AtomicCheckpointIO().save_checkpoint({"w": torch.zeros(10**5)}, path)
    assert path.read_bytes() == b"before"


def test_a_run_on_a_read_only_disk_cannot_be_rewound_and_the_message_names_the_file(tmp_path, monkeypatch):
    kept, last = (tmp_path / "checkpoints" / name for name in ("step_9.ckpt", "last.ckpt"))
    write_atomically(kept, b"later")

    def refuse(path, **_):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with mistake(f"{kept}: Read-only"):
        rewind(tmp_path, last, 8)


def test_a_run_that_is_rewound_to_its_best_model_keeps_it(kept):
    best, resumed = kept / "checkpoints/best.ckpt", Run(kept).kept[4]
    assert rewind(kept, resumed, 4) and best.read_bytes() == resumed.read_bytes()
    best.unlink()
    rows = read_metrics(kept / "metrics.csv")
    write_metrics(kept / "metrics.csv", [{"step": 2, "val/loss": 0.0}, *rows])
    assert not rewind(kept, resumed, 4)  # an earlier one was better
