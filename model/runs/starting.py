"""How a run begins: its folder is made with its config, and locked."""

import atexit
import os
import shutil
import tempfile
import time
from pathlib import Path

from jsonargparse import Namespace
from lightning.pytorch import LightningModule, Trainer, callbacks

from model.files import write_atomically
from model.mistakes import Mistake, file_errors
from model.runs.run import CONFIG, Run

if os.name == "posix":
    import fcntl

RUN_NAME = "GLASSGPT_RUN_NAME"  # the variable by which the first process of a run tells the others


def new_run_dir(options: Namespace) -> Path:
    """The folder for a new run, not created yet: --name, by default the last --config's name and the time.

    One of trainer.fast_dev_run leaves nothing.

    A process that Lightning starts for another device gets the name that the first one has found.

    Raises a `Mistake` if a run has this name.
    """
    if options.trainer.fast_dev_run:
        folder = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return Path(folder, "fast_dev_run")
    runs = Path(options.trainer.default_root_dir)
    if options.name is None and RUN_NAME in os.environ and os.environ.get("LOCAL_RANK", "0") != "0":
        return runs / os.environ[RUN_NAME]
    run_dir = runs / (options.name or f"{Path(options.config[-1]).stem}-{time.strftime('%Y%m%d-%H%M%S')}")
    if run_dir.exists():
        raise Mistake(f"{run_dir} exists: choose another --name, or remove it; {Run(run_dir).how_to_resume}")
    os.environ[RUN_NAME] = run_dir.name
    return run_dir


class RunFolder(callbacks.Callback):
    """Creates the run's folder with its config when training begins: a mistake found earlier leaves nothing behind.

    A resumed run has both already. Its config is replaced after every on_train_start hook has accepted the options.

    The folder is locked, so that no two processes train in it, until the process ends, however it ends. The lock leaves
    no file. There is none on Windows and on file systems that cannot lock a folder.
    """

    def __init__(self, config: str, is_new: bool) -> None:
        self.config = config.encode()
        self.is_new = is_new
        self.locked: int | None = None
        if os.name == "posix":  # a loader process that outlives a killed run must not hold the lock
            os.register_at_fork(after_in_child=self.unlock)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        run_dir = Path(trainer.default_root_dir)
        if self.is_new:
            with file_errors(run_dir):
                run_dir.mkdir(parents=True)
            write_atomically(run_dir / CONFIG, self.config)
        self.lock(run_dir)

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        if not self.is_new and trainer.is_global_zero:
            write_atomically(Path(trainer.default_root_dir, CONFIG), self.config)

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self.unlock()

    on_exception = teardown  # after an error Lightning calls this one only

    def lock(self, folder: Path) -> None:
        """Raises a `Mistake` if another process has it."""
        if os.name != "posix":
            return
        self.locked = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self.locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            raise Mistake(f"{folder} is being trained by another process: wait until that has ended") from None
        except OSError:  # a file system that cannot lock a folder
            self.unlock()

    def unlock(self) -> None:
        if self.locked is not None:
            os.close(self.locked)
            self.locked = None
