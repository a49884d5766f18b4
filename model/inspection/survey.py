"""What each head does, measured over many windows of text as long as the context, and not on one text alone.

A head may do one thing near the beginning of its context and another far from it, and one text may suit it by chance.
So every score is a mean over windows, with its spread over them and its value in each half of a window. The maps of a
layer are reduced to these figures as soon as the layer has run: they are never all in memory.

Shapes: N windows, L layers, H heads, T tokens; 3 parts of a window: all of it, its first and its second half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.gpt import GPT
from model.inspection.heads import (
    SCORES,
    by_distance,
    choosing,
    distances,
    entropies,
    is_delimiter,
    kind,
    uniform_attention,
)
from model.inspection.probes import Probe
from model.inspection.trace import AttendCall, blocks_of, observed, undisturbed

MAX_COUNTS = 5
MAX_WEIGHTS = 2**24  # of one layer at a time: 64 MiB

Count = Sequence[Any]  # (what, share of the weight, share under uniform attention)


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
    """

    windows: dict[str, list[int]]
    spread: dict[str, Any]
    halves: dict[str, Any]
    uniform: dict[str, float]
    queries: dict[str, list[int]]
    distance: Any
    distance_halves: Any
    reach: Any
    keys: list[list[list[Count]]]
    offsets: list[list[list[Count]]]
    kinds: list[list[list[str]]]

    def to_json(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Habits:
        """The inverse; None stands for NaN."""

        def tensors(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: tensors(item) for name, item in value.items()}
            return torch.from_numpy(np.array(value, np.float32))

        measured = {name: tensors(found[name]) for name in ("spread", "halves", "distance_halves", "reach", "distance")}
        return cls(**{**found, **measured})

    def weaker(self, name: str) -> Tensor:
        """A score in the half of the window where it is lower, (L, H); in the other where it cannot show in one."""
        halves = torch.as_tensor(self.halves[name])
        return halves.nan_to_num(nan=torch.inf).amin(0).where(~halves.isnan().all(0), torch.nan)


@dataclass(frozen=True)
class Windows:
    """Texts of T tokens each over which heads are measured.

    probe: "text" or "repeated", the kind of text.
    """

    probe: str
    texts: Sequence[Probe]

    @property
    def length(self) -> int:
        return len(self.texts[0].tokens)

    @cached_property
    def tokens(self) -> Tensor:
        """(N, T)"""
        return torch.tensor([text.tokens for text in self.texts])

    @cached_property
    def parts(self) -> Tensor:
        """(3, T): the queries of each part. The first query has nothing to choose from and is in none."""
        queries = torch.arange(self.length)
        return torch.stack([queries > 0, (queries > 0) & (queries < self.length // 2), queries >= self.length // 2])

    @cached_property
    def keys(self) -> dict[str, Tensor]:
        """The patterns that this kind of text can show, (N, T, T)."""
        patterns = {name: score.keys for name, score in SCORES.items() if score.keys and score.probe == self.probe}
        return {name: torch.stack([keys(text) for text in self.texts]) for name, keys in patterns.items()}

    @cached_property
    def counted(self) -> dict[str, Tensor]:
        """The queries that count for each pattern, (N, T)."""
        return {name: torch.stack([choosing(one) for one in keys]) for name, keys in self.keys.items()}

    @cached_property
    def labels(self) -> list[str]:
        """The different texts of tokens."""
        return list(dict.fromkeys(label for text in self.texts for label in text.labels))

    @cached_property
    def places(self) -> Tensor:
        """Which of `labels` each token is, (N, T)."""
        places = {label: place for place, label in enumerate(self.labels)}
        return torch.tensor([[places[label] for label in text.labels] for text in self.texts])

    @cached_property
    def uniform(self) -> dict[str, Any]:
        """The figures of uniform attention."""
        weights = uniform_attention(self.length).expand(len(self.texts), 1, -1, -1)
        return _summed_up(self, {name: x[None] for name, x in _measured(self, weights, slice(None)).items()})


def windows_of(texts: Mapping[str, Sequence[Probe]]) -> dict[str, Windows]:
    return {name: Windows(name, of_kind) for name, of_kind in texts.items()}


@torch.no_grad()
def survey(gpt: GPT, windows: Mapping[str, Windows]) -> tuple[dict[str, Tensor], Habits]:
    """The scores (L, H) of a model, and what its heads do. The model runs as in `capture`, without autocast."""
    with undisturbed(gpt):
        return summary(windows, {name: _measured_by(gpt, of_kind) for name, of_kind in windows.items()})


def _measured_by(gpt: GPT, windows: Windows) -> dict[str, Tensor]:
    """The figures of all layers of a model, for each window by itself: (L, N, ...)."""
    layers = [block.attention for block in blocks_of(gpt)]
    rows = max(1, MAX_WEIGHTS // (layers[0].num_heads * windows.length**2))
    pieces = []
    for start in range(0, len(windows.texts), rows):
        piece = slice(start, start + rows)
        by_layer: list[dict[str, Tensor]] = []

        def see(call: AttendCall, piece=piece, by_layer=by_layer) -> None:
            by_layer.append(_measured(windows, call.weights().float().cpu(), piece))

        with observed(layers, see):
            gpt.features(windows.tokens[piece].to(gpt.token_embedding.weight.device))
        pieces.append({key: torch.stack([one[key] for one in by_layer]) for key in by_layer[0]})
    return {key: torch.cat([one[key] for one in pieces], dim=1) for key in pieces[0]}


def survey_maps(maps: Mapping[str, Any], probes: Mapping[str, Probe]) -> tuple[dict[str, Tensor], Habits]:
    """As `survey`, of maps (L, H, T, T) that are known already: each probe is the only window of its kind."""
    windows = windows_of({name: [probe] for name, probe in probes.items()})
    measured = {}
    for name, of_kind in windows.items():
        by_layer = [_measured(of_kind, torch.as_tensor(layer)[None].float(), slice(None)) for layer in maps[name]]
        measured[name] = {key: torch.stack([one[key] for one in by_layer]) for key in by_layer[0]}
    return summary(windows, measured)


def _measured(windows: Windows, weights: Tensor, piece: slice) -> dict[str, Tensor]:
    """The figures of one layer's maps (N, H, T, T), for each window of the piece by itself: (N, ...)."""
    parts = windows.parts.float()

    def mean(values: Tensor, counted: Tensor) -> Tensor:
        """(N, H, T) and the queries that count (N, T) -> (N, 3, H), NaN where none counts."""
        queries = counted[:, None] * parts
        return torch.einsum("nhq,nsq->nsh", values, queries) / queries.sum(-1, keepdim=True)

    found = {}
    for name, keys in windows.keys.items():
        on_keys = (weights * keys[piece, None]).sum(-1)
        found[name] = mean(on_keys, windows.counted[name][piece].float())
    if windows.probe == "text":
        each = torch.ones(weights.shape[0], windows.length)
        nats = entropies(weights)
        found["entropy"] = mean(nats / torch.log1p(torch.arange(windows.length)).clamp(min=1e-9), each)
        found["reach"] = mean(nats.exp(), each)
        found["by_distance"] = torch.einsum("nhqd,sq->nshd", by_distance(weights), parts)
        found["by_key"] = weights[..., 1:, :].sum(-2)
    return found


def _summed_up(windows: Windows, measured: Mapping[str, Tensor]) -> dict[str, Any]:
    """The figures over all windows, from those of each window (L, N, ...)."""
    found: dict[str, Any] = {"scores": {}, "spread": {}, "halves": {}, "queries": {}}

    def add(name: str, of_windows: Tensor, queries: Tensor) -> None:
        """of_windows: (L, N, 3, H). queries: (N, 3), how many count."""
        mean = of_windows.nanmean(1)
        deviation = (of_windows - mean[:, None])[:, :, 0].square().nanmean(1).sqrt()
        shows = bool(queries.sum())
        found["scores"][name] = mean[:, 0].clamp(0, 1) if shows else torch.zeros_like(mean[:, 0])
        found["spread"][name] = deviation if shows else torch.zeros_like(deviation)
        found["halves"][name] = mean[:, 1:].transpose(0, 1).clamp(0, 1)
        found["queries"][name] = queries[:, 1:].sum(0).tolist()

    for name, counted in windows.counted.items():
        add(name, measured[name], (counted[:, None] & windows.parts).sum(-1))
    if windows.probe != "text":
        return found
    N, T = windows.tokens.shape
    every = windows.parts.sum(-1).expand(N, -1)
    add("entropy", measured["entropy"], every)
    found["reach"] = measured["reach"].nanmean(1).transpose(0, 1)  # (3, L, H)

    positions = torch.arange(T)
    having = (windows.parts[:, :, None] & (positions[:, None] >= positions)).sum(1)  # (3, T): by part and distance
    means = measured["by_distance"] / having[:, None].clamp(min=1)  # (L, N, 3, H, T)
    possible = torch.stack([distances(T, part) for part in windows.parts])  # (3, T)
    best = means.mean(1).where(possible[:, None], -1).max(-1)  # (L, 3, H)
    found["distance"] = best.indices.transpose(0, 1).float()  # as it is read from a file
    found["distance_halves"] = best.values[:, 1:].transpose(0, 1).clamp(0, 1)
    chosen = best.indices[:, :1, :, None]  # that of the whole window, whose weight in the halves is measured too
    in_parts = means.gather(-1, chosen[:, None].expand(-1, N, 3, -1, -1))[..., 0]
    shows = possible[:, best.indices[:, 0]].transpose(0, 1)  # (L, 3, H)
    add("fixed_distance", in_parts.where(shows[:, None], torch.nan), torch.tensor([[N * max(1, T // 4)] * 3]))
    if not possible[0].any():  # the text is too short
        found["scores"]["fixed_distance"] = torch.zeros_like(best.values[:, 0])

    by_offset = measured["by_distance"][:, :, 0].sum(1) / (N * max(1, T - 1))  # (L, H, T)
    L, _, H, _ = measured["by_key"].shape
    by_token = measured["by_key"].transpose(1, 2).reshape(L, H, -1) / (N * max(1, T - 1))
    found["by_offset"] = by_offset
    found["by_token"] = by_offset.new_zeros(L, H, len(windows.labels)).index_add(2, windows.places.flatten(), by_token)
    return found


def summary(
    windows: Mapping[str, Windows], measured: Mapping[str, Mapping[str, Tensor]]
) -> tuple[dict[str, Tensor], Habits]:
    """The scores and the habits, from the figures of each window."""
    found = {name: _summed_up(of_kind, measured[name]) for name, of_kind in windows.items()}
    text, labels = found["text"], windows["text"].labels
    uniform = windows["text"].uniform

    def by_name(field: str, of: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {name: of[score.probe][field][name] for name, score in SCORES.items()}

    delimiters: dict[str, list[int]] = {}
    for place, label in enumerate(labels):
        if is_delimiter(label):
            delimiters.setdefault(kind(label), []).append(place)
    keys, offsets, kinds = [], [], []
    for tokens, relative in zip(text["by_token"], text["by_offset"], strict=True):  # layers
        keys.append([_most(labels, head, uniform["by_token"][0, 0]) for head in tokens])
        names = range(0, -len(relative[0]), -1)
        offsets.append([_most(names, head, uniform["by_offset"][0, 0]) for head in relative])
        kinds.append(
            [_main_kinds({name: head[places].sum().item() for name, places in delimiters.items()}) for head in tokens]
        )
    habits = Habits(
        windows={name: [len(of_kind.texts), of_kind.length] for name, of_kind in windows.items()},
        spread=by_name("spread", found),
        halves=by_name("halves", found),
        uniform={
            name: value.item()
            for name, value in by_name("scores", {name: of_kind.uniform for name, of_kind in windows.items()}).items()
        },
        queries=by_name("queries", found),
        distance=text["distance"],
        distance_halves=text["distance_halves"],
        reach=text["reach"],
        keys=keys,
        offsets=offsets,
        kinds=kinds,
    )
    return by_name("scores", found), habits


def _main_kinds(shares: Mapping[str, float]) -> list[str]:
    """The kind with the largest share, and the next if it has more than half of that."""
    ranked = sorted(shares.items(), key=lambda item: -item[1])[:2]
    return [name for name, share in ranked if share > ranked[0][1] / 2]


def _most(names: Sequence[Any], shares: Tensor, uniform: Tensor) -> list[Count]:
    """The names with the largest excess over uniform attention, of N shares for each."""
    excess, order = (shares - uniform).topk(min(MAX_COUNTS, len(names)))
    return [
        [names[i], round(shares[i].item(), 4), round(uniform[i].item(), 4)]
        for more, i in zip(excess.tolist(), order.tolist(), strict=True)
        if more > 0
    ]
