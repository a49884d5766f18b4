"""Checkpoint files are complete or absent, run no code, and restore the random states."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from model.checks import Mistake
from model.files import write_atomically
from model.runs.mistakes import explain_machine
from model.runs.saving import AtomicCheckpointIO, random_state, set_random_state

CPU = torch.device("cpu")
WHOLE = {"state_dict": {}, "gpt_config": {}, "tokenizer": {}, "global_step": 0, "optimizer_states": []}
WHOLE |= {"callbacks": {}, "counted": (), "loops": {}, "loss_sums": [], "lr_schedulers": [], "random_states": []}


def draw():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random(), np.random.standard_normal()


def test_a_checkpoint_restores_the_random_states(tmp_path):
    draw()  # one normal number, so that numpy keeps the second of the pair for later
    state = random_state(CPU)
    expected = draw(), draw()
    io = AtomicCheckpointIO()
    io.save_checkpoint({**WHOLE, "random": state}, tmp_path / "x.ckpt")
    draw()
    set_random_state(io.load_checkpoint(tmp_path / "x.ckpt")["random"], CPU)
    assert (draw(), draw()) == expected


def test_what_holds_no_run_is_told_with_its_name_and_what_it_lacks(tmp_path):
    for part in ("optimizer_states", "loops"):
        without = {name: value for name, value in WHOLE.items() if name != part}
        AtomicCheckpointIO().save_checkpoint(without, tmp_path / "x.ckpt")
        with pytest.raises(Mistake, match=rf"x\.ckpt has no {part}: .* --model\.init_from"):
            AtomicCheckpointIO().load_checkpoint(tmp_path / "x.ckpt")


def test_an_error_while_saving_stays_what_it_is_and_keeps_the_old_file(tmp_path, monkeypatch):
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device without room")
@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_atomically(path, b"a: 1"),
        lambda path: AtomicCheckpointIO().save_checkpoint({"w": torch.zeros(10**5)}, path),
    ],
    ids=["text", "checkpoint"],
)
def test_a_full_disk_keeps_the_old_file_and_is_told_with_its_place(tmp_path, write):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    (tmp_path / ".file.aside").symlink_to("/dev/full")
    with pytest.raises(Mistake, match=rf"{tmp_path}\b.*: No space left.*: make room"), explain_machine(tmp_path):
        write(path)
    assert path.read_bytes() == b"before"


def test_the_gpus_random_state_is_restored_on_gpus_only(monkeypatch):
    cuda, restored = torch.device("cuda", 1), []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: f"the state of {device}")
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: restored.append((state, device)))
    on_cpu, on_gpu = random_state(CPU), random_state(cuda)
    for state, device in ((on_cpu, CPU), (on_cpu, cuda), (on_gpu, CPU)):
        set_random_state(state, device)
    assert not restored
    set_random_state(on_gpu, cuda)
    assert restored == [("the state of cuda:1", cuda)]
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: "the state of mps")
    monkeypatch.setattr(torch.mps, "set_rng_state", restored.append)
    mps = torch.device("mps")
    for state in (on_cpu, random_state(mps)):
        set_random_state(state, mps)
    assert restored[1:] == ["the state of mps"]
