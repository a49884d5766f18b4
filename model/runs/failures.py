"""What the machine does to a run, as one sentence that says what to do: no memory, no room, a killed loader process."""

from __future__ import annotations

import errno
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from model.runs.folder import CHECKPOINTS, LAST

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_MEMORY = ("can't allocate memory", "not enough memory")  # RuntimeErrors of torch's CPU allocators


@contextmanager
def explained(run_dir: Path) -> Iterator[None]:
    """Raises MemoryError, ChildProcessError or OSError with such a sentence; other errors pass."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(words in str(error) for words in NO_MEMORY):
            raise MemoryError(
                "out of memory: lower data.batch_size, data.validation_batch_size or model.gpt.context_length"
                + how_to_resume(run_dir)
            ) from error
        if "DataLoader worker" in str(error):
            reason = str(error).splitlines()[0].split(". ")[0]
            raise ChildProcessError(
                f"a process that loads data has ended ({reason}), often for want of memory: lower data.num_workers"
                + how_to_resume(run_dir)
            ) from error
        raise
    except OSError as error:
        if error.errno in NO_ROOM and "make room" not in error.strerror:
            error.strerror += ": make room" + how_to_resume(run_dir)
        raise


def how_to_resume(run_dir: Path) -> str:
    """The end of a sentence; empty for a run without a checkpoint."""
    has_checkpoint = (run_dir / CHECKPOINTS / LAST).exists()
    return f", then continue with --resume {shlex.quote(str(run_dir))}" if has_checkpoint else ""
