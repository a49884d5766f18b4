"""The texts that a model is measured on while it is trained."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

MIN_PROBE_TOKENS = 5  # of the shortest repeated probe: one token, and two that are repeated
MAX_PROBE_TOKENS = 8192  # a head's map of so many takes 128 MiB


@dataclass(frozen=True)
class Probe:
    """A text that the model is measured on at each capture: T token ids and each as text.

    period: S for a probe of S distinct tokens that are repeated once (possibly after one more); None for other text.
    """

    tokens: list[int]
    labels: list[str]
    period: int | None = None

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.labels):
            raise ValueError(f"a probe needs a label for each token, but has {len(self.tokens)} and {len(self.labels)}")
        if not 1 <= len(self.tokens) <= MAX_PROBE_TOKENS:
            raise ValueError(f"a probe has 1 to {MAX_PROBE_TOKENS} tokens, not {len(self.tokens)}")
        if not all(isinstance(token, int) and 0 <= token < 2**32 for token in self.tokens):
            raise ValueError("the tokens of a probe must be ids")
        if not all(isinstance(label, str) for label in self.labels):
            raise ValueError("the labels of a probe must be text")
        if self.period is not None and not 1 <= self.period <= len(self.tokens) // 2:
            raise ValueError("the period of a probe is at most half of its length")


def draw_repeated_probe(
    candidates: Collection[int],
    max_period: int,
    label: Callable[[int], str],
    *,
    first: int | None = None,
    seed: int = 0,
) -> Probe:
    """Distinct random tokens, repeated once. Heads that look back for repetitions show on it.

    Args:
        candidates: the token ids to draw from.
        max_period: how many are drawn, if there are so many.
        label: the text of a token.
        first: if given, it comes before the random tokens and is never drawn.
    """
    candidates = sorted(set(candidates) - {first})
    period = min(max_period, len(candidates))
    order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(seed))
    drawn = [candidates[place] for place in order[:period]]
    tokens = ([] if first is None else [first]) + 2 * drawn
    return Probe(tokens, [label(token) for token in tokens], period)
