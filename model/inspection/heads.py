"""Head scores: what each head does, as numbers between 0 and 1, measured on many windows of text.

A pattern is a boolean (N, T, T), queries by keys: the keys that each query would look at if the head did nothing else.
The score of a head is the mean weight that queries give to the keys of the pattern. Queries that see no key of the
pattern, or no other key, do not count. A window can show a pattern if at least one of its queries counts; if no window
can, the score is 0.

A head may do one thing near the beginning of its context and another far from it, and one text may suit it by chance.
So every score is a mean over windows as long as the context, with its standard error, and a head has formed only if its
score also exceeds the threshold in each half of a window. The maps of all layers are never in memory together.

Of a window longer than WHOLE, only some queries are measured: all would take as long as many training steps. Each
window measures other queries, so the standard error includes what this sampling adds.

Shapes: N texts, L layers, H heads, T tokens, R measured queries of a text.

The patterns of repeated text are from Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", and
Olsson et al. 2022, "In-context Learning and Induction Heads"; that of the first token, which they call an attention
sink, is from Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks".

To add a score, write its function and add a line to SCORES.
"""

import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from model.gpt import GPT
from model.inspection.maps import weights_of_blocks
from model.inspection.passes import run, undisturbed
from model.inspection.texts import Kind, Texts

RECENT = 8  # tokens
WHOLE = 128  # up to this length all queries of a window are measured
QUERIES = 64  # that are measured of a longer window, in BLOCKS
BLOCKS = 4
MAX_WEIGHTS = 2**24  # the weights of one layer's maps in memory at a time: 64 MiB in float32

Values = dict[str, Tensor]  # of R measured queries, by score name, and "reach": (L, N, H, R)


# ---- the patterns: which keys a query looks at, broadcastable to (N, T, T)


def _previous_token(texts: Texts) -> Tensor:
    return _back(texts) == 1


def _current_token(texts: Texts) -> Tensor:
    return _back(texts) == 0


def _duplicate(texts: Texts) -> Tensor:
    """Earlier copies of the query's token."""
    return (texts.tokens[:, :, None] == texts.tokens[:, None, :]) & (_back(texts) > 0)


def _induction(texts: Texts) -> Tensor:
    """The keys just after earlier copies of the query's token.

    On repeated text they hold the token that comes next, so a head that looks at them can continue a text that it has
    seen once.
    """
    followed = F.pad(_duplicate(texts), (1, -1))
    return followed & (_back(texts) > 0)


def _first_token(texts: Texts) -> Tensor:
    """The first token of the text, or of the document if the model attends within documents."""
    return texts.begins[:, None] & texts.visible


def _recent(texts: Texts) -> Tensor:
    """The last RECENT tokens, the query's own included."""
    return (_back(texts) >= 0) & (_back(texts) < RECENT)


def _delimiter(texts: Texts) -> Tensor:
    """Earlier tokens without any letter or digit: line breaks, spaces, brackets, quotes and other signs."""
    delimiters = torch.tensor([[is_delimiter(label) for label in labels] for labels in texts.labels])
    return delimiters[:, None] & (_back(texts) > 0)


def _line_start(texts: Texts) -> Tensor:
    """The first token of the line, for later tokens of the line. A line begins after a token with a line break.

    The first line does not count: it has the pattern of the first token.
    """
    begins_line = torch.tensor([[False, *("\n" in label for label in labels[:-1])] for labels in texts.labels])
    positions = torch.arange(texts.length)
    starts = (positions * begins_line).cummax(1).values[:, :, None]  # where each token's line starts, 0 for the first
    return (starts > 0) & (starts == positions) & (_back(texts) > 0)


def is_delimiter(label: str) -> bool:
    """Returns whether a token has no letter, digit or mark of any script."""
    return not any(unicodedata.category(char)[0] in "LNM" for char in label)


def _back(texts: Texts) -> Tensor:
    """Returns how many tokens each key is before its query, (T, T); negative if it is after the query."""
    positions = torch.arange(texts.length)
    return positions[:, None] - positions


# ---- the scores


@dataclass(frozen=True)
class Score:
    """How a head score is measured and explained.

    kind: of the texts on which it is measured. Duplicate and induction heads show only if a text repeats itself.
    meaning: completes the sentence "this head ..." on the page.
    glossary: two sentences, one of which says why the score matters.
    keys: the function that makes the pattern. None for a figure without one, such as the entropy: `figures_of`
        computes it, and `_patterns_of` says which queries count.
    letter: of a pattern, for small pictures of a head; by default the first letter of the name. Each has its own.
    """

    kind: Kind
    meaning: str
    glossary: str
    keys: Callable[[Texts], Tensor] | None = None
    letter: str | None = None

    @property
    def is_pattern(self) -> bool:
        """Whether the score measures a pattern, which a head can follow."""
        return self.keys is not None


# All scores that are recorded and shown: files, pages, pictures and curves all use this table.
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
    "first_token": Score(
        "text",
        "looks at the first token, which serves as a resting place",
        "The weight on the first token, where heads put attention that they do not need, since a softmax adds up to 1. "
        "It matters because a high score says that the head rests at most tokens.",
        _first_token,
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
    """Returns the score above which a head follows a pattern: a third of the way from uniform attention to 1."""
    return uniform + (1 - uniform) / 3


def information(score: float, uniform: float) -> float:
    """Returns how much a score says about where a head looks: its KL divergence from uniform attention, in nats.

    This compares patterns: a head that looks at the token just before also looks at recent tokens, but the first
    pattern says more. Returns 0 if the score is not above `uniform`.
    """
    if not score > uniform > 0:
        return 0.0
    score = min(score, 1.0)
    nats = score * math.log(score / uniform)
    if score < 1:
        nats += (1 - score) * math.log((1 - score) / (1 - uniform))
    return nats


# ---- the table of heads


@dataclass(frozen=True, eq=False)
class HeadTable:
    """What the heads of a model do. The first five fields have one entry for each name in SCORES.

    scores: (L, H) in [0, 1], means over windows; 0 if no window can show the pattern, NaN if the model diverged.
    errors: (L, H), the standard errors of these means; NaN if fewer than two windows can show the pattern.
    formed: (L, H), whether the score exceeds the threshold in the window and in each half that can show the pattern.
    uniform: the score of uniform attention.
    counts: how many windows can show the pattern.

    reach: (L, H), the number of tokens over which a query spreads its weight, exp(entropy).
    windows: [number of windows, tokens in each] for "text" and "repeated".
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
    """Measures a model on "text" and "repeated" windows, in eval mode and without autocast."""
    measured = {}
    for kind, texts in windows.items():
        tokens_at_once = MAX_WEIGHTS // (gpt.config.num_heads * texts.length)
        if texts.length > WHOLE:
            tokens_at_once = texts.length  # one window, because other queries are measured in each
        by_piece: list[Values] = []
        first = 0
        for piece in texts.pieces(tokens_at_once):
            blocks = measured_queries(texts)[first]
            with undisturbed(gpt):
                maps = (weights_of_blocks(call, blocks) for call in run(gpt, piece).calls)
                by_piece.append(values_of(maps, texts, first))
            first += len(piece)
        measured[kind] = {name: torch.cat([values[name] for values in by_piece], dim=1) for name in by_piece[0]}
    return table_of(windows, measured)


def measured_queries(texts: Texts) -> Tensor:
    """Returns the positions of the queries that are measured in each text, (N, blocks, queries in a block).

    These are all queries, or a block in each of BLOCKS parts of the text. The blocks of all texts together are spread
    evenly over each part.
    """
    if texts.length <= WHOLE:
        return torch.arange(texts.length).expand(len(texts), 1, -1)
    size = QUERIES // BLOCKS
    length = texts.length // BLOCKS
    offsets = torch.linspace(0, length - size, len(texts)).round().long()
    starts = offsets[:, None] + length * torch.arange(BLOCKS)
    return starts[..., None] + torch.arange(size)


def _at_measured(by_query: Tensor, texts: Texts) -> Tensor:
    """(N, T, ...) -> (N, R, ...)"""
    return by_query[torch.arange(len(texts))[:, None], measured_queries(texts).flatten(1)]


class Patterns(NamedTuple):
    """What the R measured queries of each text could look at.

    keys: by score name, the keys of the pattern, (N, R, T). counted: by score name, which queries count, (N, R).
    visible: which keys each query sees, (N, R, T).
    """

    keys: dict[str, Tensor]
    counted: dict[str, Tensor]
    visible: Tensor


@lru_cache(maxsize=2)  # one for each kind of windows, because a run measures the same texts at every step
def _patterns_of(texts: Texts) -> Patterns:
    keys = {}
    counted = {"entropy": ~texts.begins}  # a query that sees only itself has no choice
    for name, score in SCORES.items():
        if score.keys and score.kind == texts.kind:
            pattern = score.keys(texts).expand_as(texts.visible)
            keys[name] = _at_measured(pattern, texts)
            counted[name] = (pattern & texts.visible).any(-1) & (texts.visible & ~pattern).any(-1)
    counted = {name: _at_measured(queries, texts) for name, queries in counted.items()}
    return Patterns(keys, counted, _at_measured(texts.visible, texts))


def values_of(maps: Iterable[Tensor], texts: Texts, first: int = 0) -> Values:
    """Returns what each measured query gives to each pattern, its entropy and its reach.

    maps: of each layer, (N, H, R, T), for N of the texts; `first` is the number of the first of these.
    """
    patterns = _patterns_of(texts)
    by_layer = []
    for weights in maps:
        rows = slice(first, first + len(weights))
        weights = weights.float()
        values = {}
        for name, keys in patterns.keys.items():
            values[name] = (weights * keys[rows, None].to(weights.device)).sum(-1)
        if texts.kind == "text":
            # The weights may add up to less than 1, with a sink that has no key, and may be negative in other
            # attentions.
            shares = weights.clamp(min=0)
            sums = shares.sum(-1, keepdim=True).clamp(min=1e-9)
            nats = torch.special.entr(shares / sums).sum(-1)
            most = patterns.visible[rows, None].to(weights.device).sum(-1).log().clamp(min=1e-9)
            values |= {"entropy": nats / most, "reach": nats.exp()}
        by_layer.append(values)
    return {name: torch.stack([values[name] for values in by_layer]).cpu() for name in by_layer[0]}


@lru_cache(maxsize=2)
def _uniform_values(texts: Texts) -> Values:
    """Returns the values of uniform attention, in one layer and head: every key that a query sees has equal weight."""
    visible = _patterns_of(texts).visible[:, None]
    return values_of([visible / visible.sum(-1, keepdim=True)], texts)


def table_of(windows: Mapping[str, Texts], measured: Mapping[str, Values]) -> HeadTable:
    """Summarises the values of all windows of each kind."""
    choices = _patterns_of(windows["text"]).counted["entropy"]
    reach = _by_window(measured["text"]["reach"], choices).mean(1).numpy()
    sizes = {kind: [len(texts), texts.length] for kind, texts in windows.items()}
    table = HeadTable({}, {}, {}, {}, {}, reach, sizes)
    for name, score in SCORES.items():
        texts = windows[score.kind]
        values = measured[score.kind][name]
        counted = _patterns_of(texts).counted[name]
        is_early = measured_queries(texts).flatten(1) < texts.length // 2
        whole = _by_window(values, counted)
        halves = [_by_window(values, counted & half) for half in (is_early, ~is_early)]
        count = whole.shape[1]
        mean = whole.sum(1) / max(1, count)
        variance = (whole - mean[:, None]).square().mean(1)
        uniform = _by_window(_uniform_values(texts)[name], counted).mean().nan_to_num().clamp(0, 1).item()
        exceeds = [mean > threshold(uniform)]
        exceeds += [half.mean(1) > threshold(uniform) for half in halves if half.numel()]
        table.scores[name] = mean.clamp(0, 1).numpy()
        table.errors[name] = (variance / (count - 1)).sqrt().numpy()  # NaN, as 0 / 0, for one window
        table.formed[name] = torch.stack(exceeds).all(0).numpy() & score.is_pattern
        table.uniform[name] = uniform
        table.counts[name] = count
    return table


def _by_window(values: Tensor, counted: Tensor) -> Tensor:
    """Returns the means over the queries that count, (L, W, H), of the W windows that have such a query."""
    can_show = counted.any(-1)
    queries = counted[can_show].float()
    sums = torch.einsum("lnhq,nq->lnh", values[:, can_show], queries)
    return sums / queries.sum(-1, keepdim=True)
