"""Reading text: files and tables of any size as passages, with bounded memory.

A passage is a piece of a document that is small enough to hold and is tokenised on its own. Long documents are cut
only where the split pattern of every encoding cuts too, so that the tokens are those of the whole document.
"""

import codecs
import csv
import hashlib
import io
import math
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

from data.mistakes import Mistake

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

_BLANK_LINES = re.compile(r"\r?\n(?:[ \t]*\r?\n)+")
_FIRST_BLANK_LINES = re.compile(r"\A(?:[ \t]*\r?\n)+")
_BLANK_LINE_BYTES = re.compile(rb"[ \t]*\r?\n")


Share = tuple[float, float]  # the part of a file to read: an interval in [0, 1]
WHOLE: Share = (0.0, 1.0)


class Passage(NamedTuple):
    text: str
    ends_document: bool


def table_ending(path: Path) -> str | None:
    """What `path` ends in, such as ".csv", without the ending of a compression; None where it is plain text."""
    endings = [ending.lower() for ending in path.suffixes if ending.lower() not in COMPRESSIONS]
    return endings[-1] if endings and endings[-1] in DELIMITERS | LOADERS else None


def text_passages(path: Path, blocks: bool = False, share: Share = WHOLE) -> Iterator[Passage]:
    """UTF-8 text, plain or compressed; one document, or one per blank-line block.

    The share counts bytes; both its ends move forward to the next character or, with `blocks`, to the next block.

    Raises Mistake where the bytes are not text, with their offset.
    """
    with _naming(path):
        start, stop = (_offset(path, fraction, blocks) for fraction in share)
        yield from _passages(_decoded(path, int(start), stop), blocks)


def _offset(path: Path, fraction: float, blocks: bool) -> float:
    """The byte at which this fraction of a text ends; infinity for the end of the file."""
    if fraction in (0.0, 1.0):
        return math.inf if fraction else 0
    size = path.stat().st_size
    if is_compressed(path):
        with _open(path) as stream:
            size = sum(map(len, _read_blocks(stream)))
    offset = int(size * fraction)
    with _open(path, offset) as stream:
        if not blocks:
            # The first byte from here on that begins a character; the end of the file where its last one was cut.
            following = stream.read(4)
            return offset + next((i for i, byte in enumerate(following) if byte & 0xC0 != 0x80), len(following))
        begins_line, after_blank = False, False
        while line := stream.readline(BLOCK_BYTES):  # or a part of it
            if after_blank and line.strip():
                return offset
            after_blank = after_blank or (begins_line and _BLANK_LINE_BYTES.fullmatch(line) is not None)
            begins_line = line.endswith(b"\n")
            offset += len(line)
    raise Mistake(
        f"{path} has no blank line with text after it in its last {1 - fraction:.0%}, where validation would begin: "
        f"write --data.documents file, or a larger --data.validation_fraction"
    )


def table_passages(path: Path, column: str, share: Share = WHOLE) -> Iterator[Passage]:
    """One document a row of a jsonl, csv, parquet or arrow file; the share is one of the rows, as in `row_passages`.

    Raises Mistake where the file is damaged or lacks the column.
    """
    with _naming(path):
        ending = table_ending(path)
        if ending in DELIMITERS:
            yield from row_passages(_cells(path, column, DELIMITERS[ending]), share)
            return
        with tempfile.TemporaryDirectory() as folder:
            file = path
            if is_compressed(path) and ending in (".parquet", ".arrow"):  # formats that need seeking
                file = Path(folder, path.stem)
                with _open(path) as packed, file.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked, BLOCK_BYTES)
            loader = import_datasets().load_dataset
            rows = loader(LOADERS[ending], data_files=[str(file)], split="train", streaming=True)
            yield from row_passages(column_texts(rows, column, str(path)), share)


def _cells(path: Path, column: str, delimiter: str) -> Iterator[str]:
    csv.field_size_limit(MAX_CELL_CHARS)
    with io.TextIOWrapper(_open(path), encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            names = next(rows, [])
            index = _column_index(names, column, str(path))
            for row in filter(None, rows):
                if len(row) > len(names):
                    raise csv.Error(f"{len(row)} cells, where the first row has {len(names)}")
                yield row[index] if index < len(row) else ""
        except csv.Error as error:
            raise Mistake(
                f"cannot read {path}, line {rows.line_num}: {error}; text with a line end, a quote or {delimiter!r} in "
                "it must stand in double quotes"
            ) from error


def column_texts(rows: Any, column: str, label: str) -> Iterator[str]:
    """The texts of a `datasets.Dataset` or `IterableDataset`, row by row; "" where a row has none.

    Raises Mistake where `column` does not exist or does not hold text.
    """
    number = 0
    for table in rows.with_format("arrow").iter(batch_size=256):
        _column_index(table.column_names, column, label)
        for text in table[column].to_pylist():
            if text is not None and not isinstance(text, str):
                raise Mistake(
                    f"{label}: column {column!r} holds {type(text).__name__}, not text, in row {number}: "
                    f"set --data.text_column to one of {', '.join(table.column_names)}"
                )
            yield text or ""
            number += 1


def row_passages(texts: Iterable[str], share: Share) -> Iterator[Passage]:
    """One document for each text that is not empty.

    A hash of its number puts each row somewhere in [0, 1), so that a stream can be split before its length is known.
    """
    low, high = share
    for number, text in enumerate(texts):
        if low <= uniform_hash(str(number)) < high:
            pieces = (text[start : start + BLOCK_BYTES] for start in range(0, len(text), BLOCK_BYTES))
            yield from _passages(pieces, blocks=False)


def _column_index(names: list[str], column: str, label: str) -> int:
    if column not in names:
        raise Mistake(f"{label} has no column {column!r}: set --data.text_column to one of {', '.join(names)}")
    return names.index(column)


def import_datasets() -> ModuleType:
    """`datasets`, which takes seconds to import, silenced: the errors that it also logs are raised here."""
    import datasets
    import huggingface_hub

    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # or the Hub is told of each table, a local one too
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    huggingface_hub.logging.set_verbosity(huggingface_hub.logging.CRITICAL)
    return datasets


def uniform_hash(key: str) -> float:
    """A number in [0, 1) that depends on `key` alone: the same on every machine and in every corpus."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") / 2**64


def _passages(pieces: Iterable[str], blocks: bool) -> Iterator[Passage]:
    """The passages of a text that is read piece by piece; of one document, or of one per block."""
    held = ""
    for piece in pieces:
        if (not blocks or len(held) > MAX_PASSAGE_CHARS) and (cut := _last_cut(held)):
            yield Passage(held[:cut], ends_document=False)
            held = held[cut:]
        held += piece
        if blocks:
            *complete, held = _BLANK_LINES.split(held)
            yield from (Passage(text, ends_document=True) for block in complete if (text := _stripped(block)))
    if text := _stripped(held) if blocks else held:
        yield Passage(text, ends_document=True)


def _stripped(block: str) -> str:
    """`block` without the blank lines around it; its first line keeps its indentation."""
    return _FIRST_BLANK_LINES.sub("", block).rstrip("\r\n") if block.strip() else ""


def _last_cut(text: str) -> int:
    """The last place where `text` can be cut without changing its tokens; 0 where there is none."""
    for searched in (2**12, 2**16, len(text)):  # from the end, because a block has thousands of places
        cuts = [found.start() for found in _CUTS.finditer(text, max(len(text) - searched, 0))]
        if cuts and cuts[-1] > 0:
            return cuts[-1]
    return len(text) - 1 if len(text) > MAX_PASSAGE_CHARS else 0


def _decoded(path: Path, start: int, stop: float) -> Iterator[str]:
    """The text between two byte offsets. Raises Mistake where it is not UTF-8 or holds a zero byte."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = start
    with _open(path, start) as stream:
        for block in chain(_read_blocks(stream, stop - start), [b""]):
            undecoded = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
                if (zero := undecoded + block.find(b"\0")) >= undecoded:
                    raise UnicodeDecodeError("utf-8", block, zero, zero + 1, "no text")
            except UnicodeDecodeError as error:
                raise Mistake(
                    f"{path} is not UTF-8 text at byte offset {offset - undecoded + error.start}: convert it to UTF-8, "
                    "or leave it out of --data.files"
                ) from error
            if not offset:  # the beginning of the file, where an editor may have put a byte order mark
                text = text.removeprefix("\ufeff")
            offset += len(block)
            if text:
                yield text


def is_compressed(path: Path) -> bool:
    return path.suffix.lower() in COMPRESSIONS


def _open(path: Path, start: int = 0) -> BinaryIO:
    """The bytes of a file from `start` on, decompressed."""
    if not is_compressed(path):
        stream = path.open("rb")
        stream.seek(start)
        return stream
    import pyarrow

    packed = pyarrow.input_stream(str(path), compression=COMPRESSIONS[path.suffix.lower()])
    unpacked = io.BufferedReader(packed)
    for _ in _read_blocks(unpacked, start):  # it cannot seek
        pass
    return unpacked


def _read_blocks(stream: BinaryIO, limit: float = math.inf) -> Iterator[bytes]:
    while block := stream.read(int(min(BLOCK_BYTES, limit))):
        yield block
        limit -= len(block)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turns what a damaged or unreadable file raises into one sentence that names the file."""
    try:
        yield
    except (OSError, EOFError, zlib.error, ValueError) as error:
        if isinstance(error, Mistake):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        reason = "it is not UTF-8 text: convert it to UTF-8" if isinstance(error, UnicodeDecodeError) else reason
        raise Mistake(f"cannot read {path}: {reason}") from error
