"""Checkpoint files are complete or absent, run no code, and restore the random states."""

import random
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import model.runs.saving
from model.checks import Mistake
from model.files import write_atomically
from model.runs.saving import AtomicCheckpointIO, random_state, restoring, set_random_state

CPU = torch.device("cpu")
WHOLE = {"state_dict": {}, "gpt_config": {}, "tokenizer": {}, "global_step": 0, "loops": {}, "optimizer_states": []}


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


def failing(error, file, name="restore"):
    """A function that raises such an error, as if it stood in that file."""
    names = {}
    exec(compile(f"def {name}(error): raise error", file, "exec"), names)
    return partial(names[name], type(error)(*error.args))


@pytest.mark.parametrize("error", [KeyError("loops"), ValueError("state vector"), RuntimeError(""), TypeError("x\ny")])
def test_whatever_fails_while_a_checkpoint_is_restored_is_one_sentence_with_its_name(tmp_path, error):
    """And passes as it is before a checkpoint is read, after the run has begun, and where the person's code fails."""
    io, own = AtomicCheckpointIO(), model.runs.saving.__file__
    io.save_checkpoint(WHOLE, tmp_path / "x.ckpt")
    trainer = SimpleNamespace(strategy=SimpleNamespace(checkpoint_io=io))

    def raised_by(fail, kind):
        with pytest.raises(kind) as caught, restoring(trainer):
            fail()
        return str(caught.value)

    raised_by(failing(error, own), type(error))
    io.load_checkpoint(tmp_path / "x.ckpt")
    for file in (torch.__file__, own):
        said = raised_by(failing(error, file), Mistake)
        assert said.startswith(f"{tmp_path}/x.ckpt cannot be used for this run: ") and "\n" not in said
    raised_by(failing(error, str(tmp_path / "callback.py")), type(error))
    raised_by(failing(error, own, "configure_optimizers"), type(error))
    io.is_restoring = False
    raised_by(failing(error, own), type(error))


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
def test_a_full_disk_keeps_the_old_file_and_names_it(tmp_path, write):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    (tmp_path / ".file.aside").symlink_to("/dev/full")
    with pytest.raises(Mistake, match=r"file: No space left"):
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
