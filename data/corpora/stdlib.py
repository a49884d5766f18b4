"""The source of Python's own standard library: real text that is on every machine."""

import os
import sysconfig
from pathlib import Path

from data.corpora.files import FileCorpus, split_by_name
from model.mistakes import Mistake

# Tests are long and repetitive; installed packages and build products differ from machine to machine.
_SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def stdlib_corpus(validation_fraction: float) -> FileCorpus:
    """The source files of the running Python's standard library without its tests, one document a file."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for folder, subfolders, names in os.walk(root):
        # config-3.11-x86_64-linux-gnu and _sysconfigdata_* describe how this Python was built.
        subfolders[:] = [name for name in set(subfolders) - _SKIPPED_FOLDERS if not name.startswith("config-")]
        names = [name for name in names if name.endswith(".py") and not name.startswith("_sysconfigdata")]
        found += [Path(folder, name) for name in names]
    if not found:
        raise Mistake(f"no source files of the standard library in {root}: name your own with --data.files")
    found.sort(key=lambda path: path.relative_to(root).as_posix())
    return FileCorpus("stdlib", *split_by_name(found, root, validation_fraction))
