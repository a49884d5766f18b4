"""How a run begins: its folder gets a name, is created with its config, and is locked."""

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
from model.runs.code import record_code
from model.runs.progress import tell
from model.runs.run import CONFIG, Run

if os.name == "posix":
    import fcntl

RUN_NAME = "GLASSGPT_RUN_NAME"  # environment variable that passes the run's name to the processes for other devices


def new_run_dir(options: Namespace) -> Path:
    """Returns the folder for a new run, which is not created yet. Raises a `Mistake` if it already exists.

    Its name is --name, or by default the name of the last --config and the time. A process that Lightning starts for
    another device gets the name from the first process. With trainer.fast_dev_run, which must leave nothing, the folder
    is a temporary one.
    """
    if options.trainer.fast_dev_run:
        folder = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return Path(folder, "fast_dev_run")
    runs = Path(options.trainer.default_root_dir)
    if options.name is None and RUN_NAME in os.environ and os.environ.get("LOCAL_RANK", "0") != "0":
        return runs / os.environ[RUN_NAME]
    run_dir = runs / (options.name or f"{Path(options.config[-1]).stem}-{time.strftime('%Y%m%d-%H%M%S')}")
    if options.resume_or_start and run_dir.exists() and Run(run_dir).checkpoint is None:
        set_aside(run_dir)
    if run_dir.exists():
        raise Mistake(f"{run_dir} exists: choose another --name, or delete that folder; {Run(run_dir).how_to_resume}")
    os.environ[RUN_NAME] = run_dir.name
    return run_dir


def set_aside(run_dir: Path) -> None:
    """Renames the folder of a run that ended before its first checkpoint. Raises a `Mistake` if it is training."""
    folder = RunFolder("", is_new=False)
    folder.lock(run_dir)
    folder.unlock()
    with file_errors(run_dir):
        run_dir.rename(f"{run_dir}-without-checkpoint-{time.strftime('%Y%m%d-%H%M%S')}")


class RunFolder(callbacks.Callback):
    """The callback that creates the run's folder with its config.yaml and code.json, and locks the folder.

    A new run gets its folder when training begins, so that a mistake found earlier leaves nothing behind. A resumed run
    has one; these files are replaced once all on_train_start hooks have accepted the options.

    The lock keeps two processes from training in one folder. It ends with the process, however that ends, and leaves no
    file. There is no lock on Windows and on file systems that cannot lock a folder.
    """

    def __init__(self, config: str, is_new: bool, command: str = "", code_difference: bool = True) -> None:
        self.config = config.encode()
        self.is_new = is_new
        self.command = command
        self.code_difference = code_difference
        self.locked: int | None = None

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        run_dir = Path(trainer.default_root_dir)
        if self.is_new:
            with file_errors(run_dir):
                run_dir.mkdir(parents=True)
            self.write(trainer)
        self.lock(run_dir)

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        if not self.is_new and trainer.is_global_zero:
            self.write(trainer)

    def write(self, trainer: Trainer) -> None:
        """Writes config.yaml and code.json, and tells what has changed in the code."""
        write_atomically(Path(trainer.default_root_dir, CONFIG), self.config)
        if changes := record_code(trainer, self.command, self.code_difference):
            tell(trainer, changes)

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self.unlock()

    on_exception = teardown  # after an error Lightning calls only this one

    def lock(self, folder: Path) -> None:
        """Locks the folder. Raises a `Mistake` if another process has locked it."""
        if os.name != "posix":
            return
        self.locked = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self.locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            raise Mistake(f"another process is training in {folder}: wait until it has ended") from None
        except OSError:  # a file system that cannot lock a folder
            self.unlock()

    def unlock(self) -> None:
        if self.locked is not None:
            os.close(self.locked)
            self.locked = None
