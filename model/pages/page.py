"""The page of a run, or of a model: one HTML file, which opens offline.

It tells how the run learned, shows the recorded maps at each step, and holds the weights of a few steps, with which the
browser runs the model on what a person types. While a run goes on it is written again and again, without weights.

The page holds the lower triangles of the maps, one byte 255 sqrt(p) a weight, which is within 0.004 of a weight from 0
to 1; of others the page says that it shows them as 0 or 1 (see `Checks`). Weights above the diagonal are left out: a
causal model has none, and of another the page says that it looks into the future. Each step has a block for the maps of
each text, one for what was predicted and why (see `Reading.figures`), and one for what each head does.

Shapes: L layers, H heads, T tokens.
"""

import base64
import gzip
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from torch import Tensor

from model.inspection.experiments import Effect, try_all
from model.inspection.heads import SCORES, threshold
from model.inspection.parts import ERRORS
from model.inspection.recording import Recording, Snapshot, take_snapshot
from model.mistakes import Mistake
from model.pages import template
from model.pages.describe import describe_heads, first_formed, opening_view
from model.pages.learning import evenly
from model.pages.weights import Models, Packed, pack

MAX_MAP_BYTES = 25_000_000  # of the recorded maps and what was measured beside them
MAX_STEPS = 100  # whose maps the page shows: more than one looks at, and each takes time to pack
MAX_CURVE_POINTS = 300

# Of the steps in the last page of a recording, as long as that lives: of a run that goes on, a page packs only what is
# new. It takes as many bytes as that page.
_packed_steps: WeakKeyDictionary[Snapshot, list[str]] = WeakKeyDictionary()


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
    data: dict[str, Any] = {
        "title": title,
        "scores": _scores(),
        "errors": ERRORS,
        "colours": template.PALETTES,
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
            # No one can type the token that ends a document.
            documents = tokenizer.decode(recording.probes["text"].tokens[0].tolist())
            data["text"] = max(documents.split(tokenizer.label(tokenizer.end_of_text)), key=len)
            elements = [template.json_element("manifest", model.manifest)]
            for number, weights in enumerate(model.blocks):
                elements.append(template.text_element(f"weights-{number}", weights))
    if recording and recording.mapped:
        blocks, left_out = pack_steps(recording, MAX_MAP_BYTES, held)
        data["run"] = _about(recording, blocks, held)
        maps: list[str] = []  # before the weights, so that a page that is cut there still shows them
        for step, of_step in blocks.items():
            described = describe_heads(recording.at(step), effects if [step] == held[-1:] else ())
            maps += [*of_step, _block(f"descriptions-{step}", template.to_json(described).encode())]
        elements = maps + elements
        notes += [*left_out, *recording.problems.values()]
    return template.fill(data | {"notes": notes}, elements)


def _with_steps(
    recording: Recording,
    models: Models,
    tokenizer: Any,
) -> Recording:
    """The recording, with a snapshot measured now for each model's step that lacks maps or losses."""
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


def pack_steps(
    recording: Recording,
    room: int,
    wanted: Collection[int] = (),
) -> tuple[dict[int, list[str]], list[str]]:
    """The blocks of the steps that `room` bytes hold, by step, and a note if steps were left out.

    They are left out evenly, but never the first, the last, or those that are `wanted`.

    Raises a `Mistake` if even these do not fit.
    """
    steps = recording.mapped
    count = MAX_STEPS
    while True:
        kept = sorted({*evenly(steps, count), *wanted})
        blocks = {step: _step_blocks(recording, step) for step in kept}
        size = sum(len(block) for of_step in blocks.values() for block in of_step)
        if size <= room:
            break
        count = count * room // size
        if count < 2:
            length = max(probe.length for probe in recording.probes.values())
            raise Mistake(f"maps of {length} tokens do not fit into a page: take a shorter text, or a .csv")
    for snapshot in recording.snapshots:
        if snapshot.step not in blocks:
            _packed_steps.pop(snapshot, None)
    if kept == steps:
        return blocks, []
    return blocks, [f"To stay small, this page shows {len(kept)} of {len(steps)} recorded steps."]


def _step_blocks(recording: Recording, step: int) -> list[str]:
    """The maps of each text at a step, and what was predicted and why."""
    snapshot = recording.at(step)
    if snapshot not in _packed_steps:
        readings = recording.readings(step)
        told = template.to_json({kind: reading.figures for kind, reading in readings.items()})
        _packed_steps[snapshot] = [
            *(_block(f"{kind}-{step}", _triangles(reading.maps), level=4) for kind, reading in readings.items()),
            _block(f"details-{step}", told.encode()),
        ]
    return _packed_steps[snapshot]


def _triangles(maps: Tensor) -> bytes:
    rows, columns = np.tril_indices(maps.shape[-1])
    weights = maps.numpy()[:, :, rows, columns]
    values = 255 * np.sqrt(np.nan_to_num(weights).clip(0, 1))
    return np.rint(values).astype(np.uint8).tobytes()


def _block(name: str, content: bytes, level: int = 6) -> str:
    """level: of gzip; for maps a higher one than 4 takes time and helps no more."""
    # Without a time stamp, so that the same snapshots make the same page.
    packed = gzip.compress(content, level, mtime=0)
    return template.text_element(f"block-{name}", base64.b64encode(packed).decode())


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
            told = one.to_json() | {"mapped": one.step in mapped}
            # Of a model that is random none holds: the others judge noise then.
            wrong = one.checks.problems.keys()
            for name in ("repeatable", "causal", "faithful"):
                told[name] = not wrong & {name, "repeatable"}
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


def _scores() -> dict[str, Any]:
    """What the scores are called and mean, by name."""
    return {
        name: {"label": name.replace("_", " "), "letter": score.letter or name[0].upper()}
        | {field: getattr(score, field) for field in ("meaning", "glossary", "probe", "is_pattern")}
        for name, score in SCORES.items()
    }
