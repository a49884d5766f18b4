"""The texts that a model is measured on while it is trained."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from model.checks import Mistake

TEXT_WINDOWS = 16
REPEATED_WINDOWS = 8
PERIODS = (8 / 128, 16 / 128, 31 / 128, 50 / 128)  # of repeated tokens, as shares of a window; none is half of it
MIN_PROBE_TOKENS = 5  # of the shortest repeated probe: one token, and two that are repeated
MAX_PROBE_TOKENS = 8192  # a head's map of so many takes 128 MiB


Label = Callable[[int], str]  # the text of a token


@dataclass(frozen=True)
class Probe:
    """A text that the model is measured on at each snapshot: T token ids and each as text.

    period: S for a probe of S distinct tokens that are repeated once (possibly after one more); None for other text.
    """

    tokens: list[int]
    labels: list[str]
    period: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.tokens) <= MAX_PROBE_TOKENS:
            raise Mistake(f"a text to measure on has 1 to {MAX_PROBE_TOKENS} tokens, not {len(self.tokens)}")
        if len(self.labels) != len(self.tokens):
            raise Mistake("a probe has a text for each token")


Probes = Mapping[str, Probe]  # "text" and "repeated"


def draw_repeated_probe(candidates: Collection[int], period: int, label: Label, *, first: int | None = None) -> Probe:
    """Distinct random tokens, repeated once. Heads that look back for repetitions show on it.

    Args:
        candidates: the token ids to draw from.
        period: how many are drawn, if there are so many.
        first: if given, it comes before the random tokens and is never drawn.
    """
    candidates = sorted(set(candidates) - {first})
    period = min(period, len(candidates))
    order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(0))
    drawn = [candidates[place] for place in order[:period]]
    tokens = ([] if first is None else [first]) + 2 * drawn
    return Probe(tokens, [label(token) for token in tokens], period)


def text_windows(tokens: Sequence[int], length: int, label: Label) -> list[Probe]:
    """TEXT_WINDOWS windows of the tokens, spread evenly over them; fewer if there are not so many.

    length: of a window, which has at most MAX_PROBE_TOKENS.
    """
    length = min(length, MAX_PROBE_TOKENS)
    count = max(1, min(TEXT_WINDOWS, len(tokens) // length))
    starts = [(len(tokens) - length) * i // max(1, count - 1) for i in range(count)] if len(tokens) > length else [0]
    windows = [list(tokens[start : start + length]) for start in starts]
    return [Probe(window, [label(token) for token in window]) for window in windows]


def repeated_windows(
    candidates: Collection[int], length: int, label: Label, *, first: int | None = None
) -> list[Probe]:
    """REPEATED_WINDOWS windows of random tokens that repeat themselves over and over, at several periods.

    candidates, first: as in `draw_repeated_probe`; length: as in `text_windows`.
    """
    candidates, length = sorted(set(candidates) - {first}), min(length, MAX_PROBE_TOKENS)
    generator, windows = torch.Generator().manual_seed(0), []
    for number in range(REPEATED_WINDOWS):
        period = min(max(1, round(PERIODS[number % len(PERIODS)] * length)), len(candidates))
        order = torch.randperm(len(candidates), generator=generator)[:period].tolist()
        tokens = [] if first is None else [first]
        tokens += [candidates[order[place % period]] for place in range(length - len(tokens))]
        windows.append(Probe(tokens, [label(token) for token in tokens]))
    return windows
