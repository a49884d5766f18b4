"""Where text comes from: the standard library, a person's files, or a data set that `datasets` can load.

A corpus is cheap to describe and slow to read. Building one looks at names, sizes and dates only, so that a run
whose tokens are cached starts at once; `passages` reads the text, in an order that never changes.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data.readers import Passage, TableFile, TextFile, import_datasets, row_passages, table_format, uniform_hash

SPLITS = ("train", "validation")

# Tests are long and repetitive; installed packages and build products differ from machine to machine.
_STDLIB_SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}

# What data sets call the split that is not trained on; "test" is left for those who test.
_VALIDATION_NAMES = ("validation", "valid", "val", "dev")


class Corpus(ABC):
    """Documents in two splits. `name` is for people; `identity` is plain data that changes when the text may have."""

    name: str
    identity: dict[str, Any]

    @abstractmethod
    def passages(self, split: str) -> Iterator[Passage]:
        """The text of "train" or "validation", in order. Raises ValueError or OSError for what cannot be read."""

    @abstractmethod
    def num_bytes(self, split: str) -> int | None:
        """UTF-8 bytes of a split, about, without reading it; None where only reading would tell."""

    @property
    def fingerprint(self) -> str:
        """Hex digest of `identity`."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class FileCorpus(Corpus):
    """Files on this machine, each read by a TextFile or a TableFile."""

    name: str
    identity: dict[str, Any]
    train: tuple[TextFile | TableFile, ...]
    validation: tuple[TextFile | TableFile, ...]

    def passages(self, split: str) -> Iterator[Passage]:
        for file in getattr(self, split):
            yield from file.passages()

    def num_bytes(self, split: str) -> int | None:
        sizes = [file.num_bytes() for file in getattr(self, split)]
        return None if None in sizes else sum(sizes)


def stdlib(validation_fraction: float = 0.1) -> FileCorpus:
    """The source files of the running Python's standard library without its tests, one document a file."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = set(subfolders) - _STDLIB_SKIPPED_FOLDERS
        # config-3.11-x86_64-linux-gnu and _sysconfigdata_* tell how this Python was built.
        subfolders[:] = [name for name in subfolders if not name.startswith("config-")]
        for name in names:
            if name.endswith(".py") and not name.startswith("_sysconfigdata"):
                found.append(Path(folder, name))
    if not found:
        raise FileNotFoundError(f"no source files of the standard library in {root}: name your own with --data.files")
    found.sort(key=lambda path: path.relative_to(root).as_posix())
    train, validation = _split_by_name(found, root, validation_fraction)
    return _file_corpus("stdlib", root, [TextFile(path) for path in train], [TextFile(path) for path in validation])


def files(
    patterns: Sequence[str],
    *,
    validation_patterns: Sequence[str] = (),
    blocks: bool = False,
    text_column: str = "text",
    validation_fraction: float = 0.1,
) -> FileCorpus:
    """Local files matching globs ("texts/**/*.txt"): txt, md, py and the like, or tables of one document a row.

    One text file is split by position, the last `validation_fraction` of its bytes to validate; one table, by row;
    several files, by file, unless `validation_patterns` names those to validate on.

    Args:
        blocks: text files hold one document per blank-line block, rather than one in all.
        text_column: the column of jsonl, csv, parquet and arrow files that holds the text.

    Raises FileNotFoundError where a pattern matches nothing, ValueError where all matches are empty.
    """

    def reader(path: Path, share: tuple[float, float] = (0.0, 1.0)) -> TextFile | TableFile:
        return TableFile(path, text_column, share) if table_format(path) else TextFile(path, blocks, share)

    validation = _matches(validation_patterns)
    train = [path for path in _matches(patterns) if path not in set(validation)]
    if not train:
        raise ValueError(f"every file of {_quoted(patterns)} is one to validate on: none is left to train on")
    root = Path(os.path.commonpath([path.parent for path in train + validation]))
    name = train[0].stem if len(train) == 1 else root.name or "files"
    if validation or len(train) > 1:
        if not validation:
            train, validation = _split_by_name(train, root, validation_fraction)
        return _file_corpus(name, root, map(reader, train), map(reader, validation))

    cut = 1 - validation_fraction
    head, tail = reader(train[0], (0.0, cut)), reader(train[0], (cut, 1.0))
    return _file_corpus(name, root, [head], [tail])


@dataclass(frozen=True)
class HubCorpus(Corpus):
    """One document a row of a data set on the Hugging Face Hub, or of a local folder that `datasets` can load."""

    name: str
    identity: dict[str, Any]
    dataset: str
    config: str | None
    split: str
    validation_split: str | None
    text_column: str
    revision: str | None
    streaming: bool
    validation_fraction: float

    def passages(self, split: str) -> Iterator[Passage]:
        """Raises ConnectionError where the Hub cannot be reached, ValueError where a split or column is missing."""
        by_name = self._load()
        own = self.validation_split or next((name for name in _VALIDATION_NAMES if name in by_name), None)
        for name in filter(None, (self.split, self.validation_split)):
            if name not in by_name:
                raise ValueError(f"data set {self.dataset!r} has no split {name!r}: it has {', '.join(by_name)}")
        if own is not None and own != self.split:
            rows, share = by_name[own if split == "validation" else self.split], (0.0, 1.0)
        else:
            cut = self.validation_fraction
            rows, share = by_name[self.split], (0.0, cut) if split == "validation" else (cut, 1.0)
        yield from row_passages(rows, self.text_column, f"data set {self.dataset!r}", share)

    def num_bytes(self, split: str) -> int | None:
        return None

    def _load(self) -> dict[str, Any]:
        datasets = import_datasets()
        path = Path(self.dataset).expanduser()
        try:
            if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
                saved = datasets.load_from_disk(str(path))
                return saved if isinstance(saved, dict) else {self.split: saved}
            local = path.is_dir()
            return datasets.load_dataset(
                str(path) if local else self.dataset,
                self.config,
                revision=self.revision,
                # A local folder is read where it lies: without streaming, `datasets` would copy it into its cache.
                streaming=self.streaming or local,
            )
        except datasets.exceptions.DatasetNotFoundError as error:
            raise ValueError(
                f"no data set {self.dataset!r} on the Hugging Face Hub, or it asks for a login (hf auth login)"
            ) from error
        except ConnectionError as error:
            raise ConnectionError(
                f"cannot reach the Hugging Face Hub for {self.dataset!r}: offline, set --data.dataset to a folder of "
                f"parquet, jsonl or arrow files, or train on --data.corpus stdlib, which is on every machine"
            ) from error


def hub(
    dataset: str,
    config: str | None = None,
    *,
    split: str = "train",
    validation_split: str | None = None,
    text_column: str = "text",
    revision: str | None = None,
    streaming: bool = False,
    validation_fraction: float = 0.1,
) -> HubCorpus:
    """A data set by its name on the Hub ("roneneldan/TinyStories"), or a folder of parquet, jsonl or arrow files.

    Validates on `validation_split`, or else on the data set's own validation split, or else on
    `validation_fraction` of the rows of `split`. With `streaming`, rows are read as they arrive and never stored.
    """
    path = Path(dataset).expanduser()
    if dataset.startswith((".", "/", "~")) and not path.is_dir():
        raise FileNotFoundError(f"--data.dataset {dataset}: there is no such folder")
    options = {
        "dataset": dataset,
        "config": config,
        "split": split,
        "validation_split": validation_split,
        "text_column": text_column,
        "revision": revision,
        "streaming": streaming,
        "validation_fraction": validation_fraction,
    }
    identity = {"hub": options}
    if path.is_dir():
        identity["files"] = [_stamp(file, path) for file in sorted(path.rglob("*")) if file.is_file()]
    return HubCorpus(name=path.name, identity=identity, **options)


def _matches(patterns: Sequence[str]) -> list[Path]:
    found: dict[Path, None] = {}
    for pattern in patterns:
        literal = Path(pattern).expanduser()
        matches = [literal]  # a file may be called a[1].txt
        if not literal.exists():
            matches = [Path(match) for match in glob.glob(str(literal), recursive=True)]  # noqa: PTH207 (Path.glob: no "/...")
        paths = sorted(path.absolute() for path in matches if not path.is_dir())
        if not paths and matches:
            raise ValueError(f"{pattern} is a folder: write '{pattern.rstrip('/')}/**/*.txt' to read the texts in it")
        if not paths:
            raise FileNotFoundError(f"no file matches {pattern!r} in {Path.cwd()}: set --data.files to existing ones")
        found.update(dict.fromkeys(paths))
    if found and not any(path.stat().st_size for path in found):
        raise ValueError(f"{_quoted(map(str, found))} is empty: set --data.files to files that hold text")
    return list(found)


def _split_by_name(paths: list[Path], root: Path, fraction: float) -> tuple[list[Path], list[Path]]:
    """About `fraction` of the files to validate, at least one and not all; each by a hash of its own name."""
    place = {path: uniform_hash(path.relative_to(root).as_posix()) for path in paths}
    ranked = sorted(paths, key=place.__getitem__)
    count = sum(place[path] < fraction for path in paths)
    validation = set(ranked[: min(max(count, 1), len(paths) - 1)])
    return [path for path in paths if path not in validation], [path for path in paths if path in validation]


def _file_corpus(
    name: str, root: Path, train: Iterable[TextFile | TableFile], validation: Iterable[TextFile | TableFile]
) -> FileCorpus:
    splits = dict(zip(SPLITS, (tuple(train), tuple(validation)), strict=True))
    identity = {
        split: [{**asdict(file), "path": _stamp(file.path, root)} for file in files] for split, files in splits.items()
    }
    return FileCorpus(name, identity, **splits)


def _stamp(path: Path, root: Path) -> list[str | int]:
    """What tells that a file has changed, without reading it: name, bytes, nanoseconds of its last change."""
    stat = path.stat()
    return [path.relative_to(root).as_posix(), stat.st_size, stat.st_mtime_ns]


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
