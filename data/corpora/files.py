"""A person's own files: text, or tables with one document a row."""

import glob
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

from data.corpora.corpus import SPLITS, Corpus, file_stamp
from data.readers import Passage, TableFile, TextFile, table_ending, uniform_hash

Reader = TextFile | TableFile


class FileCorpus(Corpus):
    """Files on this machine below `root`."""

    def __init__(self, name: str, root: Path, train: Iterable[Reader], validation: Iterable[Reader]):
        self.name = name
        self.files = dict(zip(SPLITS, (list(train), list(validation)), strict=True))
        self.identity = {
            split: [{**asdict(file), "path": file_stamp(file.path, root)} for file in files]
            for split, files in self.files.items()
        }

    def passages(self, split: str) -> Iterator[Passage]:
        for file in self.files[split]:
            yield from file.passages()

    def all_passages(self) -> Iterator[Passage]:
        whole = [replace(file, share=(0.0, 1.0)) for files in self.files.values() for file in files]
        for file in dict.fromkeys(whole):  # once, where each split has a part of it
            yield from file.passages()


def file_corpus(
    files: list[str] | str | None,
    validation_files: list[str] | str | None,
    documents: str,
    text_column: str,
    validation_fraction: float,
) -> FileCorpus:
    """Files matching globs ("texts/**/*.txt"): txt, md, py and the like, or tables.

    One text file is split by position, the last `validation_fraction` of its bytes to validate; one table, by row;
    several files, by file, unless `validation_files` are given.

    Raises FileNotFoundError where a pattern matches nothing, ValueError where all matches are empty.
    """
    if files is None:
        raise ValueError("data.corpus files needs to know which: set --data.files 'my/*.txt'")

    def reader(path: Path, share: tuple[float, float] = (0.0, 1.0)) -> Reader:
        if table_ending(path):
            return TableFile(path, text_column, share)
        return TextFile(path, documents == "block", share)

    validation = _matches("validation_files", validation_files or [])
    train = [path for path in _matches("files", files) if path not in set(validation)]
    if not train:
        raise ValueError(f"data.validation_files matches every file of data.files {files!r}: none is left to train on")
    root = Path(os.path.commonpath([path.parent for path in train + validation]))
    name = train[0].stem if len(train) == 1 else root.name or "files"
    if len(train) == 1 and not validation:
        cut = 1 - validation_fraction
        return FileCorpus(name, root, [reader(train[0], (0.0, cut))], [reader(train[0], (cut, 1.0))])
    if not validation:
        train, validation = split_by_name(train, root, validation_fraction)
    return FileCorpus(name, root, map(reader, train), map(reader, validation))


def split_by_name(paths: list[Path], root: Path, fraction: float) -> tuple[list[Path], list[Path]]:
    """About `fraction` of the files to validate, at least one and not all; each by a hash of its own name."""
    place = {path: uniform_hash(path.relative_to(root).as_posix()) for path in paths}
    count = sum(place[path] < fraction for path in paths)
    validation = set(sorted(paths, key=place.__getitem__)[: min(max(count, 1), len(paths) - 1)])
    return [path for path in paths if path not in validation], [path for path in paths if path in validation]


def _matches(option: str, patterns: list[str] | str) -> list[Path]:
    found: dict[Path, None] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        literal = Path(pattern).expanduser()
        # What exists is meant by its name, which may be a[1]; Path.glob refuses absolute patterns.
        folder = next(path for path in (literal, *literal.parents) if path.exists())
        inside = glob.glob(str(literal.relative_to(folder)), root_dir=folder, recursive=True)  # noqa: PTH207
        matches = sorted(path.absolute() for path in ([literal] if literal.exists() else map(folder.joinpath, inside)))
        paths = [path for path in matches if not path.is_dir()]
        if not paths and matches:
            raise ValueError(f"{pattern} is a folder: write '{pattern.rstrip('/')}/**/*.txt' to read the texts in it")
        if not paths:
            raise FileNotFoundError(f"no file matches {pattern!r} in {Path.cwd()}: set --data.{option} to others")
        found.update(dict.fromkeys(paths))
    if found and not any(path.stat().st_size for path in found):
        names = ", ".join(repr(str(path)) for path in found)
        raise ValueError(f"{names} is empty: set --data.{option} to files that hold text")
    return list(found)
