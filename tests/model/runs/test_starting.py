"""The name of a new run's folder, its lock, and which of Lightning's options count."""

import os
import signal

import pytest
from jsonargparse import Namespace

from model.runs.starting import FolderLock, check_options, new_run_dir


def test_runs_started_within_a_second_get_different_folders_and_a_name_must_be_that_of_one(tmp_path, monkeypatch):
    monkeypatch.setattr("time.strftime", lambda _: "now")
    for expected in ("own-now", "own-now-2", "own-now-3"):
        run_dir = new_run_dir(tmp_path, None, "configs/own.yaml")
        assert run_dir.name == expected
        run_dir.mkdir()
    for name in ("", ".", "..", "a/b", "/a"):
        with pytest.raises(ValueError, match=f"--name must be the name of a folder .*, not '{name}'"):
            new_run_dir(tmp_path, name, "configs/own.yaml")


locks = pytest.mark.skipif(os.name != "posix", reason="folders are locked on POSIX")


@locks
def test_a_lock_is_taken_again_by_its_owner_and_left_by_who_did_not_get_it(tmp_path):
    mine, other = FolderLock(), FolderLock()
    for _ in range(2):
        mine.acquire(tmp_path)
        with pytest.raises(ValueError, match="is being trained by another process"):
            other.acquire(tmp_path)
        assert other.descriptor is None
    mine.release()
    other.acquire(tmp_path)


@locks
def test_a_loader_process_that_outlives_a_run_does_not_hold_its_lock(tmp_path):
    lock = FolderLock()
    lock.acquire(tmp_path)
    started, starts = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(starts, b"x")
        signal.pause()
    try:
        os.read(started, 1)
        lock.release()
        FolderLock().acquire(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


USUAL = {"max_epochs": -1, "fast_dev_run": False, "limit_train_batches": 1.0, "overfit_batches": 0.0}
USUAL |= {"val_check_interval": 10, "accumulate_grad_batches": 1, "log_every_n_steps": 1, "gradient_clip_val": None}
USUAL |= {"strategy": "auto", "callbacks": None}


def callback(name, **options):
    return Namespace(class_path=f"lightning.pytorch.callbacks.{name}", init_args=Namespace(**options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_epochs": None, "limit_train_batches": None},
        {"max_epochs": 1, "limit_train_batches": 1, "fast_dev_run": 1},
        {"limit_train_batches": 3, "overfit_batches": 3},
        {"strategy": "ddp"},
        {"strategy": Namespace(class_path="lightning.pytorch.strategies.DDPStrategy")},
        {"accumulate_grad_batches": 5},
        {"accumulate_grad_batches": 5, "val_check_interval": 0.5},
        {"callbacks": [callback("EarlyStopping", monitor="val/loss"), callback("ModelCheckpoint", monitor="step")]},
        {"callbacks": callback("LearningRateMonitor")},
    ],
    ids=repr,
)
def test_options_that_do_what_they_say_are_let_through(options):
    check_options(Namespace(**USUAL | options))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *(({"limit_train_batches": share}, "trainer.limit_train_batches: would repeat") for share in (0.5, 1)),
        *(({"strategy": name}, "trainer.strategy: .* write ddp") for name in ("fsdp", "deepspeed", "ddp_spawn")),
        ({"strategy": Namespace(class_path="lightning.pytorch.strategies.FSDPStrategy")}, "trainer.strategy"),
        ({"gradient_clip_val": float("nan")}, "trainer.gradient_clip_val must be at least 0 and finite, not nan"),
        ({"log_every_n_steps": 0}, "trainer.log_every_n_steps must be at least 1, not 0"),
        ({"accumulate_grad_batches": 0}, "trainer.accumulate_grad_batches must be at least 1, not 0"),
        ({"val_check_interval": 0}, "trainer.val_check_interval: .*not 0"),
        ({"val_check_interval": "00:00:00:05"}, "trainer.val_check_interval: must be a number of batches, not a time"),
        ({"callbacks": [callback("EarlyStopping", monitor="loss")]}, "monitor is loss: write val/loss or val/bits"),
        *(
            ({"callbacks": [callback(name)]}, "trainer.callbacks: .*: leave it out")
            for name in ("GradientAccumulationScheduler", "LearningRateFinder", "BatchSizeFinder")
        ),
        ({"accumulate_grad_batches": 3}, "trainer.val_check_interval: must be a multiple of .*, 3, not 10"),
    ],
    ids=repr,
)
def test_options_that_do_nothing_or_harm_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        check_options(Namespace(**USUAL | options))
