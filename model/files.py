"""Files that are whole at every moment: written aside, flushed to the disk, renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears under `path`, all of it, when the block ends, and not at all when the block fails.

    Its folder is made if it is not there. An OSError of the block names `path`: that of a failed write
    names nothing, and others the file aside.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.aside")  # one name: what a kill leaves behind is written over next time
    try:
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        with suppress(OSError):  # it would hide the one that matters
            aside.unlink()
    flush_folder(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    with atomic_file(path) as file:
        file.write(content)


def flush_folder(folder: Path) -> None:
    """Makes renames within `folder` outlast a power cut, where the system can (not on Windows)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
