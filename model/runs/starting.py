"""How a run begins: its folder gets a name, is created and locked."""

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jsonargparse import Namespace
from lightning.pytorch.utilities import rank_zero_only

from model.mistakes import Mistake, file_errors
from model.runs.run import ATTENTION, CHECKPOINTS, Run

if os.name == "posix":
    import fcntl

RUN_NAME = "GLASSGPT_RUN_NAME"  # environment variable that passes the run's name to the processes for other devices


def is_first_process() -> bool:
    """Whether this process is the first of a run, before its Trainer is built. The others serve other devices."""
    # Without SLURM and torchrun only NODE_RANK tells the first process of the second node.
    return rank_zero_only.rank == 0 and os.environ.get("NODE_RANK", "0") == "0"


def new_run_dir(options: Namespace) -> Path:
    """Creates the folder of a new run at once, so that no other process takes its name; see `training_in`.

    Its name is --name, or by default the name of the last --config and the time, with -2, -3, ... if that is taken.
    Only the first process creates it. A process that Lightning starts for another device gets the name from the first.

    Raises a `Mistake` if --name is taken, is no name of a folder in runs/, or is that of a folder within a run.
    """
    runs = Path(os.path.expanduser(options.trainer.default_root_dir))  # as Lightning expands it
    now = time.strftime("%Y%m%d-%H%M%S")
    if not is_first_process():
        name = options.name or os.environ.get(RUN_NAME)
        if name is None:
            raise Mistake("processes that another program starts for one run need its --name")
        return runs / name
    if options.name is None:
        name = f"{Path(options.config[-1]).stem}-{now}"
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        run_dir = next(folder for folder in map(runs.joinpath, names) if _create(folder))
    else:
        run_dir = runs / options.name
        if options.name in ("", "..", CHECKPOINTS, ATTENTION) or run_dir.name != options.name:
            raise Mistake(
                f"--name {options.name} cannot be the name of a run's folder in {runs}: write another, or set "
                "--trainer.default_root_dir to put runs into another folder"
            )
        if options.resume_or_start and run_dir.exists() and Run(run_dir).checkpoint is None:
            with training_in(run_dir), file_errors(run_dir):  # it ended before its first checkpoint
                run_dir.rename(f"{run_dir}-without-checkpoint-{now}")
        if not _create(run_dir):
            how = Run(run_dir).how_to_resume
            raise Mistake(f"{run_dir} exists ({how}): choose another --name, or delete that folder")
    os.environ[RUN_NAME] = run_dir.name
    return run_dir


def _create(folder: Path) -> bool:
    """Creates a folder. Returns False if it exists already."""
    with file_errors(folder):
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not folder.exists():  # something else is in the way, such as a broken link
                raise
            return False
    return True


@contextmanager
def training_in(folder: Path) -> Iterator[None]:
    """Keeps other processes from training in a run's folder. Removes it at the end, and runs/, if they are empty then.

    The lock leaves no file, and ends with the process at the latest. There is none on Windows, on file systems that
    cannot lock a folder, and for the processes of a run after the first.

    Raises a `Mistake` if another process trains in it.
    """
    descriptor = None
    if os.name == "posix" and is_first_process():
        with file_errors(folder):
            descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise Mistake(f"another process is training in {folder}: wait until it has ended") from None
        except OSError:  # a file system that cannot lock a folder
            pass
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
        for unused in (folder, folder.parent):
            with suppress(OSError):
                unused.rmdir()  # refuses a folder that holds something
