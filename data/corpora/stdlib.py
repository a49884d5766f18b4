"""The source code of Python's standard library: real text that every machine already has."""

import os
import sysconfig
from pathlib import Path

from data.corpora.files import FileCorpus, split_by_name

# Tests are long and repetitive. Installed packages and compiled files differ from machine to machine.
_SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def stdlib_corpus(validation_fraction: float) -> FileCorpus:
    """Builds a corpus of the running Python's standard library, without its tests. Each file is one document."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = []
    for folder, subfolders, names in os.walk(root):
        # config-3.11-x86_64-linux-gnu and _sysconfigdata_* describe how this Python was built.
        subfolders[:] = [name for name in set(subfolders) - _SKIPPED_FOLDERS if not name.startswith("config-")]
        names = [name for name in names if name.endswith(".py") and not name.startswith("_sysconfigdata")]
        paths += [Path(folder, name) for name in names]
    paths.sort(key=lambda path: path.relative_to(root).as_posix())
    return FileCorpus("stdlib", *split_by_name(paths, root, validation_fraction))
