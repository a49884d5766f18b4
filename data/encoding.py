"""From passages to tokens: encoded in threads, in order, with a few batches in memory at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from data.readers import Passage
from data.tokenizers import Tokenizer

BATCH_CHARS = 2**19


class Encoded(NamedTuple):
    """Tokens (N,) of some passages, with end-of-text after each finished document."""

    tokens: np.ndarray
    num_passages: int


def encode_passages(tokenizer: Tokenizer, passages: Iterable[Passage], num_threads: int) -> Iterator[Encoded]:
    """Encodes `passages` batch by batch, in order. Threads suffice because tiktoken releases the GIL."""
    pending: deque[Future[Encoded]] = deque()
    with ThreadPoolExecutor(num_threads) as pool:
        for batch in _batches(passages):
            pending.append(pool.submit(_encode, tokenizer, batch))
            if len(pending) > 2 * num_threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


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
    return Encoded(np.concatenate(pieces), len(batch))
