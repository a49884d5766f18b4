"""Checkpoint files are complete or absent, run no code, and restore the random states."""

import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from model.files import atomic_file, write_atomically
from model.runs.saving import (
    AtomicCheckpointIO,
    Checkpoints,
    gather_random_states,
    random_state,
    set_random_state,
)

CPU = torch.device("cpu")


def draw():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random(), np.random.standard_normal()


PLAIN = {"state_dict": {}, "gpt_config": {}, "tokenizer": {}, "global_step": 0}
COUNTED = {"loss_sum": 1.5, "num_batches": 2, "tokens": 64}
WHOLE = {**PLAIN, "pytorch-lightning_version": "2.6.6", "epoch": 0, "loops": {}, "random_states": []}
WHOLE |= {"optimizer_states": [], "lr_schedulers": [], "callbacks": {"RunSequence": {**COUNTED, "best_loss": 2.0}}}


def test_a_checkpoint_restores_the_random_states(tmp_path):
    draw()  # one normal number, so that numpy keeps the second of the pair for later
    state = random_state(CPU)
    expected = draw(), draw()
    io = AtomicCheckpointIO()
    io.save_checkpoint({**WHOLE, "random": state}, tmp_path / "x.ckpt")
    draw()
    set_random_state(io.load_checkpoint(tmp_path / "x.ckpt")["random"], CPU)
    assert (draw(), draw()) == expected


@pytest.mark.parametrize("part", ["torch", "numpy", "python"])
def test_a_damaged_random_state_is_named(part):
    for damaged in (None, 3, (), ("x",), ([], 1, 0, 0.0), [None] * 700):
        with pytest.raises(ValueError, match="the random state in the checkpoint is damaged"):
            set_random_state({**random_state(CPU), part: damaged}, CPU)


class RunsCode:
    def __reduce__(self):
        return os.mkdir, ("code_ran",)


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({**PLAIN, "callbacks": RunsCode()}, tmp_path / "evil.ckpt")
    with pytest.raises(ValueError, match=r"evil\.ckpt"):
        AtomicCheckpointIO().load_checkpoint(tmp_path / "evil.ckpt", weights_only=False)
    assert not (tmp_path / "code_ran").exists()


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "new" / "file"
    write_atomically(path, b"before")
    with pytest.raises(ZeroDivisionError), atomic_file(path) as file:
        file.write(b"after")
        _ = 1 / 0
    assert path.read_bytes() == b"before"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device without room")
def test_a_full_disk_is_an_oserror_and_keeps_the_old_checkpoint(tmp_path):
    path = tmp_path / "last.ckpt"
    path.write_bytes(b"before")
    (tmp_path / ".last.ckpt.aside").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(100_000)}, path)
    assert path.read_bytes() == b"before"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device without room")
def test_the_message_for_a_full_disk_names_the_file_and_the_remedy(tmp_path):
    (tmp_path / ".config.yaml.aside").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left.*config\.yaml'") as caught:
        write_atomically(tmp_path / "config.yaml", b"a: 1")
    assert caught.value.filename == str(tmp_path / "config.yaml")
    (tmp_path / ".last.ckpt.aside").symlink_to("/dev/full")
    with pytest.raises(OSError, match="make room") as caught:
        AtomicCheckpointIO().save_checkpoint({}, tmp_path / "last.ckpt")
    assert "--resume" not in str(caught.value)  # there is nothing to resume from


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are POSIX")
@pytest.mark.parametrize("room", [0, 100, 100_000, 399_999])
def test_a_disk_that_fills_up_at_any_byte_is_an_oserror_and_leaves_no_partial_file(tmp_path, room):
    import resource

    path = tmp_path / "last.ckpt"
    path.write_bytes(b"before")
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))
    try:
        with pytest.raises(
            OSError, match=r"cannot be saved \(File too large\): make room, then resume with --resume.*last\.ckpt"
        ):
            AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(100_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert path.read_bytes() == b"before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.ckpt"]


def test_the_two_callbacks_of_old_checkpoints_are_read_as_run_sequence(tmp_path):
    callbacks = {"Metrics": COUNTED, "Checkpoints": {"best_loss": 2.0}}
    io = AtomicCheckpointIO()
    for others in ({}, {"Timer": {}}):
        io.save_checkpoint({**WHOLE, "callbacks": callbacks | others}, tmp_path / "old.ckpt")
        read = io.load_checkpoint(tmp_path / "old.ckpt")["callbacks"]
        assert read == {"RunSequence": {**COUNTED, "best_loss": 2.0}, **others}


@pytest.mark.parametrize("name", [*sorted(WHOLE.keys() - PLAIN.keys()), *COUNTED, "best_loss"])
def test_a_checkpoint_that_lacks_what_is_restored_is_refused_at_once(tmp_path, name):
    """What Lightning would fail at later: a part that is missing, or of another type."""
    io, path = AtomicCheckpointIO(), tmp_path / "x.ckpt"
    io.save_checkpoint(WHOLE, path)
    assert io.load_checkpoint(path)["callbacks"] == WHOLE["callbacks"]
    for damage in (None, ()):
        if name in WHOLE:
            damaged = {**WHOLE, name: damage}
        else:
            damaged = {**WHOLE, "callbacks": {"RunSequence": {**WHOLE["callbacks"]["RunSequence"], name: damage}}}
        io.save_checkpoint(damaged, path)
        with pytest.raises(ValueError, match=f"not a whole checkpoint of a run: its {name} is missing or damaged"):
            io.load_checkpoint(path)


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


def test_every_ranks_random_state_is_saved(monkeypatch):
    def trainer(world_size):
        return SimpleNamespace(world_size=world_size, strategy=SimpleNamespace(root_device=CPU))

    def all_gather_object(states, own):
        states[:] = ["another's", own]

    monkeypatch.setattr(torch.distributed, "all_gather_object", all_gather_object)
    assert [set(state) for state in gather_random_states(trainer(1))] == [{"torch", "cuda", "numpy", "python"}]
    other, own = gather_random_states(trainer(2))
    assert other == "another's" and torch.equal(own["torch"], torch.get_rng_state())


@pytest.mark.parametrize("there", ["last.ckpt", "previous.ckpt", "best.ckpt"])
def test_a_full_disk_says_resume_where_any_checkpoint_is_left(tmp_path, monkeypatch, there):
    def full(*_):
        try:
            raise OSError(28, "No space left on device")
        except OSError:
            raise RuntimeError("the archive cannot be ended")  # noqa: B904

    (tmp_path / there).touch()
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=r"No space left on device\): make room, then resume with --resume") as caught:
        AtomicCheckpointIO().save_checkpoint({}, tmp_path / "step_00000005.ckpt")
    assert (caught.value.errno, caught.value.filename) == (28, str(tmp_path / "step_00000005.ckpt"))


def test_an_error_of_torchs_own_stays_as_it_is(tmp_path, monkeypatch):
    error = RuntimeError("a bug")

    def fail(*_):
        raise error

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(RuntimeError) as caught:
        AtomicCheckpointIO().save_checkpoint({}, tmp_path / "last.ckpt")
    assert caught.value is error


def test_a_step_is_saved_where_it_is_kept_or_by_its_number():
    steps = range(13)
    assert [step for step in steps if Checkpoints().is_due(step)] == []
    assert [step for step in steps if Checkpoints(every_n_steps=4).is_due(step)] == [4, 8, 12]
    assert [step for step in steps if Checkpoints(every_n_steps=6, keep_steps=[0, 5]).is_due(step)] == [0, 5, 6, 12]
