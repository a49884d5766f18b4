"""Windows of a token file as batches, for training without end and for validation once.

Letters: B sequences in a batch, T tokens of context.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from data.sampler import WindowSampler
from data.token_cache import TokenStore

IGNORED = -100  # a target that does not count: PyTorch's ignore_index

_BATCHES_DRAWN = 256  # at once, to amortise the cost


@dataclass(eq=False)
class TrainingWindows(IterableDataset):
    """Windows (B, T + 1) of each batch from `first_batch` on, without end; loader workers take turns.

    `repeat_fraction` of them are their own first p tokens over and over, with the p of `WindowSampler.periods`.
    """

    tokens: TokenStore
    sampler: WindowSampler
    first_batch: int
    repeat_fraction: float

    def __iter__(self) -> Iterator[np.ndarray]:
        worker, num_workers = _loader_worker()
        length = self.sampler.context_length + 1
        for first in itertools.count(self.first_batch + worker, num_workers * _BATCHES_DRAWN):
            batches = first + num_workers * np.arange(_BATCHES_DRAWN)
            drawn = self.sampler.starts(batches), self.sampler.periods(batches, self.repeat_fraction)
            for starts, periods in zip(*drawn, strict=True):
                windows = self.tokens.gather(starts, length)
                yield np.take_along_axis(windows, np.arange(length) % periods[:, None], axis=1)


@dataclass(eq=False)
class ValidationWindows(IterableDataset):
    """Adjacent windows (B, T + 1) from the first token to the last; beyond the last token they hold IGNORED."""

    tokens: TokenStore
    context_length: int
    batch_size: int
    rank: int
    world_size: int

    def __len__(self) -> int:
        num_windows = -(-(self.tokens.num_tokens - 1) // self.context_length)
        return -(-num_windows // self.batch_size)

    def __iter__(self) -> Iterator[np.ndarray]:
        share = self.batch_size // self.world_size
        worker, num_workers = _loader_worker()
        for batch in range(worker, len(self), num_workers):
            first = batch * self.batch_size + self.rank * share
            text = np.full(share * self.context_length + 1, IGNORED)
            tokens = self.tokens.read(first * self.context_length, len(text))
            text[: len(tokens)] = tokens
            yield np.lib.stride_tricks.sliding_window_view(text, self.context_length + 1)[:: self.context_length]


def as_batch(windows: np.ndarray, end_of_text: int, with_documents: bool) -> dict[str, Tensor]:
    """Inputs and targets (B, T) of windows (B, T + 1), and on request the number of each token's document (B, T)."""
    tokens = np.maximum(windows[:, :-1], 0)  # any token will do where nothing is predicted
    batch = {"tokens": tokens, "targets": windows[:, 1:].copy()}
    if with_documents:
        batch["document_ids"] = document_ids(tokens, end_of_text)
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def document_ids(tokens: np.ndarray, end_of_text: int) -> np.ndarray:
    """The number of each token's document, (B, T): an end-of-text begins one. What `document_masking` keeps apart."""
    return np.cumsum(tokens == end_of_text, axis=-1)


def _loader_worker() -> tuple[int, int]:
    """This loader process's number and how many there are."""
    info = get_worker_info()
    return (info.id, info.num_workers) if info else (0, 1)
