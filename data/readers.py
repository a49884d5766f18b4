"""Reading text: files and tables of any size as passages, with bounded memory.

A passage is a piece of a document that is small enough to hold and is tokenised on its own. Long documents are cut
only where the split pattern of every encoding cuts too, so that the tokens are those of the whole document.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

BLOCK_BYTES = 2**20
# Text without a place to cut is cut anywhere beyond this: for one piece without end, byte-pair encoding needs 50 times
# the memory of the text, in each thread.
MAX_PASSAGE_CHARS = 2**20
MAX_CELL_CHARS = 2**30  # of a table; a quote without its end takes up the rest of the file

# Endings of tables; every other one is read as plain text.
DELIMITERS = {".csv": ",", ".tsv": "\t"}
LOADERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".arrow": "arrow"}  # names in `datasets`
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}  # ending -> name in pyarrow

# Places to cut: between a word and a space before another, or after a single line end between two marks.
_CUTS = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])|(?<=\S\n)(?=[^\s/])")


class Passage(NamedTuple):
    text: str
    ends_document: bool


def table_ending(path: Path) -> str | None:
    """What `path` ends in, such as ".csv", without the ending of a compression; None where it is plain text."""
    endings = [ending.lower() for ending in path.suffixes if ending.lower() not in COMPRESSIONS]
    return endings[-1] if endings and endings[-1] in DELIMITERS | LOADERS else None


@dataclass(frozen=True)
class TextFile:
    """UTF-8 text, plain or compressed: one document.

    `share` is the part of the file to read, as fractions of its bytes; both ends move forward to the next character.
    """

    path: Path
    share: tuple[float, float] = (0.0, 1.0)

    def passages(self) -> Iterator[Passage]:
        """Raises ValueError where the bytes are not text, with their offset."""
        with _naming(self.path):
            yield from _passages(_decoded(self.path, *map(self._offset, self.share)))

    def _offset(self, fraction: float) -> float:
        """The byte at which this fraction of the file ends; infinity for the end of the file."""
        if fraction in (0.0, 1.0):
            return math.inf if fraction else 0
        with _open(self.path) as stream:
            size = stream.seek(0, io.SEEK_END) if stream.seekable() else sum(map(len, _read_blocks(stream)))
        offset = int(size * fraction)
        with _open(self.path) as stream:
            _skip(stream, offset)
            # The first byte from here on that begins a character; the end of the file where its last one was cut.
            following = stream.read(4)
            return offset + next((i for i, byte in enumerate(following) if byte & 0xC0 != 0x80), len(following))


@dataclass(frozen=True)
class TableFile:
    """One document a row of a jsonl, csv, parquet or arrow file.

    `share` is the part of the rows to read, as an interval in [0, 1): a hash of its number puts each row somewhere
    in it, so that a stream can be split before its length is known.
    """

    path: Path
    column: str
    share: tuple[float, float] = (0.0, 1.0)

    def passages(self) -> Iterator[Passage]:
        """Raises ValueError where the file is damaged or lacks the column."""
        with _naming(self.path):
            ending = table_ending(self.path)
            if ending in DELIMITERS:
                texts = self._cells(DELIMITERS[ending])
            else:
                load = import_datasets().load_dataset
                rows = load(LOADERS[ending], data_files=[str(self.path)], split="train", streaming=True)
                texts = column_texts(rows, self.column, str(self.path))
            yield from row_passages(texts, self.share)

    def _cells(self, delimiter: str) -> Iterator[str]:
        csv.field_size_limit(MAX_CELL_CHARS)
        with io.TextIOWrapper(_open(self.path), encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter=delimiter, strict=True)
            try:
                names = next(rows, [])
                _check_column(names, self.column, str(self.path))
                index = names.index(self.column)
                for row in filter(None, rows):
                    if len(row) > len(names):
                        raise csv.Error(f"{len(row)} cells, where the first row has {len(names)}")
                    yield row[index] if index < len(row) else ""
            except csv.Error as error:
                raise ValueError(
                    f"cannot read {self.path}, line {rows.line_num}: {error}; text with a line end, a quote or "
                    f"{delimiter!r} in it must stand in double quotes"
                ) from error


def column_texts(rows: Any, column: str, label: str) -> Iterator[str]:
    """The texts of a `datasets.Dataset` or `IterableDataset`, row by row; "" where a row has none.

    Raises ValueError where `column` does not exist or does not hold text.
    """
    number = 0
    for table in rows.with_format("arrow").iter(batch_size=256):
        _check_column(table.column_names, column, label)
        for text in table[column].to_pylist():
            if text is not None and not isinstance(text, str):
                kind = f"column {column!r} holds {type(text).__name__}, not text, in row {number}"
                raise ValueError(f"{label}: {kind}: {_column_hint(table.column_names)}")
            yield text or ""
            number += 1


def row_passages(texts: Iterable[str], share: tuple[float, float]) -> Iterator[Passage]:
    """One document for each text that is not empty; `share` as in TableFile."""
    low, high = share
    for number, text in enumerate(texts):
        if low <= uniform_hash(str(number)) < high:
            yield from _passages(text[start : start + BLOCK_BYTES] for start in range(0, len(text), BLOCK_BYTES))


def _check_column(names: list[str], column: str, label: str) -> None:
    if column not in names:
        raise ValueError(f"{label} has no column {column!r}: {_column_hint(names)}")


def _column_hint(names: list[str]) -> str:
    return f"set --data.text_column to one of {', '.join(names)}"


def import_datasets() -> ModuleType:
    """`datasets`, which takes seconds to import, silenced: the errors that it also logs are raised here."""
    import datasets
    import huggingface_hub

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    huggingface_hub.logging.set_verbosity(huggingface_hub.logging.CRITICAL)
    return datasets


def uniform_hash(key: str) -> float:
    """A number in [0, 1) that depends on `key` alone: the same on every machine and in every corpus."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") / 2**64


def _passages(pieces: Iterable[str]) -> Iterator[Passage]:
    """The passages of one document that is read piece by piece."""
    held = ""
    for piece in pieces:
        if cut := _last_cut(held):
            yield Passage(held[:cut], ends_document=False)
            held = held[cut:]
        held += piece
    if held:
        yield Passage(held, ends_document=True)


def _last_cut(text: str) -> int:
    """The last place where `text` can be cut without changing its tokens; 0 where there is none."""
    for searched in (2**12, 2**16, len(text)):  # from the end, because a block has thousands of places
        cuts = [found.start() for found in _CUTS.finditer(text, max(len(text) - searched, 0))]
        if cuts and cuts[-1] > 0:
            return cuts[-1]
    return len(text) - 1 if len(text) > MAX_PASSAGE_CHARS else 0


def _decoded(path: Path, start: float, stop: float) -> Iterator[str]:
    """The text between two byte offsets. Raises ValueError where it is not UTF-8 or holds a zero byte."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = int(start)
    with _open(path) as stream:
        _skip(stream, offset)
        for block in chain(_read_blocks(stream, stop - offset), [b""]):
            undecoded = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                raise _not_text(path, offset - undecoded + error.start) from error
            if (zero := block.find(b"\0")) >= 0:
                raise _not_text(path, offset + zero)
            offset += len(block)
            if text:
                yield text


def _not_text(path: Path, offset: int) -> ValueError:
    return ValueError(
        f"{path} is not UTF-8 text at byte offset {offset}: convert it to UTF-8, or leave it out of --data.files"
    )


def _open(path: Path) -> BinaryIO:
    """The bytes of a file, decompressed."""
    if path.suffix.lower() not in COMPRESSIONS:
        return path.open("rb")
    import pyarrow

    return pyarrow.input_stream(str(path), compression=COMPRESSIONS[path.suffix.lower()])


def _read_blocks(stream: BinaryIO, limit: float = math.inf) -> Iterator[bytes]:
    while block := stream.read(int(min(BLOCK_BYTES, limit))):
        yield block
        limit -= len(block)


def _skip(stream: BinaryIO, count: int) -> None:
    if stream.seekable():
        stream.seek(count)
    else:
        for _ in _read_blocks(stream, count):
            pass


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turns what a damaged or unreadable file raises into one sentence that names the file."""
    try:
        yield
    except (OSError, EOFError, zlib.error, ValueError) as error:
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"cannot read {path}: {reason}") from error
