"""The page of a run, or of a model: one HTML file, which opens offline.

It tells how the run learned, shows the recorded maps at each step, and holds the weights of a few steps, with which the
browser runs the model on what a person types. While a run goes on it is written again and again, without weights.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from model.inspection.experiments import Effect, try_all
from model.inspection.heads import SCORES, threshold
from model.inspection.maps import Checks
from model.inspection.parts import ERRORS
from model.inspection.recording import Recording, take_snapshot
from model.mistakes import Mistake
from model.pages import template
from model.pages.blocks import compressed, evenly, pack_steps
from model.pages.describe import describe_heads, first_formed, opening_view
from model.pages.weights import Models, Packed, pack

MAX_MAP_BYTES = 25_000_000  # of the recorded maps and what was measured beside them
MAX_CURVE_POINTS = 300


def run_page(
    title: str,
    recording: Recording | None = None,
    *,
    learning: Mapping[str, Any] | None = None,
    models: Models = (),
    tokenizer: Any = None,
    state: str | None = None,
    gap: float = 0.0,
) -> str:
    """The page of what there is: of a run that has just begun, that is its title.

    Args:
        recording: whose maps it shows, and on whose windows experiments are tried.
        learning: see `learning.learning`.
        models: those whose weights the page holds, by step, in ascending order. Where they are too large, or have
            diverged, the page says so and has none. What the recording lacks of steps that it holds is measured here.
        tokenizer: of the models, one of `data.tokenizers`.
        state: of a run, "running", "interrupted" or "ended"; gap: the seconds since the page before this one.
    """
    data = legend(title) | {
        "learning": learning,
        "experiments": None,
        "run": None,
    }
    if state:
        data["status"] = {
            "state": state,
            "written": round(time.time(), 1),
            "gap": round(gap, 1),
        }
    notes: list[str] = []
    elements: list[str] = []
    held: list[int] = []  # the steps whose weights the page holds
    effects: Sequence[Effect] = ()  # what experiments found at the last of them
    if models and recording:
        model, notes = _packed(models, tokenizer, recording)
        if model:
            held = model.manifest["steps"]
            recording = _with_steps(recording, [one for one in models if one[0] in held], tokenizer)
            gpt, means = model.models[-1]
            effects, tried = try_all(gpt, tokenizer, recording.windows["text"], means)
            data["experiments"] = {"effects": [asdict(effect) for effect in effects], "tried": tried}
            data["text"] = _longest_document(recording.probes["text"].tokens[0].tolist(), tokenizer)
            elements = model.elements()
    if recording and recording.mapped:
        blocks, left_out = pack_steps(recording, MAX_MAP_BYTES, held)
        data["run"] = _about(recording, blocks, held)
        packed: list[str] = []  # before the weights, so that a page that is cut there still shows the maps
        for step, texts in blocks.items():
            described = describe_heads(recording.at(step), effects if [step] == held[-1:] else ())
            names = [f"block-{kind}-{step}" for kind in (*recording.probes, "details", "descriptions")]
            packed += map(template.json_element, names, [*texts, compressed(described)])
        elements = packed + elements
        notes += [*left_out, *recording.problems.values()]
    return template.fill(data | {"notes": notes}, elements)


def _with_steps(
    recording: Recording,
    models: Models,
    tokenizer: Any,
) -> Recording:
    """The recording, with what it lacks at the steps of the models."""
    steps = {step for step, _ in models}
    there = {one.step: one for one in recording.snapshots if one.step not in steps or one.ablation}
    for step, gpt in models:
        if step not in there or step not in recording.mapped:
            there[step] = take_snapshot(
                gpt,
                step,
                recording,
                tokenizer.label,
                with_losses=True,
            )
    return replace(recording, snapshots=[there[step] for step in sorted(there)])


def _packed(
    models: Models,
    tokenizer: Any,
    recording: Recording,
) -> tuple[Packed | None, list[str]]:
    """The models for the page: all, or the last alone, or none; and why a page has none."""
    probe, windows = recording.probes["text"], recording.windows["text"]
    for chosen in (models, models[-1:]):
        try:
            return pack(chosen, tokenizer, probe, windows), []
        except Mistake as mistake:
            reason = str(mistake)
    return None, [f"One cannot type to this model here: {reason}."]


def _about(
    recording: Recording,
    mapped: Collection[int],
    held: Sequence[int],
) -> dict[str, Any]:
    """What the page has of a recording beside its blocks: texts, scores and dates.

    mapped: the steps whose maps it shows; held: those whose weights it holds.
    """
    layers, heads = recording.snapshots[0].shape
    points = {*mapped, *evenly(recording.steps, MAX_CURVE_POINTS)}
    snapshots = []
    for one in recording.snapshots:
        if one.step in points:
            told = one.to_json() | _verdicts(one.checks) | {"mapped": one.step in mapped}
            if one.step in held:
                told["weights"] = held.index(one.step)
            snapshots.append(told)
    probes = [{"name": kind, "labels": of.labels[0], "period": of.period} for kind, of in recording.probes.items()]
    uniform = recording.snapshots[-1].heads.uniform
    return {
        "layers": layers,
        "heads": heads,
        "probes": probes,
        "uniform": uniform,
        "threshold": {name: threshold(share) for name, share in uniform.items()},
        "formation": recording.formation,
        "stages": first_formed(recording),
        "opening": opening_view(recording, recording.mapped[-1]),
        "snapshots": snapshots,
    }


def _verdicts(checks: Checks) -> dict[str, bool]:
    """Which of them hold. Of a model that is random none does: the others judge noise then."""
    wrong = checks.problems
    return {name: not wrong.keys() & {name, "repeatable"} for name in ("repeatable", "causal", "faithful")}


def _longest_document(tokens: Sequence[int], tokenizer: Any) -> str:
    """The text that is typed when the page opens: no one can type the token that ends a document."""
    end_of_text = tokenizer.label(tokenizer.end_of_text)
    return max(tokenizer.decode(tokens).split(end_of_text), key=len)


def legend(title: str) -> dict[str, Any]:
    """Title, colours, what the scores mean, and from how many standard errors on a change of the loss is clear."""
    scores = {
        name: {
            "label": name.replace("_", " "),
            "letter": score.letter or name[0].upper(),
            **{field: getattr(score, field) for field in ("meaning", "glossary", "probe", "is_pattern")},
        }
        for name, score in SCORES.items()
    }
    return {
        "title": title,
        "scores": scores,
        "errors": ERRORS,
        "colours": template.PALETTES,
    }
