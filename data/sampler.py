"""The windows of batch n, and which of them repeat themselves: pure functions of (seed, n).

Batches count from 0; a step has one, or several where gradients are accumulated.

There is no state to save: the n-th batch of a resumed run is the n-th batch of one that never stopped.

Letters: B windows in a batch over all ranks, T tokens in a window, N windows in an epoch.
"""

import numpy as np

from model.checks import Mistake

SHORTEST_PERIOD = 8  # tokens; below it, the few tokens just before are enough to predict the next one

_ROUNDS = 8
_MASK64 = 2**64 - 1


class WindowSampler:
    """Windows of T inputs and their targets, in a new random order and at a new offset in every epoch.

    Each rank has its share of them: the shares of all, concatenated, are the batch of a single device.

    An epoch is a permutation of the N adjacent windows that begin at a random offset below T: each is seen exactly
    once, and the offset moves the cuts between them. Memory does not depend on the size of the corpus.
    """

    def __init__(
        self, num_tokens: int, context_length: int, batch_size: int, seed: int, rank: int = 0, world_size: int = 1
    ):
        """Raises Mistake where the stream is too short for one window."""
        if num_tokens < context_length + 1:
            raise Mistake(
                f"context_length {context_length:,} needs at least {context_length + 1:,} tokens of training text, "
                f"but there are {num_tokens:,}: use a shorter context_length or more text"
            )
        self.context_length = context_length
        self.batch_size = batch_size
        self.seed = seed
        self.rank, self.world_size = rank, world_size
        # As many as fit after every offset, so that all epochs have the same length.
        self.windows_per_epoch = max((num_tokens - context_length) // context_length, 1)
        self._offsets = min(context_length, num_tokens - self.windows_per_epoch * context_length)

    def starts(self, batches: np.ndarray) -> np.ndarray:
        """First token of each of this rank's windows in batches of these numbers (n,): int64 (n, B / world_size)."""
        drawn = self._numbers(batches)
        epochs, positions = np.divmod(drawn, self.windows_per_epoch)
        starts = np.empty_like(drawn)
        for epoch in np.unique(epochs):
            key = _mix(_mix(self.seed & _MASK64) ^ int(epoch))
            here = epochs == epoch
            windows = permute(positions[here], self.windows_per_epoch, key)
            starts[here] = windows * self.context_length + _mix(key) % self._offsets
        return starts

    def periods(self, batches: np.ndarray, fraction: float) -> np.ndarray:
        """After how many tokens each window of `starts` begins again: int64 (n, B / world_size).

        `fraction` of the windows, evenly spread, repeat themselves after p tokens, p log-uniform in 8..T/2 (or T/2
        where that is less): where a few distances return often, a model learns these instead of looking for the same
        token. The others have a period of T + 1, their whole length with the last target.
        """
        drawn = self._numbers(batches)
        is_repeated = np.floor((drawn + 1) * fraction) > np.floor(drawn * fraction)
        uniform = _mix_array(drawn.astype(np.uint64) ^ np.uint64(_mix(~self.seed & _MASK64))) / 2.0**64
        longest = max(self.context_length // 2, 1)
        shortest = min(SHORTEST_PERIOD, longest)
        periods = shortest * ((longest + 1) / shortest) ** uniform
        return np.where(is_repeated, np.minimum(periods.astype(np.int64), longest), self.context_length + 1)

    def _numbers(self, batches: np.ndarray) -> np.ndarray:
        """How many windows were drawn before each of these, since the beginning: int64 (n, B / world_size)."""
        share = self.batch_size // self.world_size
        return batches[:, None] * self.batch_size + self.rank * share + np.arange(share, dtype=np.int64)


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


def _mix(value: int) -> int:
    golden_gamma = 0x9E3779B97F4A7C15
    return int(_mix_array(np.array([(value + golden_gamma) & _MASK64], dtype=np.uint64))[0])
