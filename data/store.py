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
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

FORMAT = "GlassGPT tokens 2"

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
        checksum: of all its tokens.
    """

    def __init__(self, folder: Path, split: str, shards: list[Shard]):
        self.num_tokens = sum(shard.num_tokens for shard in shards)
        self.num_bytes = sum(shard.num_bytes for shard in shards)
        self.num_documents = sum(shard.num_documents for shard in shards)
        self.checksum = zlib.crc32(str([shard.checksum for shard in shards]).encode())
        self._opened_with = folder, split, shards
        self._ends = np.cumsum([shard.num_tokens for shard in shards])
        self._arrays = [_mapped(shard_path(folder, split, index), len(shards) > 1) for index in range(len(shards))]

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
    shards = finished_shards(folder, split, fingerprint)
    return TokenStore(folder, split, shards) if shards and shards[-1].is_last else None


def shard_json(shard: Shard) -> str:
    """The content of a shard's JSON file, which carries a checksum of itself."""
    fields = asdict(shard)
    return json.dumps({"format": FORMAT, "shard": fields, "checksum": zlib.crc32(json.dumps(fields).encode())})


def finished_shards(folder: Path, split: str, fingerprint: str, warn: bool = False) -> list[Shard]:
    """The shards of this split from the first on, up to one that is missing, damaged or has another fingerprint."""
    shards: list[Shard] = []
    while not (shards and shards[-1].is_last):
        path = shard_path(folder, split, len(shards))
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
        if file_checksum(path) != shard.checksum:
            raise ValueError("its content does not have the checksum that was written")
        with suppress(OSError):  # a cache that cannot be written is checked each time
            os.utime(path, (shard.written, shard.written))
    return shard


def file_checksum(path: Path) -> int:
    return zlib.crc32(np.memmap(path, mode="r").data)


def shard_path(folder: Path, split: str, index: int) -> Path:
    return folder / f"{split}-{index:05d}.npy"


def _mapped(path: Path, is_large: bool) -> np.ndarray:
    """The tokens of a shard, read from the disk on access."""
    array = np.load(path, mmap_mode="r")
    if is_large and hasattr(mmap, "MADV_RANDOM"):
        # Windows of a large split are far apart: reading ahead of each would be wasted.
        array.base.madvise(mmap.MADV_RANDOM)
    return np.asarray(array)  # indexing a np.memmap is slower
