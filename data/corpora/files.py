"""The user's own files: text, or tables with one document per row."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data.tables import COMPRESSIONS, table_ending, table_texts
from data.text import WHOLE, Corpus, Passage, Share, file_stamp, row_passages, text_passages, uniform_hash
from model.mistakes import Mistake

PACKED = (*COMPRESSIONS, ".lz4", ".zip", ".tar", ".tgz", ".7z")  # endings of files that are no text
Shares = dict[Path, Share]  # the files of a split, in order, and which part of each file belongs to the split


class FileCorpus(Corpus):
    """Text files and tables on this machine. reading: options for `table_texts`."""

    def __init__(self, name: str, train: Shares, validation: Shares, **reading: Any):
        self.name, self.reading = name, reading
        self.files = {"train": train, "validation": validation}
        self.identity = {**reading}
        for split, shares in self.files.items():
            self.identity[split] = [[file_stamp(path), share] for path, share in shares.items()]

    def passages(self, split: str) -> Iterator[Passage]:
        for path, share in self.files[split].items():
            yield from self._read(path, share)

    def all_passages(self) -> Iterator[Passage]:
        for path in self.files["train"] | self.files["validation"]:  # each file once, even if the splits share it
            yield from self._read(path, WHOLE)

    def _read(self, path: Path, share: Share) -> Iterator[Passage]:
        if table_ending(path):
            return row_passages(table_texts(path, **self.reading), share)
        return text_passages(path, share)


def file_corpus(
    files: list[str] | str | None,
    validation_files: list[str] | str | None,
    text_column: str,
    quotes: bool,
    validation_fraction: float,
) -> FileCorpus:
    """Builds a corpus of the files that match glob patterns ("texts/**/*.txt"): tables, and plain text of any ending.

    Without `validation_files`, a single text file is split by position (the last `validation_fraction` of its bytes
    are for validation), a single table by row, and several files by file.

    Raises Mistake if a pattern matches nothing.
    """
    if not files:
        raise Mistake("data.corpus files needs to know which files: set --data.files, for example to 'my/*.txt'")
    validation = _matches("validation_files", validation_files or [])
    train = [path for file, path in _matches("files", files).items() if file not in validation]
    root = Path(os.path.commonpath([path.parent for path in (*train, *validation.values())]))
    name = train[0].stem if len(train) == 1 else root.name or "files"
    if validation:
        shares = dict.fromkeys(train, WHOLE), dict.fromkeys(validation.values(), WHOLE)
    elif len(train) == 1:
        cut = 1 - validation_fraction
        shares = {train[0]: (0.0, cut)}, {train[0]: (cut, 1.0)}
    else:
        shares = split_by_name(train, root, validation_fraction)
    return FileCorpus(name, *shares, column=text_column, quotes=quotes)


def split_by_name(paths: list[Path], root: Path, fraction: float) -> tuple[Shares, Shares]:
    """Splits `paths` into files to train on and files to validate on, about `fraction` of all: at least one of each.

    A hash of each path below `root` decides, so a file added below `root` hardly ever moves another to the other split.
    """
    hashes = {path: uniform_hash(path.relative_to(root).as_posix()) for path in paths}
    count = sum(number < fraction for number in hashes.values())
    held_out = set(sorted(paths, key=hashes.__getitem__)[: min(max(count, 1), len(paths) - 1)])
    train = {path: WHOLE for path in paths if path not in held_out}
    return train, {path: WHOLE for path in paths if path in held_out}


def _matches(option: str, patterns: list[str] | str) -> dict[str, Path]:
    """Returns the files that match the patterns, by resolved path: each file once, even if several links lead to it."""
    files: dict[str, Path] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        name = os.path.abspath(os.path.expanduser(pattern))  # noqa: PTH100 (absolute() keeps a/../b)
        # The name of an existing file is not a pattern, though it may look like one: a[1].txt.
        matches = [name] if Path(name).exists() else sorted(glob.glob(name, recursive=True))  # noqa: PTH207
        paths = [path for path in map(Path, matches) if not path.is_dir()]
        if not paths:
            raise Mistake(
                f"no file matches {pattern!r} in {Path.cwd()}: set --data.{option} to a pattern that matches, such as "
                "'FOLDER/**/*.txt' for all text files in a folder"
            )
        for path in paths:
            if path.is_fifo():
                raise Mistake(
                    f"{path} is a pipe: write its text to a file, because text is read from places within one"
                )
            if path.suffix.lower() in PACKED and not table_ending(path):
                raise Mistake(f"{path} is packed: unpack it first, because text is read from places within the file")
            files.setdefault(os.path.realpath(path), path)
    return files
