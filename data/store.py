"""Token files: memory-mapped shards, each behind a header that says what made it.

A split lies in one folder as train-00000.bin, train-00001.bin, ... A shard is 4096 bytes of header (`head -n 3` shows
it) and then its tokens, uint16 or uint32 by vocabulary, in this machine's byte order. The stream of a split is
end-of-text, document, end-of-text, document, ..., end-of-text: every token of the text has one before it.

Shards appear whole or not at all, so those that a killed run has finished are kept and the next goes on behind them.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data.encoding import Encoded, encode_passages
from data.readers import Passage
from data.tokenizers import Tokenizer

MAGIC = "GlassGPT tokens 1"
HEADER_BYTES = 4096
SHARD_TOKENS = 2**25  # seconds of tokenising: what a kill can cost
_CHECKSUM_BLOCK = 2**24

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShardHeader:
    """What made a shard, and what it holds.

    `written` is the time of the file's last change in whole seconds, set by the writer: while a file still carries
    it, nobody has touched the file, and the checksum of its tokens (CRC-32) need not be computed again.
    """

    fingerprint: str
    dtype: str
    num_tokens: int
    num_bytes: int
    num_documents: int
    num_passages: int
    is_last: bool
    written: int
    tokens_checksum: int


class TokenStore:
    """The tokens of one split, memory-mapped.

    Attributes:
        num_tokens, num_bytes, num_documents: of the whole split; bytes are those of its text in UTF-8.
    """

    def __init__(self, folder: Path, split: str, headers: list[ShardHeader]):
        self.num_tokens = sum(header.num_tokens for header in headers)
        self.num_bytes = sum(header.num_bytes for header in headers)
        self.num_documents = sum(header.num_documents for header in headers)
        self._folder, self._split, self._headers = folder, split, headers
        self._ends = np.cumsum([header.num_tokens for header in headers])
        # Beyond a shard, windows lie far apart: the megabytes that a system reads ahead of each are read for nothing.
        scattered = self.num_tokens > SHARD_TOKENS
        self._shards = [
            _mapped(_shard_path(folder, split, index), header, scattered) for index, header in enumerate(headers)
        ]

    def __reduce__(self):
        # A pickled memmap would carry its whole content to every loader process.
        return TokenStore, (self._folder, self._split, self._headers)

    def gather(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Windows of `length` tokens from each of `starts` (B,), as int64 (B, length)."""
        if len(self._shards) == 1:
            return self._shards[0][starts[:, None] + np.arange(length)].astype(np.int64)
        first = np.searchsorted(self._ends, starts, side="right")
        last = np.searchsorted(self._ends, starts + (length - 1), side="right")
        windows = np.empty((len(starts), length), dtype=np.int64)
        for shard in np.unique(first[first == last]):
            rows = np.flatnonzero((first == shard) & (last == shard))
            offsets = starts[rows] - (self._ends[shard] - len(self._shards[shard]))
            windows[rows] = self._shards[shard][offsets[:, None] + np.arange(length)]
        for row in np.flatnonzero(first != last):
            windows[row] = self.read(int(starts[row]), length)
        return windows

    def read(self, start: int, length: int) -> np.ndarray:
        """Tokens `start` to `start + length`, or to the end of the split, as int64."""
        pieces = [np.empty(0, dtype=np.int64)]
        for shard, end in zip(self._shards, self._ends, strict=True):
            begin = end - len(shard)
            pieces.append(shard[max(start - begin, 0) : max(start + length - begin, 0)].astype(np.int64))
        return np.concatenate(pieces)


def open_split(folder: Path, split: str, fingerprint: str) -> TokenStore | None:
    """The split as it lies in `folder`, or None where it is not whole."""
    headers, _ = _sound_shards(folder, split, fingerprint)
    return TokenStore(folder, split, headers) if headers and headers[-1].is_last else None


def write_split(
    folder: Path,
    split: str,
    passages: Iterable[Passage],
    tokenizer: Tokenizer,
    *,
    fingerprint: str,
    num_bytes: int | None = None,
    max_tokens: int | None = None,
    num_processes: int = 1,
) -> None:
    """Tokenises `passages` into `folder`, behind the sound shards that are already there. Logs a damaged one.

    Args:
        num_bytes: UTF-8 bytes of `passages`, about, for the progress bar; None where nobody knows.
        max_tokens: stop there, even within a document.

    Raises ValueError where there is no text, OSError where the disk is full or cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done, damage = _sound_shards(folder, split, fingerprint)
    if damage:
        _log.warning("%s and is made again", damage)
    if done and done[-1].is_last:
        return
    for path in folder.glob(f"{split}-*"):
        if path not in {_shard_path(folder, split, index) for index in range(len(done))}:
            path.unlink()

    remaining = islice(passages, sum(header.num_passages for header in done), None)
    encoded = encode_passages(tokenizer, remaining, num_processes)
    if max_tokens is not None:
        encoded = _truncated(encoded, max_tokens - max(sum(header.num_tokens for header in done), 1), tokenizer)
    if not done:
        encoded = _begin_stream(encoded, tokenizer)
    encoded = _with_progress(encoded, split, num_bytes, done)

    index = len(done)
    shard: _ShardWriter | None = None
    try:
        for batch in encoded:
            # A shard is finished only once there is more to write, so that the last one is known to be the last.
            if shard is not None and shard.num_tokens >= SHARD_TOKENS:
                shard.finish(is_last=False)
                shard, index = None, index + 1
            if shard is None:
                shard = _ShardWriter(_shard_path(folder, split, index), fingerprint, tokenizer.dtype)
            shard.write(batch)
        if shard is None:
            raise ValueError(
                f"the {split} split of this corpus holds no text: "
                f"set --data.validation_fraction so that both splits get some"
            )
        shard.finish(is_last=True)
    finally:
        encoded.close()  # or else the bar would be drawn once more behind the sentence that tells of an error
        if shard is not None:
            shard.discard()


def write_atomically(path: Path, content: bytes) -> None:
    """Writes aside, flushes, renames: `path` is what it was, or whole."""
    aside = path.with_suffix(".partial")
    with _naming_folder(path.parent), aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


class _ShardWriter:
    """Writes aside, flushes, renames: the shard's own name never stands for half a file."""

    def __init__(self, path: Path, fingerprint: str, dtype: np.dtype):
        self.num_tokens = 0
        self._path, self._fingerprint, self._dtype = path, fingerprint, dtype
        self._num_bytes = self._num_documents = self._num_passages = self._checksum = 0
        self._aside = path.with_suffix(".partial")
        with _naming_folder(path.parent):
            self._file = self._aside.open("wb")
            self._file.write(bytes(HEADER_BYTES))

    def write(self, batch: Encoded) -> None:
        content = batch.tokens.astype(self._dtype, copy=False).tobytes()
        with _naming_folder(self._path.parent):
            self._file.write(content)
        self._checksum = zlib.crc32(content, self._checksum)
        self.num_tokens += len(batch.tokens)
        self._num_bytes += batch.num_bytes
        self._num_documents += batch.num_documents
        self._num_passages += batch.num_passages

    def finish(self, is_last: bool) -> None:
        header = ShardHeader(
            fingerprint=self._fingerprint,
            dtype=self._dtype.name,
            num_tokens=self.num_tokens,
            num_bytes=self._num_bytes,
            num_documents=self._num_documents,
            num_passages=self._num_passages,
            is_last=is_last,
            written=int(time.time()),
            tokens_checksum=self._checksum,
        )
        with _naming_folder(self._path.parent):
            self._file.seek(0)
            self._file.write(_header_text(header).encode().ljust(HEADER_BYTES))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.utime(self._aside, (header.written, header.written))
            self._aside.replace(self._path)

    def discard(self) -> None:
        """Leaves nothing half-written; after `finish` there is nothing to do."""
        with suppress(OSError):  # a full disk is reported once
            self._file.close()
        self._aside.unlink(missing_ok=True)


@contextmanager
def _naming_folder(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot write tokens ({error.strerror}): make room, or set --data.cache_dir to another folder",
            str(folder),
        ) from error


def _shard_path(folder: Path, split: str, index: int) -> Path:
    return folder / f"{split}-{index:05d}.bin"


def _mapped(path: Path, header: ShardHeader, scattered: bool) -> np.ndarray:
    """The tokens of a shard, read when they are looked at; `scattered`: nothing around them is read ahead."""
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if scattered and hasattr(mmap, "MADV_RANDOM"):
        content.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(content, header.dtype, header.num_tokens, HEADER_BYTES)


def _sound_shards(folder: Path, split: str, fingerprint: str) -> tuple[list[ShardHeader], str]:
    """Headers of the shards of this split from the first on, up to where one is missing, damaged or of another make.

    And what to say of a damaged one; nothing where there is none.
    """
    headers: list[ShardHeader] = []
    while not (headers and headers[-1].is_last):
        path = _shard_path(folder, split, len(headers))
        if not path.exists():
            break
        try:
            header = _checked_header(path)
        except ValueError as error:
            return headers, f"{path} is damaged ({error})"
        if header.fingerprint != fingerprint:
            break
        headers.append(header)
    return headers, ""


def _checked_header(path: Path) -> ShardHeader:
    """Raises ValueError where the file is not as the writer left it."""
    with path.open("rb") as file:
        try:
            magic, fields, checksum = file.read(HEADER_BYTES).decode().rstrip().split("\n")
            header = ShardHeader(**json.loads(fields))
        except (ValueError, TypeError) as error:
            raise ValueError("its header cannot be read") from error
        if magic != MAGIC or checksum != _checksum_line(fields):
            raise ValueError("its header is not what was written")
        stat = os.fstat(file.fileno())
        size = HEADER_BYTES + header.num_tokens * np.dtype(header.dtype).itemsize
        if stat.st_size != size:
            raise ValueError(f"it has {stat.st_size:,} bytes, not {size:,}")
        if stat.st_mtime_ns == header.written * 10**9:
            return header
        found = 0
        while block := file.read(_CHECKSUM_BLOCK):
            found = zlib.crc32(block, found)
        if found != header.tokens_checksum:
            raise ValueError("its tokens do not have the checksum that was written")
    with suppress(OSError):  # a cache that may only be read is checked each time
        os.utime(path, (header.written, header.written))
    return header


def _header_text(header: ShardHeader) -> str:
    fields = json.dumps(asdict(header))
    return f"{MAGIC}\n{fields}\n{_checksum_line(fields)}\n"


def _checksum_line(fields: str) -> str:
    return f"{zlib.crc32(fields.encode()):08x}"


def _begin_stream(encoded: Iterator[Encoded], tokenizer: Tokenizer) -> Iterator[Encoded]:
    for first in encoded:
        yield replace(first, tokens=np.insert(first.tokens, 0, tokenizer.end_of_text))
        yield from encoded


def _truncated(encoded: Iterator[Encoded], num_tokens: int, tokenizer: Tokenizer) -> Iterator[Encoded]:
    for batch in encoded:
        if len(batch.tokens) >= num_tokens:
            tokens = batch.tokens[:num_tokens]
            text = tokenizer.encoding.decode_bytes(tokens[tokens != tokenizer.end_of_text].tolist())
            documents = np.count_nonzero(tokens[:-1] == tokenizer.end_of_text) + 1
            yield replace(batch, tokens=tokens, num_bytes=len(text), num_documents=int(documents))
            return
        yield batch
        num_tokens -= len(batch.tokens)


def _with_progress(
    encoded: Iterator[Encoded], split: str, num_bytes: int | None, done: list[ShardHeader]
) -> Iterator[Encoded]:
    documents = sum(header.num_documents for header in done)
    with tqdm(
        desc=f"tokenising {split}",
        initial=sum(header.num_bytes for header in done),
        total=num_bytes,
        unit="B",
        unit_scale=True,
    ) as bar:
        for batch in encoded:
            yield batch
            documents += batch.num_documents
            bar.set_postfix_str(f"{documents:,} documents", refresh=False)
            bar.update(batch.num_bytes)
