"""Windows of a token file as batches: their order, training without end, validation once.

Window n of training and whether it repeats itself are pure functions of (seed, n). So all that a run remembers of its
place in the text is how many windows it has read: the next ones do not depend on how many make a batch.

Letters: B windows in a batch over all devices, T tokens in a window, N windows in an epoch.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from data.token_cache import TokenStore
from model.mistakes import Mistake

IGNORED = -100  # a target that does not count: PyTorch's ignore_index
SHORTEST_PERIOD = 8  # tokens; below it, the few tokens just before are enough to predict the next one

_ROUNDS = 8


@dataclass(frozen=True)
class Repeats:
    """Which training windows are their own first tokens over and over.

    fraction: share of the windows with a number from `begin` to below `end` that repeat their own text.
    random_fraction: share of all windows that repeat random tokens. A window that would do both does this.
    """

    fraction: float = 0.0
    begin: int = 0
    end: float = math.inf
    random_fraction: float = 0.0


class WindowSampler:
    """Windows of T inputs and their targets, in a new random order and at a new offset in every epoch.

    An epoch is a permutation of the N adjacent windows that begin at a random offset below T: each is seen exactly
    once, and the offset moves the cuts between them. Memory does not depend on the size of the corpus.
    """

    def __init__(self, num_tokens: int, context_length: int, seed: int):
        """Raises Mistake where the stream is too short for one window."""
        if num_tokens < context_length + 1:
            raise Mistake(
                f"context_length {context_length:,} needs at least {context_length + 1:,} tokens of training text, "
                f"but there are {num_tokens:,}: use a shorter context_length or more text"
            )
        self.context_length = context_length
        self.seed = seed
        # As many as fit after every offset, so that all epochs have the same length.
        self.windows_per_epoch = max((num_tokens - context_length) // context_length, 1)
        self._offsets = min(context_length, num_tokens - self.windows_per_epoch * context_length)

    def starts(self, numbers: np.ndarray) -> np.ndarray:
        """First token of each window, by its number since the beginning of training: int64, shaped like `numbers`."""
        epochs, positions = np.divmod(numbers, self.windows_per_epoch)
        starts = np.empty_like(numbers)
        for epoch in np.unique(epochs):
            key = _mix(_mix(self.seed) ^ int(epoch))
            here = epochs == epoch
            windows = permute(positions[here], self.windows_per_epoch, key)
            starts[here] = windows * self.context_length + _mix(key) % self._offsets
        return starts

    def periods(self, numbers: np.ndarray, fraction: float | np.ndarray) -> np.ndarray:
        """After how many tokens each window of `starts` begins again: int64, shaped like `numbers`.

        `fraction` of the windows (one number, or one for each), evenly spread, repeat themselves after p tokens, p
        log-uniform in 8..T/2 (or T/2 where that is less): where a few distances return often, a model learns these
        instead of looking for the same token. The others have a period of T + 1, all of them with the last target.
        """
        is_repeated = np.floor((numbers + 1) * fraction) > np.floor(numbers * fraction)
        uniform = _mix_array(numbers.astype(np.uint64) ^ np.uint64(_mix(~self.seed))) / 2.0**64
        longest = max(self.context_length // 2, 1)
        periods = SHORTEST_PERIOD * ((longest + 1) / SHORTEST_PERIOD) ** uniform
        return np.where(is_repeated, np.minimum(periods.astype(np.int64), longest), self.context_length + 1)

    def draw(self, number: int, vocabulary: np.ndarray) -> np.ndarray:
        """Random tokens for the window of this number: as many different ones of `vocabulary` as it can hold."""
        key, size = _mix(_mix(self.seed + 1) ^ int(number)), len(vocabulary)
        return vocabulary[permute(np.arange(min(self.context_length, size)), size, key)]


@dataclass(eq=False)
class TrainingWindows(IterableDataset):
    """Windows (B', T + 1) of each batch from window `first_window` on, without end.

    A window that `repeats` is its first p tokens over and over, with the p of `WindowSampler.periods`.

    vocabulary: the ids that random tokens are drawn from.
    rows: the B' of the B windows in a batch that this device reads.
    """

    tokens: TokenStore
    sampler: WindowSampler
    first_window: int
    repeats: Repeats
    vocabulary: list[int]
    batch_size: int
    rows: range

    def __iter__(self) -> Iterator[np.ndarray]:
        length, vocabulary = self.sampler.context_length + 1, np.array(self.vocabulary)
        for batch in _own_turns(itertools.count()):
            numbers = self.first_window + batch * self.batch_size + np.array(self.rows)
            windows = self.tokens.gather(self.sampler.starts(numbers), length)
            random_periods = self.sampler.periods(numbers, self.repeats.random_fraction)
            for place in np.flatnonzero(random_periods < length):
                drawn = self.sampler.draw(numbers[place], vocabulary)
                windows[place, : len(drawn)] = drawn
            repeats_text = (self.repeats.begin <= numbers) & (numbers < self.repeats.end)
            text_periods = self.sampler.periods(numbers, np.where(repeats_text, self.repeats.fraction, 0.0))
            periods = np.minimum(text_periods, random_periods)
            yield np.take_along_axis(windows, np.arange(length) % periods[:, None], axis=1)


@dataclass(eq=False)
class ValidationWindows(IterableDataset):
    """Adjacent windows (B', T + 1) from the first token to the last; beyond the last token they hold IGNORED."""

    tokens: TokenStore
    context_length: int
    batch_size: int
    rows: range

    def __len__(self) -> int:
        num_windows = -(-(self.tokens.num_tokens - 1) // self.context_length)
        return -(-num_windows // self.batch_size)

    def __iter__(self) -> Iterator[np.ndarray]:
        for batch in _own_turns(range(len(self))):
            first = batch * self.batch_size + self.rows.start
            text = np.full(len(self.rows) * self.context_length + 1, IGNORED)
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
    """The number of each token's document, (..., T): an end-of-text begins one. What `document_masking` keeps apart."""
    return np.cumsum(tokens == end_of_text, axis=-1)


def _own_turns(batches: Iterable[int]) -> Iterator[int]:
    """The batches of this loader process: several take turns."""
    worker = get_worker_info()
    return itertools.islice(batches, worker.id, None, worker.num_workers) if worker else iter(batches)


def permute(positions: np.ndarray, size: int, key: int) -> np.ndarray:
    """Images of `positions` (each in [0, size)) under a random permutation of range(size) that `key` chooses.

    A Feistel network (Luby and Rackoff 1988) permutes the smallest even number of bits that holds `size`; an image
    outside of it is permuted again until it falls inside ("cycle walking", Black and Rogaway 2002).
    """
    half = np.uint64(max((size - 1).bit_length() + 1, 2) // 2)
    low_bits = (np.uint64(1) << half) - np.uint64(1)
    round_keys = [np.uint64(_mix(key + number)) for number in range(1, _ROUNDS + 1)]

    images = positions.astype(np.uint64)
    outside = np.arange(len(images))
    while len(outside):
        left, right = images[outside] >> half, images[outside] & low_bits
        for round_key in round_keys:
            left, right = right, left ^ (_mix_array(right ^ round_key) & low_bits)
        images[outside] = (left << half) | right
        outside = outside[images[outside] >= size]
    return images.astype(np.int64)


def _mix_array(values: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014): uint64 to well-mixed uint64, element by element."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@lru_cache  # every batch of an epoch asks for the same
def _mix(value: int) -> int:
    golden_gamma = 0x9E3779B97F4A7C15
    return int(_mix_array(np.array([(value + golden_gamma) % 2**64], dtype=np.uint64))[0])
