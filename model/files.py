"""Atomic file writing: a file is written under another name, flushed to the disk and renamed. Records are appended."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from model.mistakes import file_errors

# The checkpoint that is meant by a run's folder: the first of these that is there.
RUN_CHECKPOINTS = ("checkpoints/best.ckpt", "checkpoints/last.ckpt")


def content_of(path: Path) -> bytes:
    """What a file holds, nothing if there is no such file."""
    with file_errors(path):
        return path.read_bytes() if path.exists() else b""


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears at `path`, complete, when the block ends; if the block fails, `path` is unchanged.

    The folder is created if necessary. Raises a `Mistake` where the system refuses.
    """
    aside = path.with_name(f".{path.name}.aside")  # a fixed name, so that the next write replaces what a kill left
    with file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        finally:
            with suppress(OSError):  # after success there is nothing to remove; after an error that one matters
                aside.unlink()
        flush_folder(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces the content of `path`, see `atomic_file`."""
    with atomic_file(path) as file:
        file.write(content)


def append(path: Path, text: str) -> None:
    """Adds text to the end of a file. What a full disk or a kill cuts short there has no line end."""
    with file_errors(path), path.open("a", newline="", encoding="utf-8") as file:
        file.write(text)


def flush_folder(folder: Path) -> None:
    """Makes renames in `folder` survive a power cut; does nothing on Windows, which cannot."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
