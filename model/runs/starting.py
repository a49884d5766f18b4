"""How a run begins: its options are checked, its folder is made with its config, and locked."""

import os
import re
import time
from pathlib import Path

from jsonargparse import Namespace
from lightning.pytorch import LightningModule, Trainer, callbacks

from model.checks import Mistake, check_range, listed
from model.files import write_atomically, writing
from model.runs.folder import CONFIG

if os.name == "posix":
    import fcntl

REFUSED_CALLBACKS = "GradientAccumulationScheduler", "LearningRateFinder", "BatchSizeFinder"
# Strategies that cut matrices in parts, or start processes that are no programs of their own.
REFUSED_STRATEGIES = re.compile("fsdp|deepspeed|modelparallel|spawn|fork|notebook", re.IGNORECASE)
VALIDATION_METRICS = ["val/loss", "val/bits_per_byte"]  # what callbacks can monitor


def new_run_dir(runs_dir: Path, name: str | None, config: str) -> Path:
    """The folder for a new run, not created yet: `name`, by default the config's name and the time.

    Raises a `Mistake` if a run has this name, or it cannot be a folder's.
    """
    if name is None:
        stem = name = f"{Path(config).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        number = 1
        while (runs_dir / name).exists():  # two runs within a second
            number += 1
            name = f"{stem}-{number}"
    elif name in ("", ".", "..") or Path(name).name != name:
        raise Mistake(f"--name must be the name of a folder under {runs_dir}/, not {name!r}")
    elif (runs_dir / name).exists():
        raise name_is_taken(runs_dir / name)
    return runs_dir / name


def name_is_taken(run_dir: Path) -> Mistake:
    return Mistake(f"{run_dir} exists: continue it with --resume {run_dir}, or choose another --name")


class FolderLock:
    """Keeps two processes from training in the same folder; released when its process ends, however it ends.

    Leaves no file. Does nothing on Windows and on file systems that cannot lock a folder.
    """

    def __init__(self) -> None:
        self.descriptor: int | None = None
        if os.name == "posix":  # a loader process that outlives a killed run must not hold the lock
            os.register_at_fork(after_in_child=self.release)

    def acquire(self, folder: Path) -> None:
        """Raises a `Mistake` if another process has it."""
        if os.name != "posix":
            return
        self.release()
        self.descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise Mistake(f"{folder} is being trained by another process: wait until that has ended") from None
        except OSError:  # a file system that cannot lock a folder
            self.release()

    def release(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class RunFolder(callbacks.Callback):
    """Creates the run's folder with its config when training begins: a mistake found earlier leaves nothing behind.

    A resumed run has both already. Its config is replaced after every on_train_start hook has accepted the options.
    """

    def __init__(self, config: str, is_new: bool) -> None:
        self.config = config.encode()
        self.is_new = is_new
        self.lock = FolderLock()

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        if not self.is_new and trainer.is_global_zero:
            self.lock.acquire(Path(trainer.default_root_dir))

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        if self.is_new and trainer.is_global_zero:
            run_dir = Path(trainer.default_root_dir)
            with writing(run_dir):
                try:
                    run_dir.mkdir(parents=True)
                except FileExistsError:  # made since this run looked for it
                    raise name_is_taken(run_dir) from None
            self.lock.acquire(run_dir)
            write_atomically(run_dir / CONFIG, self.config)

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        if not self.is_new and trainer.is_global_zero:
            write_atomically(Path(trainer.default_root_dir, CONFIG), self.config)

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self.lock.release()

    on_exception = teardown  # after an error Lightning calls this one only


def check_options(options: Namespace) -> None:
    """Raises a `Mistake` for options of Lightning's Trainer that do nothing or do harm in a run counted in steps."""

    def refuse(name: str, reason: str) -> None:
        raise Mistake(f"trainer.{name}: {reason}")

    repeats = str(options.limit_train_batches) not in ("None", "1.0")  # and the number 1, which is one batch
    interval, accumulate = options.val_check_interval, options.accumulate_grad_batches
    check_range("trainer.log_every_n_steps", options.log_every_n_steps, 1)
    check_range("trainer.gradient_clip_val", options.gradient_clip_val, 0)
    check_range("trainer.accumulate_grad_batches", accumulate, 1)
    if options.max_epochs not in (None, -1) and not options.fast_dev_run:
        refuse("max_epochs", "training is counted in steps here, set trainer.max_steps")
    if repeats and not (options.overfit_batches or options.fast_dev_run):
        refuse("limit_train_batches", "would repeat the same batches, set trainer.max_steps")
    if REFUSED_STRATEGIES.search(str(options.strategy)):
        refuse("strategy", "each device has the whole model and a program of its own, so write ddp")
    if isinstance(interval, str | dict):  # it would not be the same in a resumed run
        refuse("val_check_interval", "must be a number of batches, not a time")
    if isinstance(interval, int) and not (interval > 0 and interval % accumulate == 0):
        refuse("val_check_interval", f"must be a multiple of accumulate_grad_batches, {accumulate}, not {interval}")
    for callback in options.callbacks if isinstance(options.callbacks, list) else [options.callbacks]:
        name = callback.class_path.rpartition(".")[2] if callback else ""
        if name in REFUSED_CALLBACKS:
            refuse("callbacks", f"{name} changes what a resumed run must find as it was: leave it out")
        monitor = callback.get("init_args.monitor") if callback else None
        if monitor not in (None, "step", *VALIDATION_METRICS):
            refuse("callbacks", f"monitor is {monitor}: write {listed(VALIDATION_METRICS, 'or')}")
