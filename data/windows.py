"""Cuts a token file into windows and yields them in batches: shuffled and endless for training, once for validation.

For a given text, training window n is a pure function of (seed, n), and the step decides whether it may repeat itself.
So a run stores its place in the text as one number, the windows read so far, and which windows come next does not
depend on the batch size.

Letters: B windows in a batch over all devices, B' of them on this device, T tokens in a window, N windows in an epoch.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from data.token_cache import TokenStore
from data.tokenizers import Tokenizer
from model.mistakes import Mistake

IGNORED = -100  # a target that every loss skips: the default ignore_index of PyTorch's cross_entropy
SHORTEST_PERIOD = 8  # tokens; with a shorter period, the last few tokens are enough to predict the next one

_ROUNDS = 8  # in the Feistel network of `permute`


@dataclass(frozen=True)
class Repeats:
    """Says which training windows repeat their own first tokens over and over.

    fraction: share of the windows that repeat their text, from step `begin` up to, but not including, step `end`.
    random_fraction: share of all windows that repeat random tokens, even if `fraction` selects them as well.
    """

    fraction: float = 0.0
    begin: int = 0
    end: float = math.inf
    random_fraction: float = 0.0


class TrainingWindows:
    """Windows of T inputs and T targets, by their number since the beginning of training.

    An epoch consists of N adjacent windows and reads each exactly once, in random order. The first window begins at a
    random offset below T, so the cuts between windows differ from epoch to epoch. Memory does not grow with the corpus.
    """

    def __init__(self, tokens: TokenStore, context_length: int, seed: int, repeats: Repeats, tokenizer: Tokenizer):
        """Raises Mistake if the text is too short for one window. tokenizer: the one of `tokens`."""
        num_tokens = tokens.num_tokens
        if num_tokens < context_length + 1:
            raise Mistake(
                f"context_length {context_length:,} needs at least {context_length + 1:,} tokens of training text, "
                f"but there are {num_tokens:,}: use a shorter context_length or more text"
            )
        self.tokens, self.context_length, self.seed = tokens, context_length, seed
        self.repeats, self.tokenizer = repeats, tokenizer
        # As many windows as fit after the largest offset, so that all epochs have the same length.
        self.windows_per_epoch = max((num_tokens - context_length) // context_length, 1)
        self._offsets = min(context_length, num_tokens - self.windows_per_epoch * context_length)

    def read(self, numbers: np.ndarray, step: int) -> np.ndarray:
        """Returns windows (B', T + 1) of a training step.

        A window that `repeats` selects holds its own first p tokens over and over, with p from `periods`.
        """
        length = self.context_length + 1
        windows = self.tokens.gather(self.starts(numbers), length)
        is_random = evenly_spread(numbers, self.repeats.random_fraction)
        is_in_range = self.repeats.begin <= step < self.repeats.end
        is_repeated = is_random | (is_in_range & evenly_spread(numbers, self.repeats.fraction))
        periods = np.where(is_repeated, self.periods(numbers), length)
        for row in np.flatnonzero(is_random):
            drawn = self.draw(numbers[row])
            windows[row, : len(drawn)] = drawn
            periods[row] = min(periods[row], len(drawn))
        return np.take_along_axis(windows, np.arange(length) % periods[:, None], axis=1)

    def starts(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the position in the text of each window's first token: int64, shaped like `numbers`."""
        epochs, positions = np.divmod(numbers, self.windows_per_epoch)
        starts = np.empty_like(numbers)
        for epoch in np.unique(epochs):
            key = _mix(_mix(self.seed) ^ int(epoch))
            is_in_epoch = epochs == epoch
            windows = permute(positions[is_in_epoch], self.windows_per_epoch, key)
            starts[is_in_epoch] = windows * self.context_length + _mix(key) % self._offsets
        return starts

    def periods(self, numbers: np.ndarray) -> np.ndarray:
        """Returns after how many tokens each window starts over if it repeats itself: int64, shaped like `numbers`.

        A period is log-uniform in 8..T/2; it is T/2 if T is below 16. Periods vary because a model that often meets the
        same few distances learns these distances, instead of looking for the same token.
        """
        uniform = _mix_array(numbers.astype(np.uint64) ^ np.uint64(_mix(~self.seed))) / 2.0**64
        longest = max(self.context_length // 2, 1)
        periods = SHORTEST_PERIOD * ((longest + 1) / SHORTEST_PERIOD) ** uniform
        return np.minimum(periods.astype(np.int64), longest)

    def draw(self, number: int) -> np.ndarray:
        """Returns random tokens for window `number`: T distinct ones without end-of-text, or all if there are fewer."""
        key, size = _mix(_mix(self.seed + 1) ^ int(number)), self.tokenizer.vocab_size - 1
        tokens = permute(np.arange(min(self.context_length, size)), size, key)
        return tokens + (tokens >= self.tokenizer.end_of_text)


def evenly_spread(numbers: np.ndarray, fraction: float) -> np.ndarray:
    """Returns which `numbers` belong to an evenly spaced `fraction` of all integers: bool, shaped like `numbers`."""
    return np.floor((numbers + 1) * fraction) > np.floor(numbers * fraction)


def adjacent_windows(tokens: TokenStore, context_length: int, first: int, count: int) -> np.ndarray:
    """Returns `count` windows (B', T + 1), from number `first` on; after the last token they hold IGNORED."""
    text = np.full(count * context_length + 1, IGNORED)
    found = tokens.read(first * context_length, len(text))
    text[: len(found)] = found
    return np.lib.stride_tricks.sliding_window_view(text, context_length + 1)[::context_length]


@dataclass
class Batches:
    """An iterable of batches, with a length, which Lightning asks for. read: returns a batch, by its number."""

    numbers: range
    read: Callable[[int], dict[str, Tensor]]

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return map(self.read, self.numbers)


def as_batch(windows: np.ndarray, end_of_text: int, with_documents: bool) -> dict[str, Tensor]:
    """Splits windows (B, T + 1) into inputs and targets (B, T); `with_documents` adds `document_ids` (B, T).

    An end-of-text begins a document.
    """
    tokens = np.maximum(windows[:, :-1], 0)  # IGNORED is no token: 0 takes its place, and no loss counts it
    batch = {"tokens": tokens, "targets": windows[:, 1:].copy()}
    if with_documents:
        batch["document_ids"] = np.cumsum(tokens == end_of_text, axis=-1)
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def permute(positions: np.ndarray, size: int, key: int) -> np.ndarray:
    """Returns where the random permutation of range(size) that belongs to `key` takes `positions`, each in [0, size).

    A Feistel network (Luby and Rackoff 1988) permutes all numbers of 2 k bits, with the smallest k that covers `size`.
    An image outside [0, size) is permuted again until it falls inside ("cycle walking", Black and Rogaway 2002).
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
    """Turns each uint64 into a well-mixed uint64: the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@lru_cache  # all batches of an epoch need the same few keys
def _mix(value: int) -> int:
    """Returns the output of SplitMix64 that follows the state `value`."""
    golden_gamma = 0x9E3779B97F4A7C15
    return int(_mix_array(np.array([(value + golden_gamma) % 2**64], dtype=np.uint64))[0])
