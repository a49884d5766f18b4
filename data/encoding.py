"""From passages to tokens, in worker processes, in order, with a few batches in memory at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np

from data.readers import Passage
from data.tokenizers import Tokenizer

BATCH_CHARS = 2**19


@dataclass(frozen=True)
class Encoded:
    """The tokens (N,) of some passages, end-of-text after each finished document, and what they were made of."""

    tokens: np.ndarray
    num_bytes: int
    num_documents: int
    num_passages: int


def encode_passages(tokenizer: Tokenizer, passages: Iterable[Passage], num_processes: int) -> Iterator[Encoded]:
    """Batches of `passages`, encoded, in order; with one process, in this one.

    Raises ChildProcessError where a worker dies.
    """
    batches = _batches(passages)
    if num_processes == 1:
        for batch in batches:
            yield _encode(tokenizer, batch)
        return
    pool = ProcessPoolExecutor(num_processes, initializer=_start_worker, initargs=(tokenizer,))
    pending: deque[Future[Encoded]] = deque()
    try:
        for batch in batches:
            pending.append(pool.submit(_encode_in_worker, batch))
            if len(pending) > 2 * num_processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "a tokenising process was killed, most likely for want of memory: set --data.num_processes lower"
        ) from error
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


def _encode(tokenizer: Tokenizer, batch: list[Passage]) -> Encoded:
    end = np.array([tokenizer.end_of_text], dtype=tokenizer.dtype)
    pieces = []
    for passage in batch:
        pieces.append(tokenizer.encode_array(passage.text).astype(tokenizer.dtype))
        if passage.ends_document:
            pieces.append(end)
    return Encoded(
        tokens=np.concatenate(pieces),
        num_bytes=sum(len(passage.text.encode()) for passage in batch),
        num_documents=sum(passage.ends_document for passage in batch),
        num_passages=len(batch),
    )


_worker_tokenizer: Tokenizer


def _start_worker(tokenizer: Tokenizer) -> None:
    global _worker_tokenizer
    _worker_tokenizer = tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers itself
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Nobody else would end the workers of a parent that was killed: they would wait for its next batch forever.
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def _encode_in_worker(batch: list[Passage]) -> Encoded:
    return _encode(_worker_tokenizer, batch)
