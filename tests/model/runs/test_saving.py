"""Checkpoint files are complete or absent, and restore the random states."""

import errno
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from model.checkpoint import read_checkpoint
from model.files import write_atomically
from model.runs.run import Run
from model.runs.saving import AtomicCheckpointIO, random_state, rewind, set_random_state
from tests.command_lines import mistake

CPU = torch.device("cpu")
OF_A_RUN = {"best": (), "callbacks": {}, "counted": (), "loops": {}, "lr_schedulers": []}


@pytest.fixture
def whole(run_dir):
    """The content of a run's checkpoint."""
    return read_checkpoint(run_dir / "checkpoints/best.ckpt") | OF_A_RUN | {"optimizer_states": [], "random_states": []}


def draw():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random(), np.random.standard_normal()


def test_a_checkpoint_restores_the_random_states(tmp_path, whole):
    draw()  # draws one normal number, so that numpy keeps the second of the pair
    state = random_state(CPU)
    expected = draw(), draw()
    io = AtomicCheckpointIO()
    io.save_checkpoint(whole | {"random": state}, tmp_path / "x.ckpt")
    draw()
    set_random_state(io.load_checkpoint(tmp_path / "x.ckpt")["random"], CPU)
    assert (draw(), draw()) == expected


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

    path = tmp_path / "new" / "last.ckpt"
    write_atomically(path, b"before")
    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        AtomicCheckpointIO().save_checkpoint({}, path)
    assert path.read_bytes() == b"before"
    assert [entry.name for entry in path.parent.iterdir()] == ["last.ckpt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full")
def test_a_full_disk_keeps_the_old_file_and_the_message_names_it(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    (tmp_path / ".file.aside").symlink_to("/dev/full")
    with mistake(rf"{path}: No space left"):
        AtomicCheckpointIO().save_checkpoint({"w": torch.zeros(10**5)}, path)
    assert path.read_bytes() == b"before"


def test_a_run_on_a_read_only_disk_cannot_be_rewound_and_the_message_names_the_file(tmp_path, monkeypatch):
    kept, last = Run(tmp_path).kept(9), tmp_path / "checkpoints/last.ckpt"
    write_atomically(kept, b"later")

    def refuse(path, **_):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with mistake(f"{kept}: Read-only"):
        rewind(tmp_path, last, 8)


def test_the_random_state_of_a_gpu_is_restored_only_on_a_gpu_of_its_kind(monkeypatch):
    gpu, restored = torch.device("mps"), []
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: "the state")
    monkeypatch.setattr(torch.mps, "set_rng_state", restored.append)
    on_cpu, on_gpu = random_state(CPU), random_state(gpu)
    for state, device in ((on_cpu, CPU), (on_cpu, gpu), (on_gpu, CPU)):
        set_random_state(state, device)
    assert not restored
    set_random_state(on_gpu, gpu)
    assert restored == ["the state"]
