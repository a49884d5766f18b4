"""Head scores: what a head does, as numbers between 0 and 1. Pure functions of its attention map.

Shapes: L layers, H heads, T tokens; a map is (..., T, T), queries by keys, in any floating type. Scores are
computed in float32. The patterns are those of Elhage et al. 2021, "A Mathematical Framework for Transformer
Circuits", and Olsson et al. 2022, "In-context Learning and Induction Heads"; the sink is that of Xiao et al. 2023,
"Efficient Streaming Language Models with Attention Sinks".

A repeated probe is S distinct tokens, repeated once, with or without one token before them. S is its period. The
second half, whose queries can look back at the first, is always the last S queries.

To add a score, write its function and add a line to SCORES.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


def previous_token(weights: Tensor) -> Tensor:
    """Mean weight that a query gives to the token just before it: (..., T, T) -> (...)."""
    _check_map(weights)
    return _mean(weights.diagonal(-1, -2, -1))


def duplicate(weights: Tensor, period: int) -> Tensor:
    """Mean weight of the second half of a repeated probe on the same token in the first: (..., T, T) -> (...)."""
    _check_period(weights, period)
    return _mean(weights.diagonal(-period, -2, -1)[..., -period:])


def induction(weights: Tensor, period: int) -> Tensor:
    """Mean weight of the second half of a repeated probe on the token that followed the same token before.

    That token is the one to predict, so such a head can continue a text that it has seen once. (..., T, T) -> (...).
    """
    _check_period(weights, period)
    return _mean(weights.diagonal(1 - period, -2, -1)[..., -period:])


def sink(weights: Tensor) -> Tensor:
    """Mean weight on the first token, where heads put attention that they do not need: (..., T, T) -> (...)."""
    _check_map(weights)
    return _mean(weights[..., 1:, 0])


def entropy(weights: Tensor) -> Tensor:
    """Mean entropy of a query's weights, as a share of the largest it could have, ln(q + 1): (..., T, T) -> (...)."""
    _check_map(weights)
    queries = torch.arange(1, weights.size(-2), device=weights.device)
    return _mean(torch.special.entr(weights[..., 1:, :].float()).sum(-1) / torch.log1p(queries))


@dataclass(frozen=True)
class Score:
    """How a head score is measured and explained.

    function: maps (..., T, T) -> (...). It also takes the period if `probe` is "repeated".
    probe: on which it is measured. Duplicate and induction heads show only where a text repeats itself.
    meaning: completes the sentence "this head ..." on the page.
    """

    function: Callable[..., Tensor]
    probe: Literal["text", "repeated"]
    meaning: str


# Every score that is recorded and shown. The files, the pages, the pictures and the curves all go through this table.
SCORES = {
    "previous_token": Score(previous_token, "text", "looks at the token just before"),
    "duplicate": Score(duplicate, "repeated", "looks at the same token, earlier in the text"),
    "induction": Score(induction, "repeated", "looks at what followed the same token earlier"),
    "sink": Score(sink, "text", "looks at the first token, which serves as a resting place"),
    "entropy": Score(entropy, "text", "spreads its weight; 1 means uniform attention"),
}


def score_heads(text: Tensor, repeated: Tensor, period: int) -> dict[str, Tensor]:
    """Every score of every head, by the names of SCORES.

    text: (..., T, T), the maps of ordinary text. repeated: (..., R, R), those of a repeated probe of this period.
    """
    arguments = {"text": (text,), "repeated": (repeated, period)}
    return {name: score.function(*arguments[score.probe]) for name, score in SCORES.items()}


def uniform_scores(text_len: int, repeated_len: int, period: int) -> dict[str, float]:
    """The scores of a head with uniform attention, which is the baseline for "no pattern"."""
    scores = score_heads(_uniform_attention(text_len), _uniform_attention(repeated_len), period)
    return {name: score.item() for name, score in scores.items()}


def formation_step(steps: Sequence[int], scores: Sequence[float], uniform: float) -> int | None:
    """The first step at which a score is past half-way from its uniform value to 1 and stays so for the next capture.

    One capture alone may be noise, so a score that passes at the last of `steps` has not formed yet. None if it never
    forms; entropy, whose uniform value is 1, never does.
    """
    if len(steps) != len(scores):
        raise ValueError(f"there must be one score for each step, not {len(steps)} steps and {len(scores)} scores")
    halfway = (uniform + 1) / 2
    passed = [score > halfway for score in scores]
    return next((step for step, now, then in zip(steps, passed, passed[1:], strict=False) if now and then), None)


def _uniform_attention(length: int) -> Tensor:
    """(T, T): query q gives 1 / (q + 1) to itself and to each key before it."""
    visible = torch.ones(length, length).tril()
    return visible / visible.sum(-1, keepdim=True)


def _mean(values: Tensor) -> Tensor:
    # Rounding can carry the sum of weights slightly out of [0, 1].
    return values.float().mean(-1).clamp(0, 1)


def _check_map(weights: Tensor) -> None:
    if weights.ndim < 2 or weights.size(-1) != weights.size(-2) or weights.size(-1) < 2:
        raise ValueError(
            f"an attention map is (..., T, T) with T of at least 2, but this one is {tuple(weights.shape)}"
        )


def _check_period(weights: Tensor, period: int) -> None:
    _check_map(weights)
    if not 2 <= period <= weights.size(-1) // 2:
        raise ValueError(
            f"a period of {period} does not fit twice into a map of {weights.size(-1)} tokens; "
            f"it is at least 2 and at most {weights.size(-1) // 2}"
        )
