"""Writes files atomically: under a temporary name, then flushes them to the disk and renames them. Appends to logs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from model.mistakes import file_errors, parsing

# If a run's folder is given in place of a checkpoint, the first of these that exists is opened.
RUN_CHECKPOINTS = ("checkpoints/best.ckpt", "checkpoints/last.ckpt")
PROBE_FILE, SCORES_FILE = "probe.json", "scores.jsonl"  # in a recording's folder, see model/inspection/recording.py


def content_of(path: Path) -> bytes:
    """Returns the content of a file, b"" if there is no such file."""
    with file_errors(path):
        return path.read_bytes() if path.exists() else b""


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a binary file that replaces `path` when the block ends; if the block fails, `path` is unchanged.

    Creates the folder if necessary. Raises a `Mistake` if the system refuses.
    """
    aside = path.with_name(f".{path.name}.aside")  # a fixed name, so that the next write replaces a killed one's
    with file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        finally:
            with suppress(OSError):  # it is gone after a success; else unlink must not hide the first error
                aside.unlink()
        flush_folder(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces the content of `path` as `atomic_file` does."""
    with atomic_file(path) as file:
        file.write(content)


def append(path: Path, text: str) -> None:
    """Adds text to the end of a file. If a full disk or a kill cuts the text short, the last line has no line end."""
    with file_errors(path), path.open("a", newline="", encoding="utf-8") as file:
        file.write(text)


def whole_lines(path: Path) -> str:
    """Reads such a file, "" if there is none, without a last line that was cut short. Raises Mistake unless UTF-8."""
    content = content_of(path)
    with parsing(path):
        return content[: content.rfind(b"\n") + 1].decode()


def flush_folder(folder: Path) -> None:
    """Makes renames in `folder` survive a power cut. Does nothing on Windows, which cannot flush a folder."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
