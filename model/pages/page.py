"""The page of a run or of a model: one HTML file, which opens offline.

It shows how the run learned and the recorded maps of each step. It also holds the model's weights at a few steps, so
that the browser can run the model on text that a person types. During a run the page is rewritten again and again,
without weights.

The page holds the lower triangle of each map, one byte 255 sqrt(p) for each weight p. That is within 0.004 of a weight
in [0, 1]; if a model has other weights, the page says that it shows them as 0 or 1 (see `Checks`). Weights above the
diagonal are left out: a causal model has none, and of any other model the page says that it looks into the future. Each
step has two blocks for each text, its maps and its `Reading.figures`, and one for the sentences about heads.

Shapes: L layers, H heads, T tokens.
"""

import base64
import gzip
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from torch import Tensor

from model.inspection.experiments import Effect, try_all
from model.inspection.film import Film
from model.inspection.heads import SCORES, threshold
from model.inspection.parts import ERRORS
from model.inspection.reading import RecordedReading
from model.inspection.recording import Models, Recording
from model.mistakes import Mistake
from model.pages import template
from model.pages.describe import describe_heads, first_formed, opening_text, opening_view
from model.pages.film import about_film, word_reading
from model.pages.weights import Packed, pack

MAX_MAP_BYTES = 25_000_000  # of the blocks of all steps
MAX_STEPS = 100  # more than a person looks at


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
    """Returns the HTML of the page, made of the parts that exist so far: at the start of a run, only its title.

    Args:
        recording: the maps to show, and the windows on which experiments are tried.
        learning: see `learning.learning`.
        models: the models whose weights the page holds, by step, in ascending order. If they are too large or have
            diverged, the page says so and holds no weights. A step that the recording lacks, or for which it has no
            losses, is measured here.
        tokenizer: the models' tokenizer, one of `data.tokenizers`.
        state: "running", "interrupted" or "ended" for a run.
        gap: seconds between the run's previous page and this one.
    """
    data: dict[str, Any] = {
        "title": title,
        "status": state and {"state": state, "written": round(time.time(), 1), "gap": gap},
        "scores": _scores(),
        "errors": ERRORS,
        "colours": template.PALETTES,
        "learning": learning,
        "notes": [],
        "run": None,
    }
    elements: list[str] = []
    held: list[int] = []  # the steps whose weights the page holds
    effects: list[Effect] = []  # the experiments that hold at the last of these steps
    packed = None
    if recording and models:
        packed, data["notes"] = _packed(models, tokenizer, recording)
    if packed:
        held = packed.manifest["steps"]
        recording = recording.with_losses([(step, gpt) for step, gpt in models if step in held], tokenizer.label)
        effects, tried = try_all(packed.gpt, tokenizer, recording.windows["text"])
        data["experiments"] = {"effects": [asdict(effect) for effect in effects], "tried": tried}
    if recording and recording.mapped:
        film = recording.film
        if packed:
            data["text"] = opening_text(recording, film, tokenizer)
        steps = shown_steps(recording, held)
        data["run"] = _about(recording, film, steps, held)
        words = {step: word_reading(recording, film, step) for step in steps} if film else {}
        data["film"] = film and about_film(recording, film, words)
        for step in steps:
            described = describe_heads(recording.at(step), effects if [step] == held[-1:] else ())
            elements += [*_step_blocks(recording, step), _json_block(f"descriptions-{step}", described)]
            if film:
                elements += _reading_blocks("word", step, words[step])
        if len(steps) < len(recording.mapped):
            data["notes"].append(f"This page shows {len(steps)} of {len(recording.mapped)} recorded steps.")
        data["notes"] += recording.problems.values()
    if packed:  # after the maps: a file cut short in the weights still shows them
        elements.append(template.json_element("manifest", packed.manifest))
        elements += [template.text_element(f"weights-{i}", weights) for i, weights in enumerate(packed.blocks)]
    return template.fill(data, elements)


def _packed(
    models: Models,
    tokenizer: Any,
    recording: Recording,
) -> tuple[Packed | None, list[str]]:
    """Packs all models; if that fails, the last one alone; if that fails too, returns None and a note that says why."""
    probe, windows = recording.probes["text"], recording.windows["text"]
    for chosen in (models, models[-1:]):
        try:
            return pack(chosen, tokenizer, probe, windows), []
        except Mistake as mistake:
            reason = str(mistake)
    return None, [f"You cannot type to this model here: {reason}."]


def shown_steps(recording: Recording, wanted: Collection[int] = ()) -> list[int]:
    """Returns the steps that a page shows: at most MAX_STEPS, if as many fit into MAX_MAP_BYTES.

    If there are more, every second one is left out, again and again; so a step that was left out once is never packed
    again. The last and the `wanted` ones are shown besides. Raises a `Mistake` if two steps do not fit.
    """
    steps = recording.mapped
    size = sum(map(len, _step_blocks(recording, steps[-1])))
    count = min(MAX_STEPS, MAX_MAP_BYTES // size)
    if count < min(2, len(steps)):
        length = max(probe.length for probe in recording.probes.values())
        raise Mistake(f"maps of {length} tokens do not fit into a page: use a shorter text, or a table of its maps")
    kept = steps
    while len(kept) > count:
        kept = kept[::2]
    kept = sorted({*kept, *wanted, steps[-1]})
    for snapshot in recording.snapshots:
        if snapshot.step not in kept:
            snapshot.packed.clear()
    return kept


def _step_blocks(recording: Recording, step: int) -> list[str]:
    """The blocks of a step's readings. Its snapshot keeps them, so that the next page packs only the new steps."""
    packed = recording.at(step).packed
    if not packed:
        for kind, reading in recording.readings(step).items():
            packed += _reading_blocks(kind, step, reading)
    return packed


def _reading_blocks(
    name: str,
    step: int,
    reading: RecordedReading,
) -> list[str]:
    maps = _block(f"{name}-{step}", _triangles(reading.maps), level=4)
    return [maps, _json_block(f"{name}-figures-{step}", reading.figures)]


def _triangles(maps: Tensor) -> bytes:
    """Packs the lower triangles of maps (L, H, T, T), one byte 255 sqrt(p) for each weight p."""
    rows, columns = np.tril_indices(maps.shape[-1])
    weights = maps.numpy()[:, :, rows, columns]
    values = 255 * np.sqrt(np.nan_to_num(weights).clip(0, 1))
    return np.rint(values).astype(np.uint8).tobytes()


def _json_block(name: str, value: object) -> str:
    return _block(name, template.to_json(value).encode())


def _block(name: str, content: bytes, level: int = 6) -> str:
    """Compresses a block. level: of gzip; for maps a level above 4 takes more time and saves nothing."""
    # mtime=0 leaves out the time stamp, so that the same snapshots make the same page.
    packed = gzip.compress(content, level, mtime=0)
    return template.text_element(f"block-{name}", base64.b64encode(packed).decode())


def _about(
    recording: Recording,
    film: Film | None,
    steps: Sequence[int],
    held: Sequence[int],
) -> dict[str, Any]:
    """The page's data about a recording, apart from its blocks: texts, scores, and the steps at which heads formed.

    steps: those that the page shows. held: those whose weights it holds.
    """
    layers, heads = recording.snapshots[0].shape
    snapshots = []
    for step in steps:
        snapshot = recording.at(step)
        stored = snapshot.to_json() | {"problems": [*snapshot.checks.problems]}
        if step in held:
            stored["weights"] = held.index(step)
        snapshots.append(stored)
    probes: list[dict[str, Any]] = []
    if film:
        probes.append({"name": "word", "labels": recording.words.labels[film.word][:-1]})
    for kind, probe in recording.probes.items():
        probes.append({"name": kind, "labels": probe.labels[0], "period": probe.period})
    uniform = recording.snapshots[-1].heads.uniform
    return {
        "layers": layers,
        "heads": heads,
        "probes": probes,
        "uniform": uniform,
        "threshold": {name: threshold(share) for name, share in uniform.items()},
        "formation": recording.formation,
        "stages": first_formed(recording),
        "opening": opening_view(recording, film),
        "snapshots": snapshots,
    }


def _scores() -> dict[str, Any]:
    """Names, letters and explanations of the scores, by name."""
    return {
        name: {"label": name.replace("_", " "), "letter": score.letter or name[0].upper(), "probe": score.kind}
        | {field: getattr(score, field) for field in ("meaning", "glossary", "is_pattern")}
        for name, score in SCORES.items()
    }
