"""What a head does, as numbers between 0 and 1: pure functions of its attention map.

Shapes: L layers, H heads, T tokens; a map is (..., T, T), queries by keys, in any floating type. Scores are
computed in float32. The patterns are those of Elhage et al. 2021, "A Mathematical Framework for Transformer
Circuits", and Olsson et al. 2022, "In-context Learning and Induction Heads"; the sink is that of Xiao et al. 2023,
"Efficient Streaming Language Models with Attention Sinks".

A repeated probe is S distinct tokens written twice, with or without one token before them; its second half, where
a head can look back at the first, is therefore always the last S queries.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SCORES = ("previous_token", "duplicate", "induction", "sink", "entropy")


def previous_token(weights: Tensor) -> Tensor:
    """Mean weight that a query gives to the token just before it: (..., T, T) -> (...)."""
    _check_map(weights)
    return _mean(weights.diagonal(-1, -2, -1))


def duplicate(weights: Tensor, period: int) -> Tensor:
    """Mean weight of the second half of a repeated probe on the same token in the first: (..., T, T) -> (...)."""
    _check_period(weights, period)
    return _mean(weights.diagonal(-period, -2, -1)[..., -period:])


def induction(weights: Tensor, period: int) -> Tensor:
    """Mean weight that the second half of a repeated probe gives to the token that followed last time.

    That token is the one to predict, which is why such a head can continue a text that it has seen once.
    (..., T, T) -> (...).
    """
    _check_period(weights, period)
    return _mean(weights.diagonal(1 - period, -2, -1)[..., -period:])


def sink(weights: Tensor) -> Tensor:
    """Mean weight on the first token, where heads with nothing to do leave their attention: (..., T, T) -> (...)."""
    _check_map(weights)
    return _mean(weights[..., 1:, 0])


def entropy(weights: Tensor) -> Tensor:
    """Mean entropy of a query's weights, as a share of the largest it could have, ln(q + 1): (..., T, T) -> (...)."""
    _check_map(weights)
    queries = torch.arange(1, weights.size(-2), device=weights.device)
    return _mean(torch.special.entr(weights[..., 1:, :].float()).sum(-1) / torch.log1p(queries))


def score_heads(text: Tensor, repeated: Tensor, period: int) -> dict[str, Tensor]:
    """Every score of every head, by the names of SCORES.

    `text` (..., T, T) are the maps of ordinary text, `repeated` (..., R, R) those of a repeated probe of this period:
    duplicate and induction heads show only where a text repeats itself.
    """
    return {
        "previous_token": previous_token(text),
        "duplicate": duplicate(repeated, period),
        "induction": induction(repeated, period),
        "sink": sink(text),
        "entropy": entropy(text),
    }


def uniform_scores(text_len: int, repeated_len: int, period: int) -> dict[str, float]:
    """The scores of a head that attends to everything it may see alike: what "no pattern" looks like."""
    scores = score_heads(uniform_attention(text_len), uniform_attention(repeated_len), period)
    return {name: score.item() for name, score in scores.items()}


def uniform_attention(length: int) -> Tensor:
    """(T, T): query q gives 1 / (q + 1) to each key up to itself."""
    visible = torch.ones(length, length).tril()
    return visible / visible.sum(-1, keepdim=True)


def formation_step(steps: Sequence[int], scores: Sequence[float], uniform: float) -> int | None:
    """The first step at which a score has passed half-way from its uniform value to 1, and the next capture agrees.

    One capture alone may be noise, so a score that passes in the last of `steps` has not formed yet. None when it
    never forms. Entropy, whose uniform value is 1, never does.
    """
    if len(steps) != len(scores):
        raise ValueError(f"a score for each step is needed, but there are {len(steps)} steps and {len(scores)} scores")
    halfway = (uniform + 1) / 2
    passed = [score > halfway for score in scores]
    return next((step for step, now, then in zip(steps, passed, passed[1:], strict=False) if now and then), None)


def _mean(values: Tensor) -> Tensor:
    # Sums of rounded weights may leave [0, 1] by a few units of the last place.
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
