"""What each head does, measured over many windows of text as long as the context, and not on one text alone.

A head may do one thing near the beginning of its context and another far from it, and one text may suit it by chance.
So every score is a mean over windows, with its spread over them and its value in each half of a window. The maps of a
layer are reduced to these figures as soon as the layer has run: they are never all in memory.

Shapes: N windows, L layers, H heads, T tokens; 3 parts of a window: all of it, its first and its second half.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.gpt import GPT
from model.inspection.heads import SCORES, choosing, is_delimiter, kind, uniform_attention
from model.inspection.probes import Probe
from model.inspection.trace import AttendCall, blocks_of, observed, undisturbed

MAX_COUNTS = 5
MAX_WEIGHTS = 2**24  # of one layer at a time: 64 MiB
MEAN_TOKENS = 1024  # over which parts are averaged: what they give is in memory at once

Count = Sequence[Any]  # (what, share of the weight, share under uniform attention)
Figures = dict[str, Tensor]


@dataclass(frozen=True)
class Habits:
    """What the heads of a model do, over the windows.

    Lists of lists are by layer and head. Scores are by the names of `heads.SCORES`.

    windows: [how many, tokens in each] of "text" and "repeated".
    spread: standard deviation of each score over the windows.
    halves: each score in the first and in the second half of the windows, (2, L, H); NaN where no query counts there.
    uniform: the scores of uniform attention.
    queries: how many queries of each half count for a score.
    distance: how far back the token is that "fixed_distance" is about, in the whole window and in each half, (3, L, H).
    distance_halves: the weight on the token that far back, in each half the best distance of that half, (2, L, H).
    reach: over how many tokens a query's weight spreads, exp(entropy), in the three parts, (3, L, H).
    keys: up to MAX_COUNTS of (token, share, uniform share), those first that exceed uniform attention most. Shares are
        of all weight on the text, except the first query's, which has no choice.
    offsets: the same for relative positions; 0 is the query itself and -1 the token before.
    kinds: the sorts of delimiters that get most of the weight on delimiters.
    attention_window: how many keys a query sees at most, None for all before it.
    """

    windows: dict[str, list[int]]
    spread: dict[str, np.ndarray]
    halves: dict[str, np.ndarray]
    uniform: dict[str, float]
    queries: dict[str, list[int]]
    distance: np.ndarray
    distance_halves: np.ndarray
    reach: np.ndarray
    keys: list[list[list[Count]]]
    offsets: list[list[list[Count]]]
    kinds: list[list[list[str]]]
    attention_window: int | None = None


@dataclass(frozen=True)
class Windows:
    """Texts of T tokens each over which heads are measured.

    kind: "text" or "repeated".
    attention_window: how many keys a query of the model sees at most, see `sliding_window_mask`.
    within: the same texts for models with an attention window, by that, so that each is prepared once.
    """

    kind: str
    texts: Sequence[Probe]
    attention_window: int | None = None
    within: dict[int | None, "Windows"] = field(default_factory=dict, repr=False, compare=False)

    def seen_through(self, window: int | None) -> "Windows":
        """The same texts for a model with this attention window: what no query sees is nothing a head could choose."""
        if window == self.attention_window:
            return self
        return self.within.setdefault(window, replace(self, attention_window=window, within={}))

    @property
    def length(self) -> int:
        return len(self.texts[0].tokens)

    @property
    def before(self) -> Tensor:
        """(T,): how many tokens before itself a query sees."""
        return torch.arange(self.length).clamp(max=(self.attention_window or self.length) - 1)

    @property
    def sample(self) -> Tensor:
        """(N, T): about MEAN_TOKENS tokens, over which parts are averaged that ablation replaces."""
        return torch.tensor([text.tokens for text in self.texts[: max(1, MEAN_TOKENS // self.length)]])

    @property
    def least_queries(self) -> int:
        """How many queries of a part a distance needs, to be one that a head can be said to look back."""
        return max(1, self.length // 4)

    @cached_property
    def parts(self) -> Tensor:
        """(3, T): the queries of each part. The first query has nothing to choose from and is in none."""
        queries = torch.arange(self.length)
        first = queries < self.length // 2
        return (queries > 0) & torch.stack([queries >= 0, first, ~first])

    @cached_property
    def keys(self) -> dict[str, Tensor]:
        """The patterns that this kind of text can show, (N, T, T)."""
        patterns = {name: score.keys for name, score in SCORES.items() if score.keys and score.probe == self.kind}
        return {name: torch.stack([keys(text) for text in self.texts]) for name, keys in patterns.items()}

    @cached_property
    def counted(self) -> dict[str, Tensor]:
        """The queries that count for each figure, (N, T)."""
        window = self.attention_window
        counted = {name: torch.stack([choosing(one, window) for one in keys]) for name, keys in self.keys.items()}
        every = torch.ones(len(self.texts), self.length, dtype=torch.bool)
        return {**counted, "entropy": every, "reach": every}

    @cached_property
    def distances(self) -> Tensor:
        """(3, T): which distances can be one that a head of a part always looks back: neither 0 nor 1, and few enough
        that at least a quarter of all positions are queries that have such a token."""
        return (torch.arange(self.length) > 1) & (self.having >= self.least_queries)

    @cached_property
    def having(self) -> Tensor:
        """(3, T): how many queries of each part see a token so many before them."""
        return (self.parts[:, :, None] & (torch.arange(self.length) <= self.before[:, None])).sum(1)

    @cached_property
    def labels(self) -> dict[str, int]:
        """The different texts of tokens, each with its place among them."""
        labels = dict.fromkeys(label for text in self.texts for label in text.labels)
        return {label: place for place, label in enumerate(labels)}

    @cached_property
    def places(self) -> Tensor:
        """Which of `labels` each token is, (N, T)."""
        return torch.tensor([[self.labels[label] for label in text.labels] for text in self.texts])

    @cached_property
    def uniform(self) -> Figures:
        """The figures of uniform attention."""
        weights = uniform_attention(self.length, self.attention_window).expand(len(self.texts), 1, -1, -1)
        return stacked([measure(self, weights)])

    def queries(self, name: str) -> list[int]:
        """How many queries of each half count for a score."""
        if name == "fixed_distance":
            return [len(self.texts) * self.least_queries * bool(self.distances[0].any())] * 2
        return (self.counted[name][:, None] & self.parts[1:]).sum((0, 2)).tolist()


def windows_of(texts: Mapping[str, Probe | Sequence[Probe]]) -> dict[str, Windows]:
    """The windows of each kind; a probe is the only one of its kind."""
    lists = {name: [of_kind] if isinstance(of_kind, Probe) else of_kind for name, of_kind in texts.items()}
    return {name: Windows(name, of_kind) for name, of_kind in lists.items()}


@torch.no_grad()
def survey(gpt: GPT, windows: Mapping[str, Windows]) -> tuple[dict[str, np.ndarray], Habits]:
    """The scores (L, H) of a model, and what its heads do. The model runs as in `capture`, without autocast."""
    measured = {}
    windows = {name: of_kind.seen_through(gpt.config.window) for name, of_kind in windows.items()}
    with undisturbed(gpt):
        for name, of_kind in windows.items():
            rows = max(1, MAX_WEIGHTS // (gpt.config.num_heads * of_kind.length**2))
            starts = range(0, len(of_kind.texts), rows)
            pieces = [_measure_piece(gpt, of_kind, slice(start, start + rows)) for start in starts]
            measured[name] = {key: torch.cat([one[key] for one in pieces], dim=1) for key in pieces[0]}
        return summary(windows, measured)


def _measure_piece(gpt: GPT, windows: Windows, piece: slice) -> Figures:
    by_layer: list[Figures] = []

    def see(call: AttendCall) -> None:
        by_layer.append(measure(windows, call.weights().float().cpu(), piece))

    with observed([block.attention for block in blocks_of(gpt)], see):
        tokens = torch.tensor([text.tokens for text in windows.texts[piece]])
        gpt.features(tokens.to(gpt.token_embedding.weight.device))
    return stacked(by_layer)


def stacked(by_layer: Sequence[Figures]) -> Figures:
    return {key: torch.stack([one[key] for one in by_layer]) for key in by_layer[0]}


def measure(windows: Windows, weights: Tensor, piece: slice = slice(None)) -> Figures:
    """The figures of one layer's maps (N, H, T, T), for each window of the piece by itself: (N, ...)."""
    found = {name: (weights * keys[piece, None]).sum(-1) for name, keys in windows.keys.items()}  # (N, H, T)
    parts, figures = windows.parts.float(), {}
    if windows.kind == "text":
        positions = torch.arange(windows.length)
        # An attention with a sink that has no key has a sum below 1; some kinds have negative weights.
        shares = weights.clamp(min=0)
        nats = torch.special.entr(shares / shares.sum(-1, keepdim=True).clamp(min=1e-9)).sum(-1)
        found["entropy"], found["reach"] = nats / windows.before.log1p().clamp(min=1e-9), nats.exp()
        key_at = positions[:, None] - positions  # at [q, n] the token n before q
        by_distance = weights.gather(-1, key_at.clamp(min=0).expand_as(weights)).where(key_at >= 0, 0)
        figures["by_distance"] = torch.einsum("nhqd,sq->nshd", by_distance, parts)
        by_token = weights.new_zeros(weights.shape[1], len(windows.labels))
        by_key = weights[..., 1:, :].sum(-2).transpose(0, 1).flatten(1)
        figures["by_token"] = by_token.index_add(1, windows.places[piece].flatten(), by_key)[None]
    for name, values in found.items():
        queries = windows.counted[name][piece, None] * parts  # (N, 3, T); a mean over none is NaN
        figures[name] = torch.einsum("nhq,nsq->nsh", values, queries) / queries.sum(-1, keepdim=True)
    return figures


def _fixed_distances(windows: Windows, by_distance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The weight on the token that is the same number back, from that by distance (L, N, 3, H, T).

    Returns its figures (L, N, 3, H) for the best distance of the whole window, and the best distance of each part and
    its weight, (L, 3, H).
    """
    means = by_distance / windows.having[:, None].clamp(min=1)
    best = means.mean(1).where(windows.distances[:, None], -1).max(-1)
    chosen = best.indices[:, :1]  # (L, 1, H)
    figures = means.gather(-1, chosen[:, None, ..., None].expand(*means.shape[:-1], 1))[..., 0]
    shows = windows.distances[:, chosen[:, 0]].transpose(0, 1)  # (L, 3, H)
    return figures.where(shows[:, None], torch.nan), best.indices, best.values


def _over_windows(
    windows: Mapping[str, Windows], measured: Mapping[str, Figures], fixed_distance: Tensor
) -> list[dict[str, np.ndarray]]:
    """By name each score (L, H), its spread over the windows, and its halves (2, L, H); 0 for what cannot show."""
    scores, spread, halves = {}, {}, {}
    for name, score in SCORES.items():
        figures = fixed_distance if name == "fixed_distance" else measured[score.probe][name]  # (L, N, 3, H)
        shows, mean = torch.tensor(sum(windows[score.probe].queries(name)) > 0), figures.nanmean(1)
        deviation = (figures - mean[:, None])[:, :, 0].square().nanmean(1).sqrt()
        scores[name], spread[name] = (x.where(shows, 0).numpy() for x in (mean[:, 0].clamp(0, 1), deviation))
        halves[name] = mean[:, 1:].transpose(0, 1).clamp(0, 1).numpy()
    return [scores, spread, halves]


def summary(windows: Mapping[str, Windows], measured: Mapping[str, Figures]) -> tuple[dict[str, np.ndarray], Habits]:
    """The scores and the habits, from the figures of each window."""
    text, of_text = windows["text"], measured["text"]
    uniform = {name: of_kind.uniform for name, of_kind in windows.items()}
    fixed, distance, at_distance = _fixed_distances(text, of_text["by_distance"])
    scores, spread, halves = _over_windows(windows, measured, fixed)
    uniform_fixed, _, _ = _fixed_distances(text, uniform["text"]["by_distance"])
    uniform_scores, _, _ = _over_windows(windows, uniform, uniform_fixed)

    def shares(figures: Figures) -> tuple[Tensor, Tensor]:
        """Of all weight, by token and by distance: (L, H, ...)."""
        total = len(text.texts) * max(1, text.length - 1)
        return figures["by_token"].sum(1) / total, figures["by_distance"][:, :, 0].sum(1) / total

    by_token, by_offset = shares(of_text)
    (usual_tokens,), (usual_offsets,) = (x[0] for x in shares(uniform["text"]))
    names, offsets = list(text.labels), range(0, -text.length, -1)
    delimiters: dict[str, list[int]] = {}  # the places of each kind
    for label, place in text.labels.items():
        if is_delimiter(label):
            delimiters.setdefault(kind(label), []).append(place)
    habits = Habits(
        windows={name: [len(of_kind.texts), of_kind.length] for name, of_kind in windows.items()},
        spread=spread,
        halves=halves,
        uniform={name: score.item() for name, score in uniform_scores.items()},
        queries={name: windows[score.probe].queries(name) for name, score in SCORES.items()},
        distance=distance.transpose(0, 1).float().numpy(),  # as it is read from a file
        distance_halves=at_distance[:, 1:].transpose(0, 1).clamp(0, 1).numpy(),
        reach=of_text["reach"].nanmean(1).transpose(0, 1).numpy(),
        keys=[[_most(names, head, usual_tokens) for head in layer] for layer in by_token],
        offsets=[[_most(offsets, head, usual_offsets) for head in layer] for layer in by_offset],
        kinds=[[_main_kinds(delimiters, head) for head in layer] for layer in by_token],
        attention_window=text.attention_window,
    )
    return scores, habits


def _main_kinds(places: Mapping[str, list[int]], shares: Tensor) -> list[str]:
    """The kind of delimiter with the largest share, and the next if it has more than half of that."""
    ranked = sorted(((shares[of].sum().item(), name) for name, of in places.items()), key=lambda one: -one[0])[:2]
    return [name for share, name in ranked if share > ranked[0][0] / 2]


def _most(names: Sequence[Any], shares: Tensor, uniform: Tensor) -> list[Count]:
    """The names with the largest excess over uniform attention, of N shares for each."""
    excess, order = (shares - uniform).topk(min(MAX_COUNTS, len(names)))
    return [
        [names[i], round(shares[i].item(), 4), round(uniform[i].item(), 4)]
        for more, i in zip(excess.tolist(), order.tolist(), strict=True)
        if more > 0
    ]
