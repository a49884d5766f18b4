"""Token files: the tokens of one split as memory-mapped shards.

train-00000.npy, train-00001.npy, ... hold the tokens, uint16 or uint32 by vocabulary. The JSON file beside each says
what made the shard and what it holds. It is written last, once the tokens are on the disk: a shard without its JSON
file is unfinished. A run that was killed leaves its finished shards, and the next run continues after them.

The stream of a split is end-of-text, document, end-of-text, document, ..., end-of-text: every token of the text has
one before it.
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
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tqdm import tqdm

from data.encoding import Encoded, encode_passages
from data.readers import Passage
from data.tokenizers import Tokenizer

FORMAT = "GlassGPT tokens 2"
SHARD_TOKENS = 2**25  # 64 or 128 MB; some seconds of tokenising, which is what a kill can cost

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shard:
    """What made a shard and what it holds: the content of its JSON file.

    `checksum` is the CRC-32 of the token file. `written` is that file's modification time in whole seconds, set by
    the writer: while the file still has this time nobody has changed it, and the checksum need not be computed again.
    """

    fingerprint: str
    num_tokens: int
    num_bytes: int
    num_documents: int
    num_passages: int
    is_last: bool
    file_size: int
    written: int
    checksum: int


class TokenStore:
    """The tokens of one split, memory-mapped.

    Attributes:
        num_tokens, num_bytes, num_documents: of the whole split; bytes are those of its text in UTF-8.
    """

    def __init__(self, folder: Path, split: str, shards: list[Shard]):
        self.num_tokens = sum(shard.num_tokens for shard in shards)
        self.num_bytes = sum(shard.num_bytes for shard in shards)
        self.num_documents = sum(shard.num_documents for shard in shards)
        self._opened_with = folder, split, shards
        self._ends = np.cumsum([shard.num_tokens for shard in shards])
        # In a large split windows lie far apart, and reading ahead of each would be wasted.
        scattered = self.num_tokens > SHARD_TOKENS
        self._arrays = [_mapped(_shard_path(folder, split, index), scattered) for index in range(len(shards))]

    def __reduce__(self):
        # Loader processes open the files again: a pickled memory map would carry its whole content.
        return TokenStore, self._opened_with

    def gather(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Windows of `length` tokens from each of `starts` (B,), as int64 (B, length)."""
        if len(self._arrays) == 1:
            return self._arrays[0][starts[:, None] + np.arange(length)].astype(np.int64)
        windows = np.empty((len(starts), length), dtype=np.int64)
        for window, start in zip(windows, starts, strict=True):
            window[:] = self.read(int(start), length)
        return windows

    def read(self, start: int, length: int) -> np.ndarray:
        """Tokens `start` to `start + length`, or to the end of the split, as int64."""
        pieces = [np.empty(0, dtype=np.int64)]
        for index in range(int(np.searchsorted(self._ends, start, side="right")), len(self._arrays)):
            begin = int(self._ends[index]) - len(self._arrays[index])
            if begin >= start + length:
                break
            pieces.append(self._arrays[index][max(start - begin, 0) : start + length - begin])
        return np.concatenate(pieces)


def open_split(folder: Path, split: str, fingerprint: str) -> TokenStore | None:
    """The split in `folder`, or None where it is not complete."""
    shards = _finished_shards(folder, split, fingerprint)
    return TokenStore(folder, split, shards) if shards and shards[-1].is_last else None


def write_split(
    folder: Path,
    split: str,
    passages: Iterable[Passage],
    tokenizer: Tokenizer,
    *,
    fingerprint: str,
    num_bytes: int | None = None,
    max_tokens: int | None = None,
    num_threads: int = 1,
) -> None:
    """Tokenises `passages` into `folder`, after the finished shards that are already there. Logs a damaged one.

    Args:
        fingerprint: of everything that decides the tokens; shards with another one are replaced.
        num_bytes: UTF-8 bytes of `passages`, about, for the progress bar; None where unknown.
        max_tokens: stop there, even within a document.

    Raises ValueError where there is no text, OSError where the disk is full or cannot be written.
    """
    done = _finished_shards(folder, split, fingerprint, warn=True)
    if done and done[-1].is_last:
        return
    _remove_unfinished(folder, split, len(done))
    encoded = encode_passages(tokenizer, islice(passages, sum(shard.num_passages for shard in done), None), num_threads)
    if max_tokens is not None:
        encoded = _truncated(encoded, max_tokens - max(sum(shard.num_tokens for shard in done), 1))

    index = len(done)
    batches = [] if done else [Encoded(np.array([tokenizer.end_of_text], dtype=tokenizer.dtype), 0)]
    bytes_done = sum(shard.num_bytes for shard in done)
    try:
        with tqdm(desc=f"tokenising {split}", initial=bytes_done, total=num_bytes, unit="B", unit_scale=True) as bar:
            for batch in encoded:
                # Only now it is known that the shard is not the last one.
                if sum(len(held.tokens) for held in batches) >= SHARD_TOKENS:
                    _write_shard(_shard_path(folder, split, index), batches, tokenizer, fingerprint, is_last=False)
                    index, batches = index + 1, []
                batches.append(batch)
                bar.update(tokenizer.num_bytes(batch.tokens))
        if not any(batch.num_passages for batch in batches):
            raise ValueError(
                f"the {split} split of this corpus holds no text: "
                f"set --data.validation_fraction so that both splits get some"
            )
        _write_shard(_shard_path(folder, split, index), batches, tokenizer, fingerprint, is_last=True)
    except BaseException:
        _remove_unfinished(folder, split, index)
        raise


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turns the OSError of a full disk or a folder that cannot be written into a sentence that says what to set."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot write tokens ({error.strerror}): make room, or set --data.cache_dir to another folder",
            str(folder),
        ) from error


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that is on the disk when the block ends, and removed where the block fails."""
    with explained(path.parent):
        try:
            with path.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def _write_shard(path: Path, batches: list[Encoded], tokenizer: Tokenizer, fingerprint: str, is_last: bool) -> None:
    tokens = np.concatenate([batch.tokens for batch in batches])
    with new_file(path) as file:
        # As np.save does it, whose error does not say that the disk is full.
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(tokens))
        file.write(tokens.data)
    shard = Shard(
        fingerprint=fingerprint,
        num_tokens=len(tokens),
        num_bytes=tokenizer.num_bytes(tokens),
        # Each document has end-of-text before it; the last token begins none.
        num_documents=int(np.count_nonzero(tokens[: len(tokens) - is_last] == tokenizer.end_of_text)),
        num_passages=sum(batch.num_passages for batch in batches),
        is_last=is_last,
        file_size=path.stat().st_size,
        written=int(time.time()),
        checksum=_file_checksum(path),
    )
    os.utime(path, (shard.written, shard.written))
    with new_file(path.with_suffix(".json")) as file:
        file.write(shard_json(shard).encode())


def shard_json(shard: Shard) -> str:
    """The content of a shard's JSON file, which carries a checksum of itself."""
    fields = asdict(shard)
    return json.dumps({"format": FORMAT, "shard": fields, "checksum": zlib.crc32(json.dumps(fields).encode())})


def _finished_shards(folder: Path, split: str, fingerprint: str, warn: bool = False) -> list[Shard]:
    """The shards of this split from the first on, up to one that is missing, damaged or has another fingerprint."""
    shards: list[Shard] = []
    while not (shards and shards[-1].is_last):
        path = _shard_path(folder, split, len(shards))
        try:
            shard = _checked_shard(path)
        except FileNotFoundError:
            break
        except ValueError as error:
            if warn:
                _log.warning("%s is damaged (%s) and is made again", path, error)
            break
        if shard.fingerprint != fingerprint:
            break
        shards.append(shard)
    return shards


def _checked_shard(path: Path) -> Shard:
    """Raises ValueError where a file of this shard is not as it was written, FileNotFoundError where one is missing."""
    text = path.with_suffix(".json").read_bytes()
    try:
        shard = Shard(**json.loads(text)["shard"])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError("its JSON file cannot be read") from error
    if text != shard_json(shard).encode():
        raise ValueError("its JSON file is not what was written")
    stat = path.stat()
    if stat.st_size != shard.file_size:
        raise ValueError(f"it has {stat.st_size:,} bytes, not {shard.file_size:,}")
    if stat.st_mtime_ns != shard.written * 10**9:
        if _file_checksum(path) != shard.checksum:
            raise ValueError("its content does not have the checksum that was written")
        with suppress(OSError):  # a cache that cannot be written is checked each time
            os.utime(path, (shard.written, shard.written))
    return shard


def _file_checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(2**24):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _remove_unfinished(folder: Path, split: str, num_finished: int) -> None:
    finished = {_shard_path(folder, split, index).stem for index in range(num_finished)}
    with explained(folder):
        for path in sorted(folder.glob(f"{split}-*")):  # a shard's JSON file before its tokens
            if path.stem not in finished:
                path.unlink()


def _shard_path(folder: Path, split: str, index: int) -> Path:
    return folder / f"{split}-{index:05d}.npy"


def _mapped(path: Path, scattered: bool) -> np.ndarray:
    """The tokens of a shard, read from the disk on access; `scattered`: without reading ahead."""
    array = np.load(path, mmap_mode="r")
    if scattered and hasattr(mmap, "MADV_RANDOM"):
        array.base.madvise(mmap.MADV_RANDOM)
    return np.asarray(array)  # indexing a np.memmap is slower


def _truncated(encoded: Iterator[Encoded], num_tokens: int) -> Iterator[Encoded]:
    for batch in encoded:
        yield Encoded(batch.tokens[:num_tokens], batch.num_passages)
        num_tokens -= len(batch.tokens)
        if num_tokens <= 0:
            return
