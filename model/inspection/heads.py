"""Head scores: what a head does, as numbers between 0 and 1. Pure functions of its attention map and the probe.

A pattern names the keys that a query would look at if the head did nothing else, as a boolean (T, T), queries by keys.
Its score is the mean weight that queries give to these keys. Queries that have none of them do not count, and neither
do those that see nothing else. Where no query counts, the score is 0.

Shapes: L layers, H heads, T tokens; a map is (..., T, T), in any floating type. Scores are computed in float32. The
patterns of repeated text are those of Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", and
Olsson et al. 2022, "In-context Learning and Induction Heads"; the sink is that of Xiao et al. 2023, "Efficient
Streaming Language Models with Attention Sinks".

To add a score, write its function and add a line to SCORES.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from model.inspection.probes import Probe

RECENT = 8  # tokens
# Sorts of delimiters, each with the signs that it has one of. The first that fits counts.
KINDS = {
    "line breaks": "\n",
    "quotes": "\"'`",
    "opening brackets": "([{",
    "closing brackets": ")]}",
    "commas and colons": ",;:",
    "ends of sentences": ".!?",
    "spaces": " \t",
}


# ---- the patterns: which keys a query looks at. Probe of T tokens -> (T, T)


def previous_token(probe: Probe) -> Tensor:
    """The token just before."""
    return _back(probe) == 1


def current_token(probe: Probe) -> Tensor:
    """The token itself."""
    return _back(probe) == 0


def duplicate(probe: Probe) -> Tensor:
    """The same token, earlier."""
    tokens = torch.tensor(probe.tokens)
    return (tokens[:, None] == tokens) & (_back(probe) > 0)


def induction(probe: Probe) -> Tensor:
    """The token that followed the same token before.

    On repeated text that token is the one to predict, so such a head can continue a text that it has seen once.
    """
    followed = torch.zeros(len(probe.tokens), len(probe.tokens), dtype=torch.bool)
    followed[:, 1:] = duplicate(probe)[:, :-1]
    return followed & (_back(probe) > 0)


def sink(probe: Probe) -> Tensor:
    """The first token, where heads put attention that they do not need."""
    positions = torch.arange(len(probe.tokens))
    return (positions == 0).expand(len(positions), -1)


def recent(probe: Probe) -> Tensor:
    """The last RECENT tokens, the query's own included."""
    back = _back(probe)
    return (back >= 0) & (back < RECENT)


def delimiter(probe: Probe) -> Tensor:
    """Earlier tokens without any letter or digit: line breaks, spaces, brackets, quotes and other signs."""
    return torch.tensor([is_delimiter(label) for label in probe.labels]) & (_back(probe) > 0)


def line_start(probe: Probe) -> Tensor:
    """The first token of the line, for the others in it. The first line does not count: it starts at the sink."""
    keys = torch.zeros(len(probe.labels), len(probe.labels), dtype=torch.bool)
    start = None
    for query in range(1, len(probe.labels)):
        if "\n" in probe.labels[query - 1]:
            start = query
        elif start is not None:
            keys[query, start] = True
    return keys


def is_delimiter(label: str) -> bool:
    """Whether a token has no letter, digit or mark of any script."""
    return not any(unicodedata.category(char)[0] in "LNM" for char in label)


def kind(label: str) -> str:
    """What sort of delimiter a token is, in words."""
    return next((name for name, signs in KINDS.items() if set(signs) & set(label)), "other signs")


# ---- the scores


def weight_on(weights: Tensor, keys: Tensor) -> Tensor:
    """Mean weight of the queries on their keys: (..., T, T) and (T, T) -> (...). NaN for a map that holds one."""
    _check_map(weights, len(keys))
    keys = keys & choosing(keys)[:, None]
    total = (weights.float() * keys.to(weights.device)).sum((-2, -1)) / choosing(keys).sum().clamp(min=1)
    return total.clamp(0, 1)  # rounding can carry a sum of weights slightly out of [0, 1]


def choosing(keys: Tensor) -> Tensor:
    """The queries that count, (T,): those that have a key of the pattern, and that see another key too."""
    seen = torch.ones_like(keys).tril()
    return (keys & seen).any(-1) & (seen & ~keys).any(-1)


def entropies(weights: Tensor) -> Tensor:
    """The entropy of each query's weights in nats, (..., T, T) -> (..., T).

    Of the weights divided by their sum, which is below 1 for an attention with a sink that has no key. Negative
    weights, which some kinds of attention have, count as none.
    """
    weights = weights.float().clamp(min=0)
    return torch.special.entr(weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)).sum(-1)


def entropy(weights: Tensor) -> Tensor:
    """Mean entropy of a query's weights, as a share of the largest it could have, ln(q + 1): (..., T, T) -> (...)."""
    _check_map(weights, weights.size(-1))
    queries = torch.arange(1, weights.size(-2), device=weights.device)
    return (entropies(weights)[..., 1:] / torch.log1p(queries)).mean(-1).clamp(0, 1)


def by_distance(weights: Tensor) -> Tensor:
    """The weight that query q gives to the token n before it, at [q, n]: (..., T, T) -> (..., T, T)."""
    positions = torch.arange(weights.size(-1), device=weights.device)
    keys = positions[:, None] - positions
    return weights.float().gather(-1, keys.clamp(min=0).expand_as(weights)).where(keys >= 0, 0)


def distances(length: int, queries: Tensor) -> Tensor:
    """Which distances can be one that a head always looks back, (T,): neither 0 nor 1, and few enough that at least a
    quarter of all positions are queries, of `queries` (T,), that have such a token."""
    positions = torch.arange(length)
    having = (queries[:, None] & (positions[:, None] >= positions)).sum(0)
    return (positions > 1) & (having >= max(1, length // 4))


def fixed_distance(weights: Tensor) -> Tensor:
    """The mean weight on the token n back, for the n for which it is largest: (..., T, T) -> (...)."""
    _check_map(weights, weights.size(-1))
    length = weights.size(-1)
    having = torch.arange(length, 0, -1, device=weights.device)  # how many queries have a token n back
    means = by_distance(weights).sum(-2) / having
    possible = distances(length, torch.ones(length, dtype=torch.bool)).to(weights.device)
    return means.where(possible | means.isnan(), 0).amax(-1).clamp(0, 1)


@dataclass(frozen=True)
class Score:
    """How a head score is measured and explained.

    probe: on which it is measured. Duplicate and induction heads show only where a text repeats itself.
    meaning: completes the sentence "this head ..." on the page.
    glossary: two sentences, one of which says why the score matters.
    letter: one letter for small pictures of a head.
    keys: the pattern that it measures, if it is one that names the keys of a text.
    of_map: else how the score is read from a map.
    """

    probe: Literal["text", "repeated"]
    meaning: str
    glossary: str
    letter: str
    keys: Callable[[Probe], Tensor] | None = None
    of_map: Callable[[Tensor], Tensor] = entropy

    def of(self, weights: Tensor, probe: Probe) -> Tensor:
        """The score of each map of the probe: (..., T, T) -> (...)."""
        return self.of_map(weights) if self.keys is None else weight_on(weights, self.keys(probe))


# Every score that is recorded and shown. The files, the pages, the pictures and the curves all go through this table.
SCORES = {
    "previous_token": Score(
        "text",
        "looks at the token just before",
        "The weight on the token just before. It is the first pattern that most models learn, and induction heads need "
        "one to tell them what came before each token.",
        "P",
        previous_token,
    ),
    "duplicate": Score(
        "repeated",
        "looks at the same token, earlier in the text",
        "The weight on earlier copies of the same token, where the text repeats itself. Such a head tells the model "
        "that it has seen a token before, and where.",
        "D",
        duplicate,
    ),
    "induction": Score(
        "repeated",
        "looks at what followed the same token earlier",
        "The weight on what came after earlier copies of the same token, where the text repeats itself. It matters "
        "most: with it a model continues text that it has seen only once, which is learning without training.",
        "I",
        induction,
    ),
    "sink": Score(
        "text",
        "looks at the first token, which serves as a resting place",
        "The weight on the first token, where heads put attention that they do not need, since it must add up to 1. "
        "It matters because a high score says that the head is switched off for most tokens of this text.",
        "S",
        sink,
    ),
    "current_token": Score(
        "text",
        "looks at the token itself",
        "The weight on the token itself. Such a head gathers nothing from the text and works on one token at a time, "
        "as the feed-forward layers do, so it matters where a model has few heads to spare.",
        "C",
        current_token,
    ),
    "recent": Score(
        "text",
        f"looks at the last {RECENT} tokens",
        f"The weight on the last {RECENT} tokens, the token itself included. Such a head gathers what stands nearby, "
        "which helps a model most before it has learned to choose, and a score near 1 says that it sees no further.",
        "R",
        recent,
    ),
    "delimiter": Score(
        "text",
        "looks back at tokens without letters or digits",
        "The weight on earlier tokens without any letter or digit, such as line breaks, brackets and quotes. They show "
        "how a text is built, so such a head tells the model where it is: in a string, a list, a new line.",
        "B",
        delimiter,
    ),
    "line_start": Score(
        "text",
        "looks back at the first token of the line",
        "The weight on the first token of the line, for tokens further on in it. That token often says what kind of "
        "line it is, so such a head matters in code, lists and plays.",
        "L",
        line_start,
    ),
    "fixed_distance": Score(
        "text",
        "looks the same number of tokens back, whatever stands there",
        "The weight on the token exactly n back, for the n that gets most; 0 and 1 have scores of their own. Such a "
        "head counts and does not read, which often says that the training text repeats itself at that distance.",
        "N",
        of_map=fixed_distance,
    ),
    "entropy": Score(
        "text",
        "spreads its weight; 1 means uniform attention",
        "How evenly the weight is spread: 0 for a single token, 1 for uniform attention. Heads that have learned "
        "nothing start near 1, so a fall is the first sign that a head is learning what to look at.",
        "E",
    ),
}


def score_heads(maps: Mapping[str, Tensor], probes: Mapping[str, Probe]) -> dict[str, Tensor]:
    """Every score of every head, by the names of SCORES.

    maps, probes: "text" and "repeated", the maps (..., T, T) of each probe.
    """
    return {name: score.of(maps[score.probe], probes[score.probe]) for name, score in SCORES.items()}


def uniform_scores(probes: Mapping[str, Probe]) -> dict[str, float]:
    """The scores of a head with uniform attention, which is the baseline for "no pattern"."""
    maps = {name: uniform_attention(len(probe.tokens)) for name, probe in probes.items()}
    return {name: score.item() for name, score in score_heads(maps, probes).items()}


def uniform_attention(length: int) -> Tensor:
    """(T, T): query q gives 1 / (q + 1) to itself and to each key before it."""
    visible = torch.ones(length, length).tril()
    return visible / visible.sum(-1, keepdim=True)


def threshold(uniform: float) -> float:
    """The score that a head must exceed to follow a pattern: a third of the way from uniform attention to 1."""
    return uniform + (1 - uniform) / 3


def formation_step(steps: Sequence[int], scores: Sequence[float], uniform: float) -> int | None:
    """The first step at which a score is past its `threshold` and stays so for the next capture.

    One capture alone may be noise, so a score that passes at the last of `steps` has not formed yet. None if it never
    forms; entropy, whose uniform value is 1, never does.
    """
    if len(steps) != len(scores):
        raise ValueError(f"there must be one score for each step, not {len(steps)} steps and {len(scores)} scores")
    passed = [score > threshold(uniform) for score in scores]
    return next((step for step, now, then in zip(steps, passed, passed[1:], strict=False) if now and then), None)


def _back(probe: Probe) -> Tensor:
    """How many tokens each key is before its query, (T, T); negative in the future."""
    positions = torch.arange(len(probe.tokens))
    return positions[:, None] - positions


def _check_map(weights: Tensor, length: int) -> None:
    if weights.ndim < 2 or weights.shape[-2:] != (length, length) or length < 2:
        raise ValueError(
            f"an attention map is (..., T, T) with T of at least 2, but this one is {tuple(weights.shape)}"
        )
