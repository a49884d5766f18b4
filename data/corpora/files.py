"""A person's own files: text, or tables with one document a row."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from data.tables import table_ending, table_texts
from data.text import WHOLE, Corpus, Passage, Share, file_stamp, row_passages, text_passages, uniform_hash
from model.mistakes import Mistake

Shares = dict[Path, Share]  # the files of a split in their order, and what it reads of each


class FileCorpus(Corpus):
    """Files on this machine: text, and tables with a column of text."""

    def __init__(self, name: str, train: Shares, validation: Shares, column: str = "text", quotes: bool = True):
        self.name, self.column, self.quotes = name, column, quotes
        self.files = {"train": train, "validation": validation}
        self.identity = {
            split: [
                {"path": file_stamp(path), "share": share}
                | ({"column": column, "quotes": quotes} if table_ending(path) else {})
                for path, share in shares.items()
            ]
            for split, shares in self.files.items()
        }

    def passages(self, split: str) -> Iterator[Passage]:
        for path, share in self.files[split].items():
            yield from self._read(path, share)

    def all_passages(self) -> Iterator[Passage]:
        for path in self.files["train"] | self.files["validation"]:  # once, where each has a part of it
            yield from self._read(path, WHOLE)

    def _read(self, path: Path, share: Share) -> Iterator[Passage]:
        if table_ending(path):
            return row_passages(table_texts(path, self.column, self.quotes), share)
        return text_passages(path, share)


def file_corpus(
    files: list[str] | str | None,
    validation_files: list[str] | str | None,
    text_column: str,
    quotes: bool,
    validation_fraction: float,
) -> FileCorpus:
    """Files matching globs ("texts/**/*.txt"): txt, md, py and the like, or tables.

    One text file is split by position, the last `validation_fraction` of its bytes to validate; one table, by row;
    several files, by file, unless `validation_files` are given.

    Raises Mistake where a pattern matches nothing.
    """
    if files is None:
        raise Mistake("data.corpus files needs to know which: set --data.files 'my/*.txt'")
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
    return FileCorpus(name, *shares, text_column, quotes)


def split_by_name(paths: list[Path], root: Path, fraction: float) -> tuple[Shares, Shares]:
    """About `fraction` of the files to validate, at least one and not all; each by a hash of its own name."""
    place = {path: uniform_hash(path.relative_to(root).as_posix()) for path in paths}
    count = sum(place[path] < fraction for path in paths)
    held_out = set(sorted(paths, key=place.__getitem__)[: min(max(count, 1), len(paths) - 1)])
    train = {path: WHOLE for path in paths if path not in held_out}
    return train, {path: WHOLE for path in paths if path in held_out}


def _matches(option: str, patterns: list[str] | str) -> dict[Path, Path]:
    """The files that the patterns match, each once, even if several links or patterns lead to it."""
    found: dict[Path, Path] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        name = os.path.abspath(Path(pattern).expanduser())  # noqa: PTH100 (absolute() keeps a/../b)
        # What exists is meant by its name, which may be a[1].
        matches = [name] if Path(name).exists() else sorted(glob.glob(name, recursive=True))  # noqa: PTH207
        paths = [path for path in map(Path, matches) if not path.is_dir()]
        if not paths:
            raise Mistake(
                f"no file matches {pattern!r} in {Path.cwd()}: give --data.{option} a pattern that matches, such as "
                "'FOLDER/**/*.txt' for the texts in a folder"
            )
        for path in paths:
            found.setdefault(path.resolve(), path)
    return found
