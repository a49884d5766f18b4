"""The source code of Python's standard library: real text that every machine already has."""

import os
import re
import sysconfig
from pathlib import Path

from data.corpora.files import FileCorpus, split_by_name

# Tests are long and repetitive. Installed packages and compiled files differ from machine to machine.
# config-3.11-x86_64-linux-gnu and _sysconfigdata_* describe how this Python was built.
_SKIPPED_FOLDER = re.compile(r"tests?|idle_test|site-packages|dist-packages|__pycache__|config-.*")
_SOURCE = re.compile(r"(?!_sysconfigdata).*\.py")


def stdlib_corpus(validation_fraction: float) -> FileCorpus:
    """Builds a corpus of the running Python's standard library, without its tests. Each file is one document."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if not _SKIPPED_FOLDER.fullmatch(name)]
        paths += [Path(folder, name) for name in names if _SOURCE.fullmatch(name)]
    paths.sort(key=Path.as_posix)
    return FileCorpus("stdlib", *split_by_name(paths, root, validation_fraction))
