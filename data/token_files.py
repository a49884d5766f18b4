"""Token files: the tokens of one split, written once and then memory-mapped.

train.bin holds the tokens, bare uint16 or uint32 by vocabulary; train.json says what made them and what they are. Both
are written aside and renamed when they are whole and on the disk, the JSON file last: a split without it does not
exist, and a run that was killed leaves nothing that opens.

The stream of a split is end-of-text, document, end-of-text, document, ..., end-of-text: every token of the text has
one before it.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tqdm import tqdm

from data.readers import Passage
from data.tokenizers import Tokenizer

FORMAT = "GlassGPT tokens 3"
BATCH_CHARS = 2**19  # what a thread encodes at once
QUEUED_BATCHES = 4  # encoded ahead of the disk
LARGE = 2**25  # tokens; windows of a larger split are mostly not in memory

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SplitContent:
    """What made the tokens of a split and what they are: the content of its JSON file.

    `checksum` is the CRC-32 of the token file. `written` is that file's modification time in whole seconds, set by
    the writer: while the file still has this time nobody has changed it, and the checksum need not be computed again.
    """

    fingerprint: str
    dtype: str
    num_tokens: int
    num_bytes: int
    num_documents: int
    written: int
    checksum: int

    def to_json(self) -> str:
        """With a checksum of its own."""
        fields = asdict(self)
        return json.dumps({"format": FORMAT, "split": fields, "checksum": zlib.crc32(json.dumps(fields).encode())})


class TokenStore:
    """The tokens of one split, memory-mapped.

    Attributes:
        num_tokens, num_bytes, num_documents: of the whole split; bytes are those of its text in UTF-8.
        checksum: of all its tokens.
    """

    def __init__(self, path: Path, content: SplitContent):
        self.num_tokens, self.num_bytes = content.num_tokens, content.num_bytes
        self.num_documents, self.checksum = content.num_documents, content.checksum
        self._opened_with = path, content
        tokens = np.memmap(path, content.dtype, mode="r")
        if len(tokens) > LARGE and hasattr(mmap, "MADV_RANDOM"):
            # Windows of a large split are far apart: reading ahead of each would be wasted.
            tokens.base.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
        self._tokens = np.asarray(tokens)  # indexing a np.memmap is slower

    def __reduce__(self):
        # Loader processes open the file again: a pickled memory map would carry its whole content.
        return TokenStore, self._opened_with

    def gather(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Windows of `length` tokens from each of `starts` (B,), as int64 (B, length)."""
        return self._tokens[starts[:, None] + np.arange(length)].astype(np.int64)

    def read(self, start: int, length: int) -> np.ndarray:
        """Tokens `start` to `start + length`, or to the end of the split, as int64."""
        return self._tokens[start : start + length].astype(np.int64)


def open_split(folder: Path, split: str, fingerprint: str, warn: bool = False) -> TokenStore | None:
    """The split in `folder`, or None where it is not there, is damaged or has another fingerprint.

    Args:
        warn: whether to say that it is damaged.
    """
    path = folder / f"{split}.bin"
    try:
        content = _checked_content(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        if warn:
            _log.warning("%s is damaged (%s) and is made again", path, error)
        return None
    return TokenStore(path, content) if content.fingerprint == fingerprint else None


def _checked_content(path: Path) -> SplitContent:
    """Raises ValueError where a file of this split is not as it was written, FileNotFoundError where one is missing."""
    text = path.with_suffix(".json").read_bytes()
    try:
        content = SplitContent(**json.loads(text)["split"])
        is_whole = content.to_json().encode() == text
    except (ValueError, TypeError, KeyError):
        is_whole = False
    if not is_whole:
        raise ValueError("its JSON file is not what was written")
    stat = path.stat()
    size = content.num_tokens * np.dtype(content.dtype).itemsize
    if stat.st_size != size:
        raise ValueError(f"it has {stat.st_size:,} bytes, not {size:,}")
    if stat.st_mtime_ns != content.written * 10**9:
        if zlib.crc32(np.memmap(path, mode="r").data) != content.checksum:
            raise ValueError("its content does not have the checksum that was written")
        with suppress(OSError):  # a cache that cannot be written is checked each time
            os.utime(path, (content.written, content.written))
    return content


def write_split(
    folder: Path,
    split: str,
    passages: Iterable[Passage],
    tokenizer: Tokenizer,
    *,
    fingerprint: str,
    max_tokens: int | None = None,
    num_threads: int = 1,
) -> None:
    """Tokenises `passages` into `folder`, batch by batch, in the place of what is there.

    Args:
        fingerprint: of everything that decides the tokens.
        max_tokens: stop there, even within a document.

    Raises ValueError where there is no text, OSError where the disk is full or cannot be written.
    """
    path = folder / f"{split}.bin"
    limit = max_tokens or sys.maxsize
    num_tokens = num_bytes = num_ends = checksum = 0
    start = np.array([tokenizer.end_of_text], dtype=tokenizer.dtype)
    with explained(folder):
        path.with_suffix(".json").unlink(missing_ok=True)
    with (
        new_file(path) as file,
        tqdm(desc=f"tokenising {split}", total=max_tokens, unit=" tokens", unit_scale=True) as bar,
    ):
        for tokens in chain([start], _encoded(tokenizer, passages, num_threads)):
            tokens = tokens[: limit - num_tokens]
            with explained(folder):
                file.write(tokens.data)
            checksum = zlib.crc32(tokens.data, checksum)
            num_tokens += len(tokens)
            num_bytes += tokenizer.num_bytes(tokens)
            num_ends += int(np.count_nonzero(tokens == tokenizer.end_of_text))
            last = tokens[-1]
            bar.update(len(tokens))
            if num_tokens == limit:
                break
        if num_bytes == 0:
            raise ValueError(
                f"the {split} split of this corpus holds no text: "
                f"set --data.validation_fraction so that both splits get some"
            )
    written = int(time.time())
    os.utime(path, (written, written))
    num_documents = num_ends - int(last == tokenizer.end_of_text)  # each has one before it; the last token begins none
    content = SplitContent(fingerprint, tokenizer.dtype.name, num_tokens, num_bytes, num_documents, written, checksum)
    write_file(path.with_suffix(".json"), content.to_json())


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
    """A file to write, which gets its name when the block has ended and it is on the disk; removed otherwise."""
    partial = path.with_name(f"{path.name}.partial")
    with explained(path.parent):
        file = partial.open("wb")
    try:
        try:
            yield file
            with explained(path.parent):
                file.flush()
                os.fsync(file.fileno())
        finally:
            with explained(path.parent):  # closing writes once more what could not be written
                file.close()
        with explained(path.parent):
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_file(path: Path, content: str) -> None:
    """Writes a whole file, under its name when it is on the disk. Raises OSError as `explained`."""
    with new_file(path) as file, explained(path.parent):
        file.write(content.encode())


def _encoded(tokenizer: Tokenizer, passages: Iterable[Passage], num_threads: int) -> Iterator[np.ndarray]:
    """Tokens (N,) of each batch of `passages`, in order. Threads suffice because tiktoken releases the GIL.

    Each thread has its own copy of the tokenizer: in a shared one, the threads wait for each other at every piece,
    which took 15 to 30% more processor time on 2 cores (AMD EPYC).
    """
    own = threading.local()

    def start_thread() -> None:
        own.tokenizer = Tokenizer(tokenizer.name, tokenizer.pattern, tokenizer.ranks, tokenizer.special_tokens)

    def encode(batch: list[Passage]) -> np.ndarray:
        end = np.array([tokenizer.end_of_text])
        pieces = []
        for passage in batch:
            pieces.append(own.tokenizer.encode_array(passage.text))
            if passage.ends_document:
                pieces.append(end)
        return np.concatenate(pieces, dtype=tokenizer.dtype, casting="unsafe")

    pending: deque[Future[np.ndarray]] = deque()
    with ThreadPoolExecutor(num_threads, initializer=start_thread) as pool:
        try:
            for batch in _batches(passages):
                pending.append(pool.submit(encode, batch))
                if len(pending) > num_threads + QUEUED_BATCHES:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _batches(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    batch: list[Passage] = []
    chars = 0
    for passage in passages:
        batch.append(passage)
        chars += len(passage.text)
        if chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch
