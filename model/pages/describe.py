"""What each head does, in a sentence, and on what evidence. Pure functions of what a recording says of the heads.

A head gets the name of a pattern that it follows in all of the window (see `heads`), and of several that which says
most about where it looks (see `heads.information`).

Shapes: L layers, H heads, T tokens.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from model.inspection.experiments import Effect
from model.inspection.heads import SCORES, choosing, information, threshold
from model.inspection.recording import Recording, Snapshot

LABEL_LENGTH = 20
SIGNS = {
    " ": "·",
    "\n": "↵",
    "\t": "⇥",
    "\r": "␍",
}
RESTING = {"sink", "current_token"}
WITHIN = {"recent": {"previous_token", "current_token"}}  # patterns whose keys are among those of another

Description = dict[str, Any]
Place = tuple[int, int]  # (layer, head)


def describe_heads(snapshot: Snapshot, effects: Sequence[Effect] = ()) -> list[list[Description]]:
    """One description for each head, [L][H].

    effects: what experiments have found of the same model.

    name: of the pattern in SCORES that the head follows, or None.
    patterns: names of those that the sentence tells: this one, and another that it follows on text.
    sentence, evidence: for people. The evidence holds the numbers that the sentence rests on.
    """
    layers, heads = snapshot.shape
    return [[_described(snapshot, effects, (layer, head)) for head in range(heads)] for layer in range(layers)]


def _described(
    snapshot: Snapshot,
    effects: Sequence[Effect],
    at: Place,
) -> Description:
    name, patterns, evidence = None, [], []
    if snapshot.heads.windows["text"][1] < 2:
        sentences = ["The text is a single token, so there is nothing to choose from"]
    elif not np.isfinite(snapshot.scores["entropy"][at]):
        sentences = ["Its weights are not numbers: the model diverged"]
    else:
        name, on_text = followed(snapshot, at), followed(snapshot, at, "text")
        patterns = [one for one in dict.fromkeys((name, on_text)) if one]
        spreads = _spreads(float(snapshot.heads.reach[at]))
        if name is None:
            sentences = [f"Follows no pattern that has a name: it {spreads}"]
        else:
            sentences = [_looks(name, on_text)]
            evidence = [_score(snapshot, name, at), f"On ordinary text it {spreads}"]
        head = "{}.{}".format(*at)
        found = [effect for effect in effects if effect.head == head and effect.weight]
        sentences += [f"It {one.finding}, with {one.weight:.0%} of its weight (“{one.title}”)" for one in found]
    told = {"sentence": _text(sentences), "evidence": _text(evidence)}
    return {
        "name": name,
        "patterns": patterns,
        **told,
    }


def followed(
    snapshot: Snapshot,
    at: Place,
    kind: str | None = None,
) -> str | None:
    """The pattern that a head follows: of several the one that says most. kind: only those that show on such windows.

    A head that looks at the token just before also looks at recent tokens, and is said to do the first.
    """
    formed = {name for name in SCORES if snapshot.heads.formed[name][at]}
    names = [name for name in SCORES if name in formed and kind in (None, SCORES[name].probe)]
    names = [name for name in names if not WITHIN.get(name, set()) & formed]
    return max(names, key=lambda name: informs(snapshot, name, at), default=None)


def informs(
    snapshot: Snapshot,
    name: str,
    at: Place,
) -> float:
    """What a pattern says about where a head looks, in nats."""
    if not SCORES[name].is_pattern:
        return 0.0
    return information(snapshot.scores[name][at].item(), snapshot.heads.uniform[name])


def first_formed(recording: Recording) -> list[dict[str, Any]]:
    """When the first head of each pattern formed, by step: {"score", "head", "step"}.

    Of several that formed at once it is the one that was strongest then, whatever they do later.
    """
    found = []
    for name, heads in recording.formation.items():
        if not heads:
            continue
        step = min(heads.values())
        scores = recording.at(step).scores[name]
        at_once = [head for head, formed in heads.items() if formed == step]
        head = max(at_once, key=lambda one: scores[tuple(map(int, one.split(".")))])
        found.append({"score": name, "head": head, "step": step})
    return sorted(found, key=lambda one: one["step"])


def visible(label: str, length: int = LABEL_LENGTH) -> str:
    """A token's text as the page writes it: a sign for each space and line break, an escape for what has no shape."""
    shown = (SIGNS.get(char) or (char if char.isprintable() else f"\\u{ord(char):04x}") for char in label[: length + 1])
    return shortened("".join(shown) or "∅", length)


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


# ---- sentences


def _text(sentences: Sequence[str]) -> str:
    return " ".join(f"{one}." for one in sentences)


def _looks(name: str, on_text: str | None) -> str:
    """Such as "Looks at the token just before"."""
    sentence = SCORES[name].meaning
    if SCORES[name].probe == "repeated":
        sentence = f"where the text repeats itself, it {sentence}"
        if on_text:
            sentence += f"; elsewhere {SCORES[on_text].meaning.removeprefix('looks ')}"
    return sentence[0].upper() + sentence[1:]


def _spreads(tokens: float) -> str:
    if tokens < 1.5:
        return "puts its weight on a single token"
    return f"spreads its weight over {tokens:.0f} tokens on average"


def _score(
    snapshot: Snapshot,
    name: str,
    at: Place,
) -> str:
    """Such as "0.71 ± 0.02 of its weight on 16 windows of 128 tokens (uniform attention: ...)", with standard error."""
    kind, uniform = SCORES[name].probe, snapshot.heads.uniform[name]
    total, length = snapshot.heads.windows[kind]
    count = snapshot.heads.counts[name]
    error = f" ± {snapshot.heads.errors[name][at]:.2f}" if count > 1 else ""
    # A pattern of lines or signs is not in every window, and only where it is can it be shown.
    windows = f"{count} windows of " if count == total else f"{count} of {total} windows of "
    if total == 1:
        windows = ""
    repeats = " that repeat" if kind == "repeated" else ""
    limits = f"(uniform attention: {uniform:.2f}; it is called so from {threshold(uniform):.2f} on)"
    return f"{snapshot.scores[name][at]:.2f}{error} of its weight on {windows}{length} tokens{repeats} {limits}"


# ---- what a page opens with


def opening_view(recording: Recording, step: int) -> dict[str, Any]:
    """The head that teaches most, and the token that shows it: {"head", "probe", "token", "score"}.

    head: layer * H + head, of the head about which its name says most; one that rests only if no other has a name, and
        without any the first.
    probe, score: the names of the probe that shows the pattern, and of the pattern.
    token: the last query that reads nearly as clearly as any, of those whose next token is known.
    """
    snapshot = recording.at(step)
    kind = "text" if recording.is_prompt else None
    named = {}
    for at in np.ndindex(snapshot.shape):
        name = followed(snapshot, at, kind)
        if name:
            named[at] = name
    if not named:
        return {
            "head": 0,
            "probe": "text",
            "token": max(0, recording.probes["text"].length - 2),
            "score": next(iter(SCORES)),
        }
    layer, head = max(named, key=lambda at: (named[at] not in RESTING, informs(snapshot, named[at], at)))
    name = named[layer, head]
    score = SCORES[name]
    texts = recording.probes[score.probe]
    keys = score.keys(texts)
    (counted,) = keys & choosing(keys, texts)[:, :, None]
    weights = recording.readings(step)[score.probe].maps[layer, head]
    clear = (weights * counted)[:-1].sum(-1)  # after the last the true next token is not known
    (tokens,) = torch.where(clear >= 0.9 * clear.max())
    return {
        "head": layer * snapshot.shape[1] + head,
        "probe": score.probe,
        "token": int(tokens[-1]),
        "score": name,
    }
