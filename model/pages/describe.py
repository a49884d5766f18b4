"""Sentences that say what each head does, with the numbers behind them: pure functions of a recording.

A head is named after a pattern that it follows over the whole window (see `heads`). If it follows several, its name is
the one that says most about where it looks (see `heads.information`).

Shapes: L layers, H heads, T tokens.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch

from model.inspection.experiments import Effect
from model.inspection.film import Film
from model.inspection.heads import SCORES, choosing, information, threshold
from model.inspection.recording import Recording, Snapshot
from model.pages.film import LENGTH, film_of

LABEL_LENGTH = 20
SIGNS = {
    " ": "·",
    "\n": "↵",
    "\t": "⇥",
    "\r": "␍",
}
RESTING = {"sink", "current_token"}  # patterns of a head that gathers nothing from the text
NARROWER = {"recent": {"previous_token", "current_token"}}  # by pattern: patterns that look at only some of its keys

Description = dict[str, Any]
Place = tuple[int, int]  # (layer, head)


def describe_heads(snapshot: Snapshot, effects: Sequence[Effect] = ()) -> list[list[Description]]:
    """Describes each head, [L][H].

    effects: the experiments that hold for the same model.

    Each description has:
    name: the pattern in SCORES that the head follows, or None.
    patterns: the patterns that the sentence mentions: `name`, and the one that the head follows on ordinary text.
    sentence, evidence: text for people. The evidence holds the numbers on which the sentence rests.
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
        patterns = [pattern for pattern in dict.fromkeys((name, on_text)) if pattern]
        spreads = _spreads(float(snapshot.heads.reach[at]))
        if name is None:
            sentences = [f"Follows no pattern that has a name: it {spreads}"]
        else:
            sentences = [_looks(name, on_text)]
            evidence = [_score(snapshot, name, at), f"On ordinary text it {spreads}"]
        head = "{}.{}".format(*at)
        for effect in effects:
            if effect.head == head and effect.weight:
                weight = f"{effect.weight:.0%} of its weight on average over {effect.texts} texts"
                sentences.append(f"It {effect.finding}, with {weight} (experiment “{effect.title}”)")
    return {
        "name": name,
        "patterns": patterns,
        "sentence": _text(sentences),
        "evidence": _text(evidence),
    }


def followed(
    snapshot: Snapshot,
    at: Place,
    kind: str | None = None,
) -> str | None:
    """The pattern that a head follows, or None; if it follows several, the one that says most.

    kind: only consider patterns that are measured on windows of this kind, "text" or "repeated".

    A head that looks at the token just before also looks at recent tokens: only the narrower pattern counts.
    """
    formed = {name for name in SCORES if snapshot.heads.formed[name][at]}
    names = [name for name in SCORES if name in formed and kind in (None, SCORES[name].probe)]
    names = [name for name in names if not NARROWER.get(name, set()) & formed]
    return max(names, key=lambda name: informs(snapshot, name, at), default=None)


def informs(
    snapshot: Snapshot,
    name: str,
    at: Place,
) -> float:
    """How much a pattern says about where a head looks, in nats."""
    return information(snapshot.scores[name][at].item(), snapshot.heads.uniform[name])


def first_formed(recording: Recording) -> list[dict[str, Any]]:
    """The first head of each pattern to form, sorted by step: {"score", "head", "step"}.

    If several heads formed at the same step, it is the one with the highest score at that step.
    """
    found = []
    for name, heads in recording.formation.items():
        if not heads:
            continue
        step = min(heads.values())
        scores = recording.at(step).scores[name]
        at_once = [head for head, formed in heads.items() if formed == step]
        head = max(at_once, key=lambda layer_and_head: scores[tuple(map(int, layer_and_head.split(".")))])
        found.append({"score": name, "head": head, "step": step})
    return sorted(found, key=lambda stage: stage["step"])


def visible(label: str, length: int = LABEL_LENGTH) -> str:
    """A token's text as the page writes it: signs for spaces and line breaks, escapes for unprintable characters."""
    shown = (SIGNS.get(char) or (char if char.isprintable() else f"\\u{ord(char):04x}") for char in label[: length + 1])
    return shortened("".join(shown) or "∅", length)


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


# ---- sentences


def _text(sentences: Sequence[str]) -> str:
    return " ".join(f"{sentence}." for sentence in sentences)


def _looks(name: str, on_text: str | None) -> str:
    """Says what the head does, such as "Looks at the token just before"."""
    sentence = SCORES[name].meaning
    if SCORES[name].probe == "repeated":
        sentence = f"where the text repeats itself, it {sentence}"
        if on_text:
            sentence += f"; elsewhere {SCORES[on_text].meaning.removeprefix('looks ')}"
    return sentence[0].upper() + sentence[1:]


def _spreads(tokens: float) -> str:
    if tokens < 1.5:
        return "reads about one token at a time"
    return f"spreads its weight over {tokens:.0f} tokens on average"


def _score(
    snapshot: Snapshot,
    name: str,
    at: Place,
) -> str:
    """The score and its standard error, such as "0.71 ± 0.02 of its weight on 16 windows of 128 tokens (...)"."""
    kind, uniform = SCORES[name].probe, snapshot.heads.uniform[name]
    total, length = snapshot.heads.windows[kind]
    count = snapshot.heads.counts[name]
    error = f" ± {snapshot.heads.errors[name][at]:.2f}" if count > 1 else ""
    # Not every window has line breaks or brackets: a score counts only the windows that can show its pattern.
    windows = f"{count} windows of " if count == total else f"{count} of {total} windows of "
    if total == 1:
        windows = ""
    repeats = " that repeat" if kind == "repeated" else ""
    limits = f"(uniform attention: {uniform:.2f}; named above {threshold(uniform):.2f} in each half)"
    return f"{snapshot.scores[name][at]:.2f}{error} of its weight on {windows}{length} tokens{repeats} {limits}"


# ---- what a page opens with


def opening_text(recording: Recording, tokenizer: Any) -> str:
    """The text in the page's text box: the film's word, a user's prompt, or else recorded text up to a line's end."""
    film = film_of(recording)
    if film and film.finder:
        return "".join(recording.words.labels[film.word][:-1])
    # One document, the longest: the text box cannot hold an end-of-text token.
    ids = recording.probes["text"].tokens[0].tolist()
    documents = groupby(ids, lambda token: token == tokenizer.end_of_text)
    text = max((tokenizer.decode([*document]) for is_end, document in documents if not is_end), key=len, default="")
    whole_lines = text[: text.rfind("\n") + 1].rstrip()
    return text if recording.is_prompt or 2 * len(whole_lines) < len(text) else whole_lines


def opening_view(recording: Recording, film: Film | None = None) -> dict[str, Any]:
    """The head that the page opens with, and a token that shows what it does: {"head", "probe", "token", "score"}.

    head: layer * H + head. With a film, it is the finder. Else it is the head whose pattern says most about where it
        looks; a head that rests only if no other follows a pattern, and the first head if none does.
    probe, score: the names of the probe that shows the pattern, and of the pattern.
    token: the last query that puts nearly as much weight on the pattern as any. The last token of the probe is left
        out, because its true next token is not known.
    """
    step = recording.mapped[-1]
    if film and film.finder:
        layer, head = film.finder
        number = layer * recording.at(step).shape[1] + head
        return {"head": number, "probe": "word", "token": LENGTH - 1, "score": "induction"}
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
    known = max(1, texts.length - 1)  # without the last query, unless it is the only one
    clear = (weights * counted)[:known].sum(-1)  # the weight of each query on the pattern
    (tokens,) = torch.where(clear >= 0.9 * clear.max())
    return {
        "head": layer * snapshot.shape[1] + head,
        "probe": score.probe,
        "token": int(tokens[-1]),
        "score": name,
    }
