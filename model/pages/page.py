"""The page of a run or of a model: one HTML file, which opens offline.

It shows how the run learned and the recorded maps of each step. It also holds the model's weights at a few steps, so
that the browser can run the model on text that a person types. During a run the page is rewritten again and again,
without weights.

The page holds the lower triangle of each map, one byte 255 sqrt(p) for each weight p. That is within 0.004 of a weight
in [0, 1]; if a model has other weights, the page says that it shows them as 0 or 1 (see `Checks`). Weights above the
diagonal are left out: a causal model has none, and of any other model the page says that it looks into the future. Each
step has one block for the maps of each text, one for the predictions and their causes (see `Reading.figures`), and one
for the sentences about heads.

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
from model.inspection.recording import Models, Recording
from model.mistakes import Mistake
from model.pages import template
from model.pages.describe import describe_heads, first_formed, opening_text, opening_view
from model.pages.film import about_film, film_of, film_steps
from model.pages.learning import evenly
from model.pages.weights import Packed, pack

MAX_MAP_BYTES = 25_000_000  # of the blocks of all steps
MAX_STEPS = 100  # with maps: more than a person looks at, and packing each takes time
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
        "status": state and {"state": state, "written": round(time.time(), 1), "gap": round(gap, 1)},
        "scores": _scores(),
        "errors": ERRORS,
        "colours": template.PALETTES,
        "learning": learning,
        "experiments": None,
        "run": None,
        "film": None,
    }
    elements: list[str] = []
    held: list[int] = []  # the steps whose weights the page holds
    effects: Sequence[Effect] = ()  # the experiments that hold at the last of these steps
    model, notes = _packed(models, tokenizer, recording) if models and recording else (None, [])
    if model:
        held = model.manifest["steps"]
        recording = recording.with_losses([(step, gpt) for step, gpt in models if step in held], tokenizer.label)
        gpt, means = model.models[-1]
        effects, tried = try_all(gpt, tokenizer, recording.windows["text"], means)
        data["experiments"] = {"effects": [asdict(effect) for effect in effects], "tried": tried}
        data["text"] = opening_text(recording, tokenizer)
    if recording and recording.mapped:
        recorded, elements, problems = _recorded(recording, held, effects)
        data |= recorded
        notes += problems
    if model:  # after the maps: a file cut short in the weights still shows them
        elements += _model_elements(model)
    return template.fill(data | {"notes": notes}, elements)


def _recorded(
    recording: Recording,
    held: Sequence[int],
    effects: Sequence[Effect],
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Returns the page's data about a recording, its blocks, and notes. held, effects: see `run_page`."""
    film = film_of(recording)
    blocks, notes = pack_steps(recording, MAX_MAP_BYTES, held)
    elements = _film_blocks(recording, film, blocks) if film else []
    for step, blocks_of_step in blocks.items():
        described = describe_heads(recording.at(step), effects if [step] == held[-1:] else ())
        elements += [*blocks_of_step, _block(f"descriptions-{step}", template.to_json(described).encode())]
    data = {"run": _about(recording, film, blocks, held), "film": film and about_film(recording, film)}
    return data, elements, [*notes, *recording.problems.values()]


def _model_elements(model: Packed) -> list[str]:
    """The elements that hold the model: its manifest, and the weights of each of its snapshots."""
    elements = [template.json_element("manifest", model.manifest)]
    for number, weights in enumerate(model.blocks):
        elements.append(template.text_element(f"weights-{number}", weights))
    return elements


def _film_blocks(recording: Recording, film: Film, steps: Collection[int]) -> list[str]:
    """The blocks of the film: for each step the maps of its word, and its figures."""
    blocks = []
    for step, (maps, figures) in film_steps(recording, film, steps).items():
        blocks.append(_block(f"word-{step}", _triangles(maps)))
        blocks.append(_block(f"film-{step}", template.to_json(figures).encode()))
    return blocks


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


def pack_steps(
    recording: Recording,
    room: int,
    wanted: Collection[int] = (),
) -> tuple[dict[int, list[str]], list[str]]:
    """Packs as many steps as fit into `room` bytes: their blocks by step, and a note if steps were left out.

    The steps that stay are evenly spaced, and always include the first, the last, and the `wanted` ones. Raises a
    `Mistake` if even these do not fit.
    """
    steps = recording.mapped
    count = MAX_STEPS
    while True:
        kept = sorted({*evenly(steps, count), *wanted})
        blocks = {step: _step_blocks(recording, step) for step in kept}
        size = sum(len(block) for blocks_of_step in blocks.values() for block in blocks_of_step)
        if size <= room:
            break
        count = count * room // size
        if count < 2:
            length = max(probe.length for probe in recording.probes.values())
            raise Mistake(f"maps of {length} tokens do not fit into a page: use a shorter text, or a table of its maps")
    for snapshot in recording.snapshots:
        if snapshot.step not in blocks:
            snapshot.packed.clear()
    if kept == steps:
        return blocks, []
    return blocks, [f"To stay small, this page shows {len(kept)} of {len(steps)} recorded steps."]


def _step_blocks(recording: Recording, step: int) -> list[str]:
    """The blocks of a step: the maps of each text, then the predictions and their causes.

    Its snapshot keeps them, so that the next page of a run packs only the new steps.
    """
    snapshot = recording.at(step)
    if not snapshot.packed:
        details = {}
        for kind, reading in recording.readings(step).items():
            snapshot.packed.append(_block(f"{kind}-{step}", _triangles(reading.maps), level=4))
            details[kind] = reading.figures
        snapshot.packed.append(_block(f"details-{step}", template.to_json(details).encode()))
    return snapshot.packed


def _triangles(maps: Tensor) -> bytes:
    """Packs the lower triangles of maps (L, H, T, T), one byte 255 sqrt(p) for each weight p."""
    rows, columns = np.tril_indices(maps.shape[-1])
    weights = maps.numpy()[:, :, rows, columns]
    values = 255 * np.sqrt(np.nan_to_num(weights).clip(0, 1))
    return np.rint(values).astype(np.uint8).tobytes()


def _block(name: str, content: bytes, level: int = 6) -> str:
    """Compresses a block. level: of gzip; for maps a level above 4 takes more time and saves nothing."""
    # mtime=0 leaves out the time stamp, so that the same snapshots make the same page.
    packed = gzip.compress(content, level, mtime=0)
    return template.text_element(f"block-{name}", base64.b64encode(packed).decode())


def _about(
    recording: Recording,
    film: Film | None,
    mapped: Collection[int],
    held: Sequence[int],
) -> dict[str, Any]:
    """The page's data about a recording, apart from its blocks: texts, scores, and the steps at which heads formed.

    mapped: the steps whose maps the page shows. held: the steps whose weights it holds.
    """
    layers, heads = recording.snapshots[0].shape
    points = {*mapped, *evenly(recording.steps, MAX_CURVE_POINTS)}
    snapshots = []
    for snapshot in recording.snapshots:
        step = snapshot.step
        if step in points:
            stored = snapshot.to_json() | {"mapped": step in mapped}
            # A model that is not repeatable passes no check: the other two would judge noise.
            failed = snapshot.checks.problems.keys()
            for check in ("repeatable", "causal", "faithful"):
                stored[check] = not failed & {check, "repeatable"}
            if step in held:
                stored["weights"] = held.index(step)
            snapshots.append(stored)
    probes: list[dict[str, Any]] = []
    if film:
        probes.append({"name": "word", "labels": recording.words.labels[film.word][:-1], "period": None})
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
        name: {"label": name.replace("_", " "), "letter": score.letter or name[0].upper()}
        | {field: getattr(score, field) for field in ("meaning", "glossary", "probe", "is_pattern")}
        for name, score in SCORES.items()
    }
