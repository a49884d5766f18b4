"""What each head does, in a sentence, and on what evidence. Pure functions of maps, probes and ablations.

A head gets the name of a pattern (see `heads`) only where its score is past a third of the way from uniform attention
to 1, as for formation, and where random attention would hardly have that score, because on a short text even that may
be past it. Of other heads only the counts are told: which tokens get more of their weight than under uniform attention.

Shapes: L layers, H heads, T tokens.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from model.inspection.heads import SCORES, choosing, entropy, is_delimiter, threshold, uniform_attention, weight_on
from model.inspection.probes import Probe

CHANCE = 1e-7  # how likely random attention may be to get a name
MAX_COUNTS = 5
TOLD_EXCESS = 0.02  # of the weight, above uniform attention, for a token to be told in a sentence
LABEL_LENGTH = 20
SIGNS = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"}
RIGHT_TO_LEFT = {"R", "AL", "AN"}
PLACES = {"text": "on the text", "repeated": "on repeated tokens"}
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

RESTING = {"sink", "current_token"}

Description = dict[str, Any]
View = dict[str, Any]
Counts = list[tuple[Any, float, float]]  # (what, share of the weight, share under uniform attention)
Place = tuple[int, int]  # (layer, head)


@dataclass(frozen=True)
class Pattern:
    """A pattern, and how much all heads follow it. keys: (T, T), see `heads`. scores: (L, H)."""

    name: str
    probe: str
    keys: Tensor
    scores: Tensor

    @cached_property
    def uniform(self) -> float:
        """The score of uniform attention."""
        return weight_on(uniform_attention(len(self.keys)), self.keys).item()

    @cached_property
    def information(self) -> Tensor:
        """What the pattern says about where each head looks, (L, H): KL divergence from uniform attention, in nats."""
        score, uniform = self.scores, self.uniform
        divergence = torch.xlogy(score, score / uniform) + torch.xlogy(1 - score, (1 - score) / (1 - uniform))
        return divergence.where(score > uniform, 0)

    @cached_property
    def clear(self) -> Tensor:
        """Whether each head follows the pattern so much that it gets the name, (L, H)."""
        queries = choosing(self.keys).sum()
        # Hoeffding 1963, theorem 1: n independent weights have this mean with a chance of at most exp(-n information).
        return (self.scores > threshold(self.uniform)) & ((-queries * self.information).exp() < CHANCE)


def describe_heads(
    maps: Mapping[str, ArrayLike], probes: Mapping[str, Probe], ablation: Mapping[str, Mapping] | None = None
) -> list[list[Description]]:
    """One description for each head, [L][H].

    name: of the pattern in SCORES that the head follows, or None.
    sentence, evidence: for people. The evidence holds the numbers that the sentence rests on.
    keys: up to MAX_COUNTS of (token, share, uniform share), those first that exceed uniform attention most. Shares are
        of all weight on the text, except the first query's, which has no choice. Tokens are written as by `visible`.
    offsets: the same for relative positions; 0 is the query itself and -1 the token before.

    Args:
        maps: for each probe (L, H, T, T).
        probes: "text" and "repeated".
        ablation: probe -> {"heads": [L][H], the change of the loss in nats per token without that head}.
    """
    tensors = _tensors(maps)
    text, labels = tensors["text"], probes["text"].labels
    layers, heads, length, _ = text.shape
    if length < 2:
        alone = _only("The text is a single token, so there is nothing to choose from.")
        return [[alone] * heads for _ in range(layers)]
    patterns = find_patterns(tensors, probes)
    entropies, uniform = entropy(text), uniform_attention(length)
    tokens, groups = _tokens(labels)
    key_shares, uniform_keys = (weights[..., 1:, :].mean(-2) @ groups for weights in (text, uniform))
    offset_shares, uniform_offsets = _offset_shares(text), _offset_shares(uniform)
    described: list[list[Description]] = [[] for _ in range(layers)]
    for at in np.ndindex(layers, heads):
        layer, head = at
        if not text[at].isfinite().all():
            described[layer].append(_only("Its weights are not numbers: the model diverged."))
            continue
        counts = {
            "keys": _most(tokens, key_shares[at], uniform_keys),
            "offsets": _most(range(0, -length, -1), offset_shares[at], uniform_offsets),
        }
        changes = {probe: measured["heads"][layer][head] for probe, measured in (ablation or {}).items()}
        if pattern := followed(patterns, at):
            score = f"{pattern.scores[at]:.2f} of its weight {PLACES[pattern.probe]}"
            evidence = [f"{score} (uniform attention: {pattern.uniform:.2f})", *_without(changes, pattern.probe)]
            named = {"name": pattern.name, "sentence": _named(pattern, text[at], labels, **counts)}
        else:
            spread = f"entropy {entropies[at]:.2f}, where uniform attention has 1"
            evidence = [*_closest(patterns, at), spread, *_without(changes, "text")]
            named = {"name": None, "sentence": _unnamed(**counts)}
        described[layer].append({**named, "evidence": "; ".join(evidence), **counts})
    return described


def _only(sentence: str) -> Description:
    return {"name": None, "sentence": sentence, "evidence": "", "keys": [], "offsets": []}


def find_patterns(maps: Mapping[str, Tensor], probes: Mapping[str, Probe]) -> list[Pattern]:
    """The patterns that the probes can show."""
    found = []
    for name, score in SCORES.items():
        if score.keys is not None and score.probe in probes and len(probes[score.probe].tokens) > 1:
            keys = score.keys(probes[score.probe])
            if choosing(keys).any():
                found.append(Pattern(name, score.probe, keys, weight_on(maps[score.probe], keys)))
    return found


def followed(patterns: Sequence[Pattern], at: Place) -> Pattern | None:
    """The pattern whose name a head gets: of those that are clear the one that says most about it.

    A head that looks at the token just before also looks at recent tokens, but the first says more.
    """
    clear = [pattern for pattern in patterns if pattern.clear[at]]
    return max(clear, key=lambda pattern: pattern.information[at].item(), default=None)


def visible(label: str, length: int = LABEL_LENGTH) -> str:
    """A token's text as the page writes it: a sign for each space and line break, an escape for what has no shape."""
    return shortened("".join(_sign(char) for char in label[: length + 1]) or "∅", length)


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


# ---- sentences


def _named(pattern: Pattern, weights: Tensor, labels: Sequence[str], keys: Counts, offsets: Counts) -> str:
    meaning = SCORES[pattern.name].meaning
    sentence = meaning[0].upper() + meaning[1:]
    if pattern.name == "delimiter":
        sentence += f", here mostly {_kinds(weights, labels)}"
    elif pattern.name == "recent" and (told := _told(keys, offsets)):
        sentence += f", most at {told}"
    return sentence + "."


def _unnamed(keys: Counts, offsets: Counts) -> str:
    told = _told(keys, offsets)
    return f"Nothing stands out: it looks most at {told}." if told else "Nothing stands out: it looks everywhere alike."


def _told(keys: Counts, offsets: Counts) -> str:
    """What gets clearly more weight than under uniform attention: up to three tokens and one relative position."""
    told = [(share, _quoted(token)) for token, share, uniform in keys if share > uniform + TOLD_EXCESS][:3]
    told += [(share, _distance(offset)) for offset, share, uniform in offsets[:1] if share > uniform + TOLD_EXCESS]
    return _listed([f"{what} ({100 * share:.0f}%)" for share, what in sorted(told, reverse=True)])


def _closest(patterns: Sequence[Pattern], at: Place) -> list[str]:
    """The pattern that says most about a head without a name, and why it does not get that name."""
    closest = max(patterns, key=lambda pattern: pattern.information[at].item(), default=None)
    if closest is None or closest.information[at] == 0:
        return []
    score, needed = closest.scores[at].item(), threshold(closest.uniform)
    reason = f"the name needs {needed:.2f}" if score <= needed else "on too few tokens to exclude chance"
    return [f"closest to {closest.name.replace('_', ' ')!r} with {score:.2f} of its weight ({reason})"]


def _without(changes: Mapping[str, float | None], probe: str) -> list[str]:
    """What ablation says."""
    change = changes.get(probe)
    if change is None or not math.isfinite(change):
        return []
    if abs(change) < 0.005:
        return [f"without it the loss {PLACES[probe]} stays the same (to 0.005 nats per token)"]
    verb = "rises" if change > 0 else "falls"
    return [f"without it the loss {PLACES[probe]} {verb} by {abs(change):.2f} nats per token"]


def _kinds(weights: Tensor, labels: Sequence[str]) -> str:
    """The kinds of delimiters that get most of the weight on delimiters, in words."""
    shares: Counter[str] = Counter()
    for label, share in zip(labels, weights[1:].sum(0).tolist(), strict=True):
        if is_delimiter(label):
            shares[kind(label)] += share
    (_, most), *_ = ranked = shares.most_common(2)
    return _listed([name for name, share in ranked if share > most / 2])


def kind(label: str) -> str:
    """What sort of delimiter a token is, in words."""
    return next((name for name, signs in KINDS.items() if set(signs) & set(label)), "other signs")


def _distance(offset: int) -> str:
    return {0: "the token itself", -1: "the token just before"}.get(offset, f"the token {-offset} back")


def _listed(parts: Sequence[str]) -> str:
    """Such as "a, b and c"."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def _quoted(label: str) -> str:
    """A visible label within a sentence. Text from right to left is isolated, to leave the rest in order."""
    if any(unicodedata.bidirectional(char) in RIGHT_TO_LEFT for char in label):
        label = f"\u2068{label}\u2069"
    return f"“{label}”"


def _sign(char: str) -> str:
    return SIGNS.get(char) or (char if char.isprintable() else f"\\u{ord(char):04x}")


# ---- counts


def _tokens(labels: Sequence[str]) -> tuple[list[str], Tensor]:
    """The N different texts among T labels, as people see them, and which of them each token has: (T, N), ones."""
    shown = [visible(label) for label in labels]
    places = {name: place for place, name in enumerate(dict.fromkeys(shown))}
    return list(places), F.one_hot(torch.tensor([places[label] for label in shown])).float()


def _offset_shares(weights: Tensor) -> Tensor:
    """How much of its weight a head gives to the query itself, the token before, ...: (..., T, T) -> (..., T)."""
    length = weights.size(-1)
    sums = [weights[..., 1:, :].diagonal(1 - back, -2, -1).sum(-1) for back in range(length)]
    return torch.stack(sums, -1) / (length - 1)


def _most(names: Sequence[Any], shares: Tensor, uniform: Tensor) -> Counts:
    """The names with the largest excess over uniform attention, of N shares for each."""
    excess, order = (shares - uniform).topk(min(MAX_COUNTS, len(names)))
    return [
        (names[i], round(shares[i].item(), 4), round(uniform[i].item(), 4))
        for more, i in zip(excess.tolist(), order.tolist(), strict=True)
        if more > 0
    ]


def _tensors(maps: Mapping[str, ArrayLike]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.asarray(weights, np.float32)) for name, weights in maps.items()}


# ---- what a page opens with


def opening_view(maps: Mapping[str, ArrayLike], probes: Mapping[str, Probe], shown: int | None = None) -> View:
    """The head that teaches most, and the token that shows it: {"head", "probe", "token", "score"}.

    head: layer * H + head, of the head about which its pattern says most, which takes a clear pattern and sharp
        weights. Heads that rest read nothing, so they come after the others with a name, and heads without one last.
    probe: the name of the probe that shows the pattern.
    score: the name of the pattern.
    token: the query that reads most clearly, among the first `shown`. Of those that come near it is one that looks
        further back than one token, and a word.
    """
    tensors = _tensors(maps)
    patterns, (layers, heads) = find_patterns(tensors, probes), tensors["text"].shape[:2]
    if not patterns:
        return {"head": 0, "probe": "text", "token": 0, "score": next(iter(SCORES))}

    def teaches(at: Place) -> tuple[int, float]:
        pattern = followed(patterns, at)
        if pattern is None:
            return 0, max(pattern.information[at].item() for pattern in patterns)
        return (1 if pattern.name in RESTING else 2), pattern.information[at].item()

    layer, head = at = max(np.ndindex(layers, heads), key=teaches)
    pattern = followed(patterns, at) or max(patterns, key=lambda pattern: pattern.information[at].item())
    token = _clearest(pattern, tensors[pattern.probe][at], probes[pattern.probe].labels[:shown])
    return {"head": layer * heads + head, "probe": pattern.probe, "token": token, "score": pattern.name}


def _clearest(pattern: Pattern, weights: Tensor, labels: Sequence[str]) -> int:
    """The query among those of the labels that gives a key of its pattern most weight."""
    on_keys = (weights * (pattern.keys & choosing(pattern.keys)[:, None])).nan_to_num()[: len(labels)]
    most, key = on_keys.max(-1)
    near = [query for query, weight in enumerate(most.tolist()) if weight >= 0.9 * most.max()]
    return max(near, key=lambda query: (query - key[query] > 1, not is_delimiter(labels[query]), most[query].item()))
