"""Where text comes from: the standard library, a person's files, a Hugging Face data set."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SPLITS = ("train", "validation")

# Tests are long and repetitive; installed packages and build products differ from machine to machine.
_STDLIB_SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class FileCorpus:
    """Text files, one document a file, split by file."""

    name: str
    train: tuple[Path, ...]
    validation: tuple[Path, ...]

    def documents(self, split: str) -> Iterator[str]:
        for path in getattr(self, split):
            if text := path.read_bytes().decode():
                yield text


def stdlib(validation_fraction: float = 0.1) -> FileCorpus:
    """The source files of the running Python's standard library, without its tests, ordered by relative path."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = {}
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _STDLIB_SKIPPED_FOLDERS and "config-" not in name]
        for name in names:
            if name.endswith(".py") and not name.startswith("_sysconfigdata"):
                path = Path(folder, name)
                found[path.relative_to(root).as_posix()] = path
    train, validation = [], []
    for relative in sorted(found):
        (validation if _uniform(relative) < validation_fraction else train).append(found[relative])
    return FileCorpus("stdlib", tuple(train), tuple(validation))


def _uniform(key: str) -> float:
    """A number in [0, 1) that depends on `key` alone, so that a file keeps its split whatever lies beside it."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") / 2**64
