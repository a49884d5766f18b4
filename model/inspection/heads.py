"""What each head does, as numbers between 0 and 1, measured over many windows of text.

A pattern names the keys that a query would look at if the head did nothing else, as a boolean (N, T, T), queries by
keys. Its score is the mean weight that queries give to these keys. Queries that see none of them do not count, and
neither do those that see nothing else. Where no query counts, the score is 0.

A head may do one thing near the beginning of its context and another far from it, and one text may suit it by chance.
So every score is a mean over windows as long as the context, with its standard error, and a head has formed only if its
score exceeds the threshold in each half of a window too. The maps of a layer are reduced to these figures as soon as
the layer has run: they are never all in memory.

Shapes: N texts, L layers, H heads, T tokens; 3 spans of a text: all of it, its first and its second half. The patterns
of repeated text are those of Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", and Olsson et al.
2022, "In-context Learning and Induction Heads"; the sink is that of Xiao et al. 2023, "Efficient Streaming Language
Models with Attention Sinks".

To add a score, write its function and add a line to SCORES.
"""

import math
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from model.gpt import GPT
from model.inspection.maps import Attend, observed, weights_of
from model.inspection.parts import run, undisturbed
from model.inspection.texts import Texts

RECENT = 8  # tokens
MAX_WEIGHTS = 2**24  # of one layer at a time: 64 MiB

Figures = dict[str, Tensor]


# ---- the patterns: which keys a query looks at, broadcastable to (N, T, T)


def _previous_token(texts: Texts) -> Tensor:
    return _back(texts) == 1


def _current_token(texts: Texts) -> Tensor:
    return _back(texts) == 0


def _duplicate(texts: Texts) -> Tensor:
    """The same token, earlier."""
    return (texts.tokens[:, :, None] == texts.tokens[:, None, :]) & (_back(texts) > 0)


def _induction(texts: Texts) -> Tensor:
    """The token that followed the same token before.

    On repeated text that token is the one to predict, so such a head can continue a text that it has seen once.
    """
    followed = torch.zeros(len(texts), texts.length, texts.length, dtype=torch.bool)
    followed[:, :, 1:] = _duplicate(texts)[:, :, :-1]
    return followed & (_back(texts) > 0)


def _sink(texts: Texts) -> Tensor:
    """The first token: of the text, or of the document for a model that sees nothing before it."""
    return texts.begins[:, None] & texts.visible


def _recent(texts: Texts) -> Tensor:
    """The query's own token counts."""
    return (_back(texts) >= 0) & (_back(texts) < RECENT)


def _delimiter(texts: Texts) -> Tensor:
    """Earlier tokens without any letter or digit: line breaks, spaces, brackets, quotes and other signs."""
    delimiters = torch.tensor([[is_delimiter(label) for label in labels] for labels in texts.labels])
    return delimiters[:, None] & (_back(texts) > 0)


def _line_start(texts: Texts) -> Tensor:
    """The first token of the line, for the others in it. The first line does not count: it starts at the sink."""
    begins = torch.tensor([[False, *("\n" in label for label in labels[:-1])] for labels in texts.labels])
    positions = torch.arange(texts.length)
    starts = (positions * begins).cummax(1).values[:, :, None]  # of each token's line, 0 in the first
    return (starts > 0) & (starts == positions) & (_back(texts) > 0)


def is_delimiter(label: str) -> bool:
    """Whether a token has no letter, digit or mark of any script."""
    return not any(unicodedata.category(char)[0] in "LNM" for char in label)


def _back(texts: Texts) -> Tensor:
    """How many tokens each key is before its query, (T, T); negative in the future."""
    positions = torch.arange(texts.length)
    return positions[:, None] - positions


# ---- the scores


@dataclass(frozen=True)
class Score:
    """How a head score is measured and explained.

    probe: on which it is measured. Duplicate and induction heads show only where a text repeats itself.
    meaning: completes the sentence "this head ..." on the page.
    glossary: two sentences, one of which says why the score matters.
    keys: the pattern whose weight it is. None for the entropy, which is measured in its own way.
    letter: for small pictures of a head, if not the first of the name.
    """

    probe: Literal["text", "repeated"]
    meaning: str
    glossary: str
    keys: Callable[[Texts], Tensor] | None = None
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
        _previous_token,
    ),
    "duplicate": Score(
        "repeated",
        "looks at the same token, earlier in the text",
        "The weight on earlier copies of the same token, where the text repeats itself. Such a head tells the model "
        "that it has seen a token before, and where.",
        _duplicate,
    ),
    "induction": Score(
        "repeated",
        "looks at what followed the same token earlier",
        "The weight on what came after earlier copies of the same token, where the text repeats itself. It matters "
        "most: with it a model continues text that it has seen only once, which is learning without training.",
        _induction,
    ),
    "sink": Score(
        "text",
        "looks at the first token, which serves as a resting place",
        "The weight on the first token, where heads put attention that they do not need, since a softmax adds up to 1. "
        "It matters because a high score says that the head rests at most tokens of this text.",
        _sink,
    ),
    "current_token": Score(
        "text",
        "looks at the token itself",
        "The weight on the token itself. Such a head gathers nothing from the text and works on one token at a time, "
        "as the feed-forward layers do, so it matters where a model has few heads to spare.",
        _current_token,
    ),
    "recent": Score(
        "text",
        f"looks at the last {RECENT} tokens",
        f"The weight on the last {RECENT} tokens, the token itself included. Such a head gathers what stands nearby, "
        "which helps a model most before it has learned to choose, and a score near 1 says that it sees no further.",
        _recent,
    ),
    "delimiter": Score(
        "text",
        "looks back at tokens without letters or digits",
        "The weight on earlier tokens without any letter or digit, such as line breaks, brackets and quotes. They show "
        "how a text is built, so such a head tells the model where it is: in a string, a list, a new line.",
        _delimiter,
        letter="B",
    ),
    "line_start": Score(
        "text",
        "looks back at the first token of the line",
        "The weight on the first token of the line, for tokens further on in it. That token often says what kind of "
        "line it is, so such a head matters in code, lists and plays.",
        _line_start,
    ),
    "entropy": Score(
        "text",
        "spreads its weight; 1 means uniform attention",
        "How evenly the weight is spread: 0 for a single token, 1 for uniform attention. Heads that have learned "
        "nothing start near 1, so a fall is the first sign that a head is learning what to look at.",
    ),
}


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
    found = score * math.log(score / uniform)
    if score < 1:
        found += (1 - score) * math.log((1 - score) / (1 - uniform))
    return found


# ---- the table of heads


@dataclass(frozen=True, eq=False)
class HeadTable:
    """What the heads of a model do. By the names of SCORES:

    scores: (L, H) in [0, 1], means over windows; 0 for what the windows cannot show, NaN for a model that diverged.
    errors: (L, H), the standard error of these means; NaN where fewer than two windows can show the pattern.
    formed: (L, H), whether the score exceeds the threshold, in all of the window and in each half that can show it.
    uniform: the score of uniform attention.
    counts: on how many windows the pattern can show.

    reach: (L, H), over how many tokens a query's weight spreads, exp(entropy).
    windows: [how many, tokens in each] of "text" and "repeated".
    """

    scores: dict[str, np.ndarray]
    errors: dict[str, np.ndarray]
    formed: dict[str, np.ndarray]
    uniform: dict[str, float]
    counts: dict[str, int]
    reach: np.ndarray
    windows: dict[str, list[int]]


@torch.no_grad()
def measure_heads(gpt: GPT, windows: Mapping[str, Texts]) -> HeadTable:
    """Measures a model on "text" and "repeated" windows, as `undisturbed` runs it, without autocast."""
    measured: dict[str, Figures] = {}
    for kind, texts in windows.items():
        pieces = texts.pieces(MAX_WEIGHTS // (gpt.config.num_heads * texts.length))
        starts = range(0, len(texts), len(pieces[0]))
        found = [_figures_of_layers(gpt, piece, texts, first) for piece, first in zip(pieces, starts, strict=True)]
        measured[kind] = {name: torch.cat([one[name] for one in found], dim=1) for name in found[0]}
    return table_of(windows, measured)


def _figures_of_layers(gpt: GPT, piece: Texts, texts: Texts, first: int) -> Figures:
    """The figures (L, N, 3, H) of a piece of the texts, from the `first` on."""
    by_layer: list[Figures] = []

    def see(attend: Attend, q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> None:
        by_layer.append(figures_of(weights_of(attend, q, k, v).float(), texts, first))

    with undisturbed(gpt), observed(gpt, see):
        run(gpt, piece)
    return {name: torch.stack([one[name] for one in by_layer]) for name in by_layer[0]}


def figures_of(weights: Tensor, texts: Texts, first: int = 0) -> Figures:
    """The figures of one layer's maps (N, H, T, T) for each text and span, (N, 3, H), measured where the maps are.

    A figure is NaN for a span in which no query counts. first: the number of the text that the first map is of.
    """
    device = weights.device
    some = slice(first, first + len(weights))
    keys, queries = _patterns_of(texts)  # of all texts, which are the same at every step of a run
    values = {name: (weights * of_texts[some, None].to(device)).sum(-1) for name, of_texts in keys.items()}
    if texts.kind == "text":
        # An attention with a sink that has no key has a sum below 1; some kinds have negative weights.
        shares = weights.clamp(min=0)
        sums = shares.sum(-1, keepdim=True).clamp(min=1e-9)
        nats = torch.special.entr(shares / sums).sum(-1)
        seen = texts.visible[some].sum(-1)[:, None].to(device)
        values["entropy"] = nats / seen.log().clamp(min=1e-9)
        values["reach"] = nats.exp()
    figures = {}
    for name, of_queries in values.items():  # (N, H, T)
        counted = queries[name][some].to(device).float()  # a mean over none is NaN
        sums = torch.einsum("nhq,nsq->nsh", of_queries, counted)
        figures[name] = (sums / counted.sum(-1, keepdim=True)).cpu()
    return figures


@lru_cache(maxsize=2)  # the two kinds of texts of a run that is recorded, at each of its steps
def _patterns_of(texts: Texts) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What some texts can show: the keys of each pattern, (N, T, T), and of each figure the queries that count,
    (N, 3, T)."""
    is_first_half = torch.arange(texts.length) < texts.length // 2
    spans = torch.stack([is_first_half | True, is_first_half, ~is_first_half])
    counted = {"entropy": ~texts.begins, "reach": ~texts.begins}  # a query that sees itself alone has no choice
    keys = {}
    for name, score in SCORES.items():
        if score.keys and score.probe == texts.kind:
            keys[name] = score.keys(texts).expand(len(texts), -1, -1)
            counted[name] = choosing(keys[name], texts)
    return keys, {name: queries[:, None] & spans for name, queries in counted.items()}


def choosing(keys: Tensor, texts: Texts) -> Tensor:
    """The queries that count, (N, T): those that see a key of the pattern and a key outside it."""
    return (keys & texts.visible).any(-1) & (texts.visible & ~keys).any(-1)


@lru_cache(maxsize=2)
def _uniform_figures(texts: Texts) -> Figures:
    """The figures of uniform attention, (N, 3, 1): every key that a query sees gets the same."""
    visible = texts.visible.float()
    weights = visible / visible.sum(-1, keepdim=True)
    return figures_of(weights[:, None], texts)


def table_of(windows: Mapping[str, Texts], measured: Mapping[str, Figures]) -> HeadTable:
    """What the figures (L, N, 3, H) of all windows say."""
    reach = measured["text"]["reach"][:, :, 0].nanmean(1).numpy()
    sizes = {kind: [len(texts), texts.length] for kind, texts in windows.items()}
    table = HeadTable({}, {}, {}, {}, {}, reach, sizes)
    for name, score in SCORES.items():
        figures = measured[score.probe][name]
        chance = _uniform_figures(windows[score.probe])[name]
        shown = ~chance.isnan()  # (N, 3, 1): the spans of each window that can show it
        shows = shown.any(0)
        count = int(shown[:, 0].sum())
        uniform = chance[:, 0].nanmean().nan_to_num().clamp(0, 1).item()
        means = figures.nanmean(1)  # (L, 3, H)
        variance = (figures[:, :, 0] - means[:, None, 0]).square().nanmean(1)
        clear = (means > threshold(uniform)) | ~shows
        table.scores[name] = means[:, 0].clamp(0, 1).where(shows[0], 0).numpy()
        table.errors[name] = (variance / (count - 1)).sqrt().numpy()  # of one window 0 / 0, which is NaN
        table.formed[name] = clear.all(1).numpy() & bool(shows.any() and score.is_pattern)
        table.uniform[name] = uniform
        table.counts[name] = count
    return table
