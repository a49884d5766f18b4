"""Head scores: what a head does, as numbers between 0 and 1. `survey` measures them.

A pattern names the keys that a query would look at if the head did nothing else, as a boolean (T, T), queries by keys.
Its score is the mean weight that queries give to these keys. Queries that have none of them do not count, and neither
do those that see nothing else. Where no query counts, the score is 0.

Shapes: T tokens. The patterns of repeated text are those of Elhage et al. 2021, "A Mathematical Framework for
Transformer Circuits", and Olsson et al. 2022, "In-context Learning and Induction Heads"; the sink is that of Xiao et
al. 2023, "Efficient Streaming Language Models with Attention Sinks".

To add a score, write its function and add a line to SCORES.
"""

import math
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from model.inspection.probes import Probe
from model.masks import sliding_window_mask

RECENT = 8  # tokens


# ---- the patterns: which keys a query looks at. Probe of T tokens -> (T, T)


def previous_token(probe: Probe) -> Tensor:
    return _back(probe) == 1


def current_token(probe: Probe) -> Tensor:
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
    return (torch.arange(len(probe.tokens)) == 0).expand(len(probe.tokens), -1)


def recent(probe: Probe) -> Tensor:
    """The query's own token counts."""
    return (_back(probe) >= 0) & (_back(probe) < RECENT)


def delimiter(probe: Probe) -> Tensor:
    """Earlier tokens without any letter or digit: line breaks, spaces, brackets, quotes and other signs."""
    return torch.tensor([is_delimiter(label) for label in probe.labels]) & (_back(probe) > 0)


def line_start(probe: Probe) -> Tensor:
    """The first token of the line, for the others in it. The first line does not count: it starts at the sink."""
    begins = torch.tensor([False, *("\n" in label for label in probe.labels[:-1])])
    positions = torch.arange(len(begins))
    starts = (positions * begins).cummax(0).values[:, None]  # of each token's line, 0 in the first
    return (starts > 0) & (starts == positions) & (_back(probe) > 0)


def is_delimiter(label: str) -> bool:
    """Whether a token has no letter, digit or mark of any script."""
    return not any(unicodedata.category(char)[0] in "LNM" for char in label)


def choosing(keys: Tensor, window: int | None = None) -> Tensor:
    """The queries that count, (T,): those that see a key of the pattern and a key outside it."""
    seen = sliding_window_mask(len(keys), window)
    return (keys & seen).any(-1) & (seen & ~keys).any(-1)


# ---- the scores


@dataclass(frozen=True)
class Score:
    """How a head score is measured and explained.

    probe: on which it is measured. Duplicate and induction heads show only where a text repeats itself.
    meaning: completes the sentence "this head ..." on the page.
    glossary: two sentences, one of which says why the score matters.
    keys: the pattern whose weight it is. None for the entropy, which `survey` measures in its own way.
    letter: for small pictures of a head, if not the first of the name.
    """

    probe: Literal["text", "repeated"]
    meaning: str
    glossary: str
    keys: Callable[[Probe], Tensor] | None = None
    letter: str | None = None

    @property
    def is_pattern(self) -> bool:
        """Whether it is one that a head can be said to follow."""
        return self.keys is not None


# Every score that is recorded and shown. The files, the pages, the pictures and the curves all go through this table.
SCORES = {
    "previous_token": Score(
        "text",
        "looks at the token just before",
        "The weight on the token just before. Most models learn it early, and induction heads need one to tell them "
        "what came before each token.",
        previous_token,
    ),
    "duplicate": Score(
        "repeated",
        "looks at the same token, earlier in the text",
        "The weight on earlier copies of the same token, where the text repeats itself. Such a head tells the model "
        "that it has seen a token before, and where.",
        duplicate,
    ),
    "induction": Score(
        "repeated",
        "looks at what followed the same token earlier",
        "The weight on what came after earlier copies of the same token, where the text repeats itself. It matters "
        "most: with it a model continues text that it has seen only once, which is learning without training.",
        induction,
    ),
    "sink": Score(
        "text",
        "looks at the first token, which serves as a resting place",
        "The weight on the first token, where heads put attention that they do not need, since it must add up to 1. "
        "It matters because a high score says that the head rests at most tokens of this text.",
        sink,
    ),
    "current_token": Score(
        "text",
        "looks at the token itself",
        "The weight on the token itself. Such a head gathers nothing from the text and works on one token at a time, "
        "as the feed-forward layers do, so it matters where a model has few heads to spare.",
        current_token,
    ),
    "recent": Score(
        "text",
        f"looks at the last {RECENT} tokens",
        f"The weight on the last {RECENT} tokens, the token itself included. Such a head gathers what stands nearby, "
        "which helps a model most before it has learned to choose, and a score near 1 says that it sees no further.",
        recent,
    ),
    "delimiter": Score(
        "text",
        "looks back at tokens without letters or digits",
        "The weight on earlier tokens without any letter or digit, such as line breaks, brackets and quotes. They show "
        "how a text is built, so such a head tells the model where it is: in a string, a list, a new line.",
        delimiter,
        letter="B",
    ),
    "line_start": Score(
        "text",
        "looks back at the first token of the line",
        "The weight on the first token of the line, for tokens further on in it. That token often says what kind of "
        "line it is, so such a head matters in code, lists and plays.",
        line_start,
    ),
    "entropy": Score(
        "text",
        "spreads its weight; 1 means uniform attention",
        "How evenly the weight is spread: 0 for a single token, 1 for uniform attention. Heads that have learned "
        "nothing start near 1, so a fall is the first sign that a head is learning what to look at.",
    ),
}


def uniform_attention(length: int, window: int | None = None) -> Tensor:
    """(T, T): every key that a query sees gets the same, without a window 1 / (q + 1) from query q."""
    visible = sliding_window_mask(length, window).float()
    return visible / visible.sum(-1, keepdim=True)


def threshold(uniform: float) -> float:
    """The score that a head must exceed to follow a pattern: a third of the way from uniform attention to 1."""
    return uniform + (1 - uniform) / 3


def information(score: float, uniform: float) -> float:
    """What a score above that of uniform attention says about where a head looks, in nats: their KL divergence.

    It compares patterns: a head that looks at the token just before also looks at recent tokens, but the first says
    more. 0 for a score that is not above.
    """
    if not score > uniform > 0:
        return 0.0
    score = min(score, 1.0)
    rest = (1 - score) * math.log((1 - score) / (1 - uniform)) if score < 1 else 0.0
    return score * math.log(score / uniform) + rest


def _back(probe: Probe) -> Tensor:
    """How many tokens each key is before its query, (T, T); negative in the future."""
    positions = torch.arange(len(probe.tokens))
    return positions[:, None] - positions
