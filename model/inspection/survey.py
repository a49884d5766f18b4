"""What each head does, measured over many windows of text as long as the context, and not on one text alone.

A head may do one thing near the beginning of its context and another far from it, and one text may suit it by chance.
So every score is a mean over windows, with its spread over them, and a head has formed only if its score exceeds the
threshold in each half of a window too. The maps of a layer are reduced to these figures as soon as the layer has run:
they are never all in memory.

Shapes: N windows, L layers, H heads, T tokens; 3 parts of a window: all of it, its first and its second half.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from model.gpt import GPT
from model.inspection.heads import SCORES, choosing, duplicate, threshold, uniform_attention
from model.inspection.probes import Probe
from model.inspection.trace import AttendCall, blocks_of, observed, undisturbed
from model.masks import sliding_window_mask

MAX_WEIGHTS = 2**24  # of one layer at a time: 64 MiB
MEAN_TOKENS = 1024  # over which parts are averaged: what they give is in memory at once

Figures = dict[str, Tensor]


@dataclass(frozen=True)
class Survey:
    """What the heads of a model do, over the windows. By the names of `heads.SCORES`:

    scores: (L, H) in [0, 1]; 0 for what the windows cannot show, NaN for a model that diverged.
    spread: (L, H), the standard deviation over the windows.
    formed: (L, H), whether the score exceeds the threshold, in all of the window and in each half that can show it.
    uniform: the score of uniform attention.

    reach: (L, H), over how many tokens a query's weight spreads, exp(entropy).
    windows: [how many, tokens in each] of "text" and "repeated".
    """

    scores: dict[str, np.ndarray]
    spread: dict[str, np.ndarray]
    formed: dict[str, np.ndarray]
    uniform: dict[str, float]
    reach: np.ndarray
    windows: dict[str, list[int]]

    def error(self, name: str) -> np.ndarray:
        """(L, H), the standard error of a score over its windows; 0 for a single one, which cannot tell."""
        count, _ = self.windows[SCORES[name].probe]
        return self.spread[name] / math.sqrt(max(1, count - 1))


@dataclass(frozen=True)
class Windows:
    """Texts of T tokens each over which heads and losses are measured.

    kind: "text" or "repeated".
    attention_window: how many keys a query of the model sees at most, see `sliding_window_mask`: what no query sees is
        nothing that a head could choose.
    """

    kind: str
    texts: Sequence[Probe]
    attention_window: int | None = None

    @property
    def length(self) -> int:
        return len(self.texts[0].tokens)

    @cached_property
    def tokens(self) -> Tensor:
        """(N, T)"""
        return torch.tensor([text.tokens for text in self.texts])

    @property
    def sample(self) -> Tensor:
        """(N, T): about MEAN_TOKENS tokens, over which parts are averaged that ablation replaces."""
        return self.tokens[: max(1, MEAN_TOKENS // self.length)]

    @cached_property
    def predictions(self) -> Tensor:
        """Which next tokens count for the loss, (N, T - 1).

        All of text; of repeated tokens those that an earlier copy predicts.
        """
        if self.kind == "text":
            return torch.ones(len(self.texts), self.length - 1, dtype=torch.bool)
        return torch.stack([duplicate(text).any(-1)[:-1] for text in self.texts])

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
    def queries(self) -> dict[str, Tensor]:
        """The queries of each part that count for each figure, (N, 3, T)."""
        window = self.attention_window
        counted = {name: torch.stack([choosing(one, window) for one in keys]) for name, keys in self.keys.items()}
        every = torch.ones(len(self.texts), self.length, dtype=torch.bool)
        counted |= {"entropy": every, "reach": every}
        return {name: queries[:, None] & self.parts for name, queries in counted.items()}

    @cached_property
    def uniform(self) -> Figures:
        """The figures of uniform attention, (N, 3, 1)."""
        weights = uniform_attention(self.length, self.attention_window).expand(len(self.texts), 1, -1, -1)
        return measure(self, weights)


def windows_of(texts: Mapping[str, Probe | Sequence[Probe]], attention_window: int | None = None) -> dict[str, Windows]:
    """The windows of each kind; a probe is the only one of its kind."""
    lists = {name: [of_kind] if isinstance(of_kind, Probe) else of_kind for name, of_kind in texts.items()}
    return {name: Windows(name, of_kind, attention_window) for name, of_kind in lists.items()}


@torch.no_grad()
def survey(gpt: GPT, windows: Mapping[str, Windows]) -> Survey:
    """Measures a model, which runs as in `undisturbed`, without autocast."""
    measured = {}
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
        gpt.features(windows.tokens[piece].to(gpt.token_embedding.weight.device))
    return {key: torch.stack([one[key] for one in by_layer]) for key in by_layer[0]}


def measure(windows: Windows, weights: Tensor, piece: slice = slice(None)) -> Figures:
    """The figures of one layer's maps (N, H, T, T), for each window of the piece and part of it: (N, 3, H)."""
    found = {name: (weights * keys[piece, None]).sum(-1) for name, keys in windows.keys.items()}  # (N, H, T)
    if windows.kind == "text":
        # An attention with a sink that has no key has a sum below 1; some kinds have negative weights.
        shares = weights.clamp(min=0)
        nats = torch.special.entr(shares / shares.sum(-1, keepdim=True).clamp(min=1e-9)).sum(-1)
        seen = sliding_window_mask(windows.length, windows.attention_window).sum(-1)
        found |= {"entropy": nats / seen.log().clamp(min=1e-9), "reach": nats.exp()}
    figures = {}
    for name, values in found.items():
        queries = windows.queries[name][piece].float()  # a mean over none is NaN
        figures[name] = torch.einsum("nhq,nsq->nsh", values, queries) / queries.sum(-1, keepdim=True)
    return figures


def summary(windows: Mapping[str, Windows], measured: Mapping[str, Figures]) -> Survey:
    """What the figures (L, N, 3, H) of all windows say."""
    scores, spread, formed, uniform = {}, {}, {}, {}
    for name, score in SCORES.items():
        of_kind, figures = windows[score.probe], measured[score.probe][name]
        shows = of_kind.queries[name].any(-1).any(0)[:, None]  # (3, 1): the parts in which a query counts
        means = figures.nanmean(1)  # (L, 3, H)
        deviation = (figures - means[:, None])[:, :, 0].square().nanmean(1).sqrt()
        scores[name], spread[name] = (x.where(shows[0], 0).numpy() for x in (means[:, 0].clamp(0, 1), deviation))
        uniform[name] = of_kind.uniform[name][:, 0].nanmean().nan_to_num().clamp(0, 1).item()
        clear = (means > threshold(uniform[name])) | ~shows
        formed[name] = (clear.all(1) & shows.any() & torch.tensor(score.is_pattern)).numpy()
    sizes = {name: [len(of_kind.texts), of_kind.length] for name, of_kind in windows.items()}
    reach = measured["text"]["reach"][:, :, 0].nanmean(1).numpy()
    return Survey(scores, spread, formed, uniform, reach, sizes)
