"""Sentences that say what each head does, with the numbers behind them: pure functions of a recording.

A head is named after a pattern that it follows over the whole window (see `heads`). If it follows several, its name is
the one that says most about where it looks (see `heads.information`).

Shapes: L layers, H heads, T tokens.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from model.inspection.experiments import Effect
from model.inspection.film import Film
from model.inspection.formation import head_name
from model.inspection.heads import SCORES, information
from model.inspection.recording import Recording, Snapshot

LABEL_LENGTH = 20
SIGNS = {
    " ": "·",
    "\n": "↵",
    "\t": "⇥",
    "\r": "␍",
}
RESTING = {"first_token", "current_token"}  # patterns of a head that gathers nothing from the text
NARROWER = {"recent": {"previous_token", "current_token"}}  # by pattern: patterns that look at only some of its keys

Description = dict[str, Any]
Head = tuple[int, int]  # (layer, head)


def describe_heads(snapshot: Snapshot, effects: Sequence[Effect] = ()) -> list[Description]:
    """Describes each head, layer by layer.

    effects: the experiments that hold for the same model.

    Each description has:
    patterns: of SCORES: the one that the head follows, and the one that it follows on ordinary text; [] if none.
    sentence: text for people, with the numbers on which it rests.
    """
    return [_described(snapshot, effects, at) for at in np.ndindex(snapshot.shape)]


def _described(snapshot: Snapshot, effects: Sequence[Effect], at: Head) -> Description:
    patterns: list[str] = []
    if not np.isfinite(snapshot.scores["entropy"][at]):
        sentences = ["Its weights are not numbers: the model diverged"]
    else:
        name, on_text = followed(snapshot, at), followed(snapshot, at, "text")
        patterns = [pattern for pattern in dict.fromkeys((name, on_text)) if pattern]
        sentences = [
            _looks(snapshot, at, name, on_text)
            if name
            else "On average over many texts it follows no pattern that has a name",
            f"On ordinary text it spreads its weight over {snapshot.heads.reach[at]:.1f} tokens on average",
        ]
        for effect in effects:
            if effect.head == head_name(at) and effect.weight:
                weight = f"{effect.weight:.0%} of its weight on average over {effect.texts} texts"
                sentences.append(f"It {effect.finding}, with {weight} (experiment “{effect.title}”)")
    return {"patterns": patterns, "sentence": " ".join(f"{sentence}." for sentence in sentences)}


def followed(
    snapshot: Snapshot,
    at: Head,
    kind: str | None = None,
) -> str | None:
    """The pattern that a head follows, or None; if it follows several, the one that says most.

    kind: only consider patterns that are measured on windows of this kind, "text" or "repeated".

    A head that looks at the token just before also looks at recent tokens: only the narrower pattern counts.
    """
    formed = [name for name in SCORES if snapshot.heads.formed[name][at]]
    names = [name for name in formed if kind in (None, SCORES[name].kind)]
    names = [name for name in names if not NARROWER.get(name, set()).intersection(formed)]
    return max(names, key=lambda name: informs(snapshot, name, at), default=None)


def informs(
    snapshot: Snapshot,
    name: str,
    at: Head,
) -> float:
    """How much a pattern says about where a head looks, in nats."""
    return information(snapshot.scores[name][at].item(), snapshot.heads.uniform[name])


def first_formed(recording: Recording) -> list[dict[str, Any]]:
    """The first head of each pattern to form, sorted by step: {"score", "head", "step"}.

    If several heads formed at the same step, it is the one with the highest score at that step.
    """
    found = []
    for name, heads in recording.formation.items():
        if heads:
            step = min(heads.values())
            scores = recording.at(step).scores[name]
            at_once = [tuple(map(int, head.split("."))) for head, formed in heads.items() if formed == step]
            strongest = max(at_once, key=scores.__getitem__)
            found.append({"score": name, "head": head_name(strongest), "step": step})
    return sorted(found, key=lambda stage: stage["step"])


def visible(label: str, length: int = LABEL_LENGTH) -> str:
    """A token's text as the page writes it: signs for spaces and line breaks, escapes for unprintable characters."""
    shown = (SIGNS.get(char) or (char if char.isprintable() else f"\\u{ord(char):04x}") for char in label[: length + 1])
    return shortened("".join(shown) or "∅", length)


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


# ---- sentences


def _looks(
    snapshot: Snapshot,
    at: Head,
    name: str,
    on_text: str | None,
) -> str:
    """Says what the head does, such as "Looks at the token just before (0.71 ± 0.02 of its weight)"."""
    error = snapshot.heads.errors[name][at]
    score = f"{snapshot.scores[name][at]:.2f}" + (f" ± {error:.2f}" if error > 0 else "")
    sentence = f"{SCORES[name].meaning} ({score} of its weight)"
    if SCORES[name].kind == "repeated":
        sentence = f"where the text repeats itself, it {sentence}"
        if on_text:
            sentence += f"; elsewhere {SCORES[on_text].meaning.removeprefix('looks ')}"
    return sentence[0].upper() + sentence[1:]


# ---- what a page opens with


def opening_text(recording: Recording, film: Film | None, tokenizer: Any) -> str:
    """The text in the page's text box: the film's word, a user's prompt, or else recorded text up to a line's end."""
    if film and film.finder:
        return "".join(recording.words.labels[film.word][:-1])
    # One document, the longest: the text box cannot hold an end-of-text token.
    ids = recording.probes["text"].tokens[0].tolist()
    documents = groupby(ids, lambda token: token == tokenizer.end_of_text)
    text = max((tokenizer.decode([*document]) for is_end, document in documents if not is_end), key=len, default="")
    whole_lines = text[: text.rfind("\n") + 1].rstrip()
    return text if recording.is_prompt or 2 * len(whole_lines) < len(text) else whole_lines


def opening_view(recording: Recording, film: Film | None = None) -> dict[str, Any]:
    """The head that the page opens with, its pattern, and the probe that shows this: {"head", "score", "probe"}.

    With a film, it is the finder. Else it is the head whose pattern says most about where it looks; a head that rests
    only if no other follows a pattern, and the first head if none does.
    """
    snapshot = recording.at(recording.mapped[-1])
    kind = "text" if recording.is_prompt else None

    def clarity(at: Head) -> tuple[bool, float]:
        name = followed(snapshot, at, kind)
        return (name not in RESTING, informs(snapshot, name, at)) if name else (False, -1)

    if film and film.finder:
        at, name, probe = film.finder, "induction", "word"
    else:
        at = max(np.ndindex(snapshot.shape), key=clarity)
        name = followed(snapshot, at, kind) or next(iter(SCORES))
        probe = SCORES[name].kind
    return {"head": head_name(at), "score": name, "probe": probe}
