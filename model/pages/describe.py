"""What each head does, in a sentence, and on what evidence. Pure functions of what a snapshot says of the heads.

A head gets the name of a pattern (see `heads`) if two things are true in both halves of the window. Its score is more
than a third of the way from uniform attention to 1. And random attention would hardly have that score; on a short text
it might. A head that does one thing in the first half of the window and another in the second is described by both.

Shapes: L layers, H heads, T tokens. Halves are the first and the second half of the windows, see `survey`.
"""

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from model.checks import listed
from model.inspection.archive import Snapshot
from model.inspection.heads import SCORES, choosing, is_delimiter, threshold
from model.inspection.probes import Probes
from model.inspection.survey import Count, Habits

CHANCE = 1e-7  # how likely random attention may be to get a name
NAMED_EXCESS = 0.02  # more than uniform attention gives: the share of the weight from which a sentence names a token
NO_EFFECT = 0.005  # nats per token: a smaller change of the loss is none
LABEL_LENGTH = 20
SIGNS = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"}
RIGHT_TO_LEFT = {"R", "AL", "AN"}
PLACES = {"text": "on the text", "repeated": "on repeated tokens"}
DISTANCES = {0: "the token itself", -1: "the token just before"}
HALVES = ("in the first half of the window", "in the second")
RESTING = {"sink", "current_token"}
WHOLE, FIRST, SECOND = range(3)  # the parts of a window, as `Habits` has them

Description = dict[str, Any]
Place = tuple[int, int]  # (layer, head)


@dataclass(frozen=True)
class FollowedPattern:
    """A pattern of `heads`, and how much all heads follow it.

    uniform: the score of uniform attention. queries: how many count in each half.
    scores: in each half, (2, L, H); NaN in a half where the pattern cannot show.
    distance: for "fixed_distance" how far back, in each half, (2, L, H).
    """

    name: str
    uniform: float
    queries: Sequence[int]
    scores: Tensor
    distance: Tensor | None = None

    @property
    def probe(self) -> str:
        return SCORES[self.name].probe

    @cached_property
    def information(self) -> Tensor:
        """What the pattern says about where each head looks, (2, L, H): KL divergence from uniform, in nats."""
        score, uniform = self.scores, torch.tensor(self.uniform)
        divergence = torch.xlogy(score, score / uniform) + torch.xlogy(1 - score, (1 - score) / (1 - uniform))
        return divergence.where(score > uniform, 0)

    @cached_property
    def clear(self) -> Tensor:
        """Whether each head follows the pattern so much that it gets the name, (2, L, H)."""
        # Hoeffding 1963, theorem 1: n independent weights have this mean with a chance of at most exp(-n information).
        chance = (-torch.tensor(self.queries)[:, None, None] * self.information).exp()
        return (self.scores > threshold(self.uniform)) & (chance < CHANCE)

    @cached_property
    def holds(self) -> Tensor:
        """Whether each head follows it wherever in the window it can show, (L, H)."""
        return (self.clear | self.scores.isnan()).all(0) & self.clear.any(0)

    @cached_property
    def strength(self) -> Tensor:
        """The information in the half where it is less, (L, H)."""
        return self.information.where(~self.scores.isnan(), torch.inf).amin(0).nan_to_num(posinf=0)


Patterns = Sequence[FollowedPattern]


def find_patterns(habits: Habits, by_half: bool = False) -> Patterns:
    """The patterns that the windows can show. by_half: let the fixed distance be another in each half."""
    found = []
    for name, score in SCORES.items():
        queries, halves, distance = habits.queries[name], habits.halves[name], None
        if not score.is_pattern or not sum(queries) or habits.windows[score.probe][1] < 2:
            continue
        if name == "fixed_distance":
            distance = torch.as_tensor(habits.distance).int()
            distance = distance[1:] if by_half else distance[:1].expand(2, -1, -1)
            halves = habits.distance_halves if by_half else halves
        found.append(FollowedPattern(name, habits.uniform[name], queries, torch.as_tensor(halves), distance))
    return found


def describe_heads(snapshot: Snapshot) -> list[list[Description]]:
    """One description for each head, [L][H].

    name: of the pattern in SCORES that the head follows, or None.
    sentence, evidence: for people. The evidence holds the numbers that the sentence rests on.
    """
    patterns = find_patterns(snapshot.habits)
    by_half = [pattern for pattern in find_patterns(snapshot.habits, by_half=True) if pattern.probe == "text"]
    layers, heads = snapshot.shape
    return [[_described(snapshot, patterns, by_half, (row, head)) for head in range(heads)] for row in range(layers)]


def _described(snapshot: Snapshot, patterns: Patterns, by_half: Patterns, at: Place) -> Description:
    habits, (layer, head) = snapshot.habits, at
    nothing: Description = {"name": None, "evidence": ""}
    if habits.windows["text"][1] < 2:
        return nothing | {"sentence": "The text is a single token, so there is nothing to choose from."}
    if not np.isfinite(snapshot.scores["entropy"][at]):
        return nothing | {"sentence": "Its weights are not numbers: the model diverged."}
    tokens = _favourites(habits.keys[layer][head], lambda token: _quoted(visible(token)))
    distances = _favourites(habits.offsets[layer][head], lambda n: DISTANCES.get(n, f"the token {-n} back"))
    pattern, halves = followed(patterns, at), [followed(by_half, at, half) for half in (0, 1)]
    probe = "text"
    if pattern and not _says_more(halves, pattern, at):
        probe = pattern.probe
        sentence = f"Looks {_phrase(habits, pattern, at)}"
        if pattern.name == "recent" and (most := tokens + distances[:2]):
            sentence, tokens, distances = f"{sentence}, most at {_with_shares(most)}", [], []
        elif probe == "repeated":
            elsewhere = followed([one for one in patterns if one.probe == "text"], at)
            sentence = f"Where the text repeats itself, it looks {_phrase(habits, pattern, at)}"
            sentence += f"; elsewhere {_phrase(habits, elsewhere, at)}" if elsewhere else ""
        evidence = [_score(snapshot, pattern, at), f"it {_spreads(habits, WHOLE, at)}"]
    elif any(halves):
        sentence = _in_halves(habits, halves, at)
        shares = [f"{one.scores[i][at]:.2f} of its weight {HALVES[i]}" for i, one in enumerate(halves) if one]
        where = f"on {windows_in_words(habits, 'text')}"
        evidence = [f"{' and '.join(shares)}, {where}", f"it {_spreads(habits, WHOLE, at)}"]
    else:
        most = tokens + distances[:1]
        sentence = capitalized(_spreads(habits, WHOLE, at))
        sentence += f", most on {_with_shares(most)}" if most else "; no token and no distance stands out"
        evidence, tokens, distances = _closest(patterns, at), [], []
    if snapshot.ablation:
        evidence += _without(snapshot.ablation[probe][f"head {layer}.{head}"], probe)
    sentences = [capitalized("; ".join(evidence))] if evidence else []
    if tokens:  # that are not in the sentence
        sentences.append(f"Over {windows_in_words(habits, 'text')} it looks most at {_with_shares(tokens)}")
    if distances:
        sentences.append(f"By distance: {_with_shares(distances)}")
    texts = {"sentence": f"{sentence}.", "evidence": " ".join(f"{one}." for one in sentences)}
    return {"name": pattern.name if pattern else None, **texts}


def followed(patterns: Patterns, at: Place, half: int | None = None) -> FollowedPattern | None:
    """The pattern whose name a head gets, in all of the window or in a half: of those that hold the one that says most.

    A head that looks at the token just before also looks at recent tokens, but the first says more.
    """
    holding = [pattern for pattern in patterns if (pattern.holds if half is None else pattern.clear[half])[at]]
    return max(
        holding, key=lambda one: (one.strength if half is None else one.information[half])[at].item(), default=None
    )


def visible(label: str, length: int = LABEL_LENGTH) -> str:
    """A token's text as the page writes it: a sign for each space and line break, an escape for what has no shape."""
    shown = (SIGNS.get(char) or (char if char.isprintable() else f"\\u{ord(char):04x}") for char in label[: length + 1])
    return shortened("".join(shown) or "∅", length)


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


# ---- sentences


def _phrase(habits: Habits, pattern: FollowedPattern, at: Place, half: int = 0) -> str:
    """Where a head looks that follows a pattern, such as "at the token just before"; in both halves, or in one."""
    layer, head = at
    if pattern.distance is not None:
        return f"exactly {pattern.distance[half][at]} tokens back"
    phrase = SCORES[pattern.name].meaning.removeprefix("looks ")
    if pattern.name == "delimiter" and (kinds := habits.kinds[layer][head]):
        phrase += f", here mostly {listed(kinds)}"
    return phrase


def _in_halves(habits: Habits, halves: Sequence[FollowedPattern | None], at: Place) -> str:
    """What a head does that follows no pattern in all of the window, but one in a half of it."""
    first, second = (one and _phrase(habits, one, at, half) for half, one in enumerate(halves))
    if first and second:
        return f"Looks {first} {HALVES[0]}, and {second} {HALVES[1]}"
    if first:
        return f"Looks {first} {HALVES[0]}; {HALVES[1]} it {_spreads(habits, SECOND, at)}"
    return f"{capitalized(HALVES[0])} it {_spreads(habits, FIRST, at)}; {HALVES[1]} it looks {second}"


def _says_more(halves: Sequence[FollowedPattern | None], pattern: FollowedPattern, at: Place) -> bool:
    """Whether what a head does in each half says more than the pattern that holds in both."""
    if pattern.distance is not None and pattern.scores[:, at[0], at[1]].isnan().any():
        return True  # a distance that is longer than the first half
    if pattern.probe == "repeated":
        return False
    return all(one and one.information[half][at] > pattern.information[half][at] for half, one in enumerate(halves))


def _spreads(habits: Habits, part: int, at: Place) -> str:
    tokens = float(habits.reach[part][at])
    if tokens < 1.5:
        return "puts its weight on a single token"
    return f"spreads its weight over about {tokens:.0f} tokens"


def _favourites(counts: Sequence[Count], name: Callable[[Any], str]) -> list[tuple[float, str]]:
    """Up to three that get clearly more weight than under uniform attention: their shares, and their names."""
    return [(share, name(what)) for what, share, uniform in counts if share > uniform + NAMED_EXCESS][:3]


def _with_shares(favourites: Sequence[tuple[float, str]]) -> str:
    return listed([f"{name} ({100 * share:.0f}%)" for share, name in sorted(favourites, reverse=True)])


def windows_in_words(habits: Habits, probe: str) -> str:
    """Such as "16 windows of 128 tokens"."""
    count, length = habits.windows[probe]
    texts = f"{count} windows of {length} tokens" if count > 1 else f"{length} tokens"
    return f"{texts} that repeat" if probe == "repeated" else texts


def _score(snapshot: Snapshot, pattern: FollowedPattern, at: Place) -> str:
    habits = snapshot.habits
    score, spread = (of[pattern.name][at] for of in (snapshot.scores, habits.spread))
    halves = zip(pattern.scores[:, at[0], at[1]].tolist(), ("in the first half", "in the second"), strict=True)
    each = " and ".join(f"{half:.2f} {where}" for half, where in halves if not math.isnan(half))
    between = f" ± {spread:.2f}" if habits.windows[pattern.probe][0] > 1 else ""
    return (
        f"{score:.2f}{between} of its weight on {windows_in_words(habits, pattern.probe)}, {each} "
        f"(uniform attention: {pattern.uniform:.2f})"
    )


def _closest(patterns: Patterns, at: Place) -> list[str]:
    """The pattern that says most about a head without a name, and why it does not get that name."""
    closest = max(patterns, key=lambda pattern: pattern.strength[at].item(), default=None)
    if closest is None or closest.strength[at] == 0:
        return []
    score, needed = np.nanmin(closest.scores[:, at[0], at[1]].numpy()), threshold(closest.uniform)
    queries = min(number for number in closest.queries if number)
    reason = f"the name needs {needed:.2f}" if score <= needed else f"on {queries} tokens, too few to exclude chance"
    return [f"closest to {closest.name.replace('_', ' ')!r} with {score:.2f} of its weight ({reason})"]


def _without(change: float, probe: str) -> list[str]:
    """What ablation says."""
    if not math.isfinite(change):
        return []
    if abs(change) < NO_EFFECT:
        return [f"without it the loss {PLACES[probe]} stays the same (to {NO_EFFECT} nats per token)"]
    verb = "rises" if change > 0 else "falls"
    return [f"without it the loss {PLACES[probe]} {verb} by {abs(change):.2f} nats per token"]


def _quoted(label: str) -> str:
    """A visible label within a sentence. Text from right to left is isolated, to leave the rest in order."""
    if any(unicodedata.bidirectional(char) in RIGHT_TO_LEFT for char in label):
        label = f"\u2068{label}\u2069"
    return f"“{label}”"


# ---- what a page opens with


def opening_view(
    snapshot: Snapshot, maps: Mapping[str, ArrayLike], probes: Probes, shown: int | None = None
) -> dict[str, Any]:
    """The head that teaches most, and the token that shows it: {"head", "probe", "token", "score"}.

    head: layer * H + head, of the head about which its pattern says most, which takes a clear pattern and sharp
        weights. Heads that rest read nothing, so they come after the others with a name, and heads without one last.
    probe, score: the names of the probe that shows the pattern, and of the pattern.
    token: the query that reads most clearly, among the first `shown`. Of those that come near it is one that looks
        further back than one token, and a word.
    """
    patterns, counted = [], {}  # by the name of each pattern its keys, of the queries that count
    for pattern in find_patterns(snapshot.habits):
        if (keys_of := SCORES[pattern.name].keys) and pattern.probe in probes:
            keys = keys_of(probes[pattern.probe])
            counted[pattern.name] = keys & choosing(keys, snapshot.habits.attention_window)[:, None]
            if counted[pattern.name].any():
                patterns.append(pattern)
    if not patterns:
        return {"head": 0, "probe": "text", "token": 0, "score": next(iter(SCORES))}

    def teaches(at: Place) -> tuple[int, float]:
        pattern = followed(patterns, at)
        if pattern is None:
            return 0, max(pattern.strength[at].item() for pattern in patterns)
        return (1 if pattern.name in RESTING else 2), pattern.strength[at].item()

    layer, head = at = max(np.ndindex(snapshot.shape), key=teaches)
    pattern = followed(patterns, at) or max(patterns, key=lambda pattern: pattern.strength[at].item())
    weights = torch.from_numpy(np.asarray(maps[pattern.probe], np.float32))[at]
    token = _clearest(counted[pattern.name], weights, probes[pattern.probe].labels[:shown])
    return {"head": layer * snapshot.shape[1] + head, "probe": pattern.probe, "token": token, "score": pattern.name}


def _clearest(keys: Tensor, weights: Tensor, labels: Sequence[str]) -> int:
    """The query among those of the labels that gives one of its keys most weight."""
    on_keys = (weights * keys).nan_to_num()[: len(labels)]
    most, key = on_keys.max(-1)
    near = [query for query, weight in enumerate(most.tolist()) if weight >= 0.9 * most.max()]
    return max(near, key=lambda query: (query - key[query] > 1, not is_delimiter(labels[query]), most[query].item()))
