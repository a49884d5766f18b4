"""From passages to token files: encoded in threads, in order, with about one shard in memory at a time."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from tqdm import tqdm

from data.readers import Passage
from data.store import Shard, file_checksum, finished_shards, shard_json, shard_path
from data.tokenizers import Tokenizer

SHARD_TOKENS = 2**25  # 64 or 128 MB; some seconds of tokenising, which is what a kill can cost
BATCH_CHARS = 2**19  # what a thread encodes at once
QUEUED_BATCHES = 32  # what keeps the threads busy while a shard is written


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
    """Tokenises `passages` into `folder`, after the finished shards that are already there. Logs a damaged one.

    Args:
        fingerprint: of everything that decides the tokens; shards with another one are replaced.
        max_tokens: stop there, even within a document.

    Raises ValueError where there is no text, OSError where the disk is full or cannot be written.
    """
    done = finished_shards(folder, split, fingerprint, warn=True)
    if done and done[-1].is_last:
        return
    index = len(done)
    _remove_unfinished(folder, split, index)
    batches = [] if done else [Encoded(np.array([tokenizer.end_of_text], dtype=tokenizer.dtype), 0)]
    num_tokens = sum(shard.num_tokens for shard in done) or 1
    missing = sys.maxsize if max_tokens is None else max_tokens - num_tokens
    passages = islice(passages, sum(shard.num_passages for shard in done), None)
    try:
        with tqdm(
            desc=f"tokenising {split}", initial=num_tokens, total=max_tokens, unit=" tokens", unit_scale=True
        ) as bar:
            for tokens, num_passages in _encoded(tokenizer, passages, num_threads):
                # More tokens follow, so this shard is not the last one.
                if sum(len(batch.tokens) for batch in batches) >= SHARD_TOKENS:
                    _write_shard(shard_path(folder, split, index), batches, tokenizer, fingerprint, is_last=False)
                    index, batches = index + 1, []
                batches.append(Encoded(tokens[:missing], num_passages))
                bar.update(len(batches[-1].tokens))
                missing -= len(tokens)
                if missing <= 0:
                    break
        if not any(batch.num_passages for batch in batches):
            raise ValueError(
                f"the {split} split of this corpus holds no text: "
                f"set --data.validation_fraction so that both splits get some"
            )
        _write_shard(shard_path(folder, split, index), batches, tokenizer, fingerprint, is_last=True)
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
        checksum=file_checksum(path),
    )
    os.utime(path, (shard.written, shard.written))
    with new_file(path.with_suffix(".json")) as file:
        file.write(shard_json(shard).encode())


def _remove_unfinished(folder: Path, split: str, num_finished: int) -> None:
    finished = {shard_path(folder, split, index).stem for index in range(num_finished)}
    with explained(folder):
        for path in sorted(folder.glob(f"{split}-*")):  # a shard's JSON file before its tokens
            if path.stem not in finished:
                path.unlink()


class Encoded(NamedTuple):
    """Tokens (N,) of some passages, with end-of-text after each finished document."""

    tokens: np.ndarray
    num_passages: int


def _encoded(tokenizer: Tokenizer, passages: Iterable[Passage], num_threads: int) -> Iterator[Encoded]:
    """Encodes `passages` batch by batch, in order. Threads suffice because tiktoken releases the GIL.

    Each thread has its own copy of the tokenizer: in a shared one, the threads wait for each other at every piece,
    which took 15 to 30% more processor time on 2 cores (AMD EPYC).
    """
    own = threading.local()

    def start_thread() -> None:
        own.tokenizer = Tokenizer(tokenizer.name, tokenizer.pattern, tokenizer.ranks, tokenizer.special_tokens)

    failure: Exception | None = None

    def readable() -> Iterator[list[Passage]]:
        nonlocal failure
        try:
            yield from _batches(passages)
        except Exception as error:
            failure = error  # raised once what was read before is encoded, since finished shards are kept

    pending: deque[Future[Encoded]] = deque()
    with ThreadPoolExecutor(num_threads, initializer=start_thread) as pool:
        try:
            for batch in readable():
                pending.append(pool.submit(_encode, own, batch))
                if len(pending) > num_threads + QUEUED_BATCHES:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
    if failure is not None:
        raise failure


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


def _encode(own: threading.local, batch: list[Passage]) -> Encoded:
    tokenizer: Tokenizer = own.tokenizer
    end = np.array([tokenizer.end_of_text])
    pieces = []
    for passage in batch:
        pieces.append(tokenizer.encode_array(passage.text))
        if passage.ends_document:
            pieces.append(end)
    return Encoded(np.concatenate(pieces, dtype=tokenizer.dtype, casting="unsafe"), len(batch))
