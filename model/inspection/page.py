"""One self-contained HTML page of attention maps: it opens from a file, without a network, and stays under 25 MB.

The page holds every capture as the lower triangles of its maps, one byte 255 sqrt(p) a weight, which is within 0.004
of the weight; gzip and base64 make of each probe and step a block of its own, which the browser opens when it is shown.
Bytes below 128 may be rounded without leaving these 0.004, and then take a third less.
Above the diagonal the recorded maps are zero; whether that is true of the model, the page's causality badge says.

Shapes: L layers, H heads, T tokens.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from model.inspection import template
from model.inspection.archive import AttentionArchive, Probe, Snapshot
from model.inspection.heads import SCORES, formation_step, uniform_scores
from model.inspection.images import COLOURS

MAX_BYTES = 25_000_000
MIN_STEPS = 12  # steps are left out down to so many; after that, the text is cut
MAX_CURVE_POINTS = 300
DARK_COLOURS = ("#14181e", "#173150", "#1f5f8b", "#3097ab", "#6cc7a4", "#c3e69a", "#fffbd0")

# Largest fidelity (see `recorder`) that rounding explains, by the type that the kernel computed in.
FIDELITY_LIMITS = {"float64": 1e-5, "float32": 1e-5, "float16": 5e-3, "bfloat16": 2e-2}


@dataclass(frozen=True)
class Captures:
    """What one model has shown of itself.

    name: how the page calls it. probes: "text" and "repeated". snapshots: by step.
    load: from a step to each probe's maps (L, H, T, T). steps: those that it can be asked for, in order.
    """

    name: str
    probes: Mapping[str, Probe]
    snapshots: Sequence[Snapshot]
    load: Callable[[int], Mapping[str, np.ndarray]]
    steps: Sequence[int]

    @classmethod
    def of(cls, archive: AttentionArchive, name: str) -> Captures:
        """A run's archive. Steps whose file has been removed keep their scores."""
        steps = [step for step in archive.steps if archive.path(step).exists()]
        return cls(name, archive.probes, archive.snapshots, archive.maps, steps)


def attention_page(runs: Sequence[Captures], title: str, *, max_bytes: int = MAX_BYTES) -> str:
    """The page, as HTML. With two runs it opens with the one beside the other.

    If all would take more than `max_bytes`, small weights are rounded; then steps are left out, evenly in the
    logarithm of the step and never the last; if a dozen steps are still too many, the text is cut. The page says so.

    Raises:
        ValueError: if a run has no maps, or the runs differ in their probes or in their layers and heads.
    """
    _check_comparable(runs)
    room = max_bytes - template.size("page.html") - 20_000
    room -= sum(len(json.dumps(_curve(run, frozenset()))) for run in runs)
    packed = _fit(runs, room)

    numbers = {place: number for number, place in enumerate(packed.blocks)}
    probes = runs[0].probes
    data = {
        "title": title,
        "notes": packed.notes,
        "layers": packed.layers,
        "heads": packed.heads,
        "uniform": uniform_scores(
            len(probes["text"].tokens), len(probes["repeated"].tokens), probes["repeated"].period
        ),
        "colours": {"light": COLOURS, "dark": DARK_COLOURS},
        "probes": [
            {"name": name, "labels": probe.labels[: packed.length], "period": probe.period}
            for name, probe in probes.items()
        ],
        "runs": [_curve(run, packed.steps[i]) for i, run in enumerate(runs)],
    }
    for i, run in enumerate(data["runs"]):
        for capture in run["captures"]:
            if capture["step"] in packed.steps[i]:
                capture["blocks"] = [numbers[i, capture["step"], name] for name in probes]
    blocks = [template.text_element(f"block-{n}", text) for n, text in enumerate(packed.blocks.values())]
    return template.fill("page.html", title, [template.json_element("data", data), *blocks])


@dataclass(frozen=True)
class _Packed:
    blocks: dict[tuple[int, int, str], str]  # (run, step, probe) -> base64
    steps: list[set[int]]
    length: int
    layers: int
    heads: int
    notes: list[str]


def _fit(runs: Sequence[Captures], room: int) -> _Packed:
    """As much precision, then as many steps, and then as much of the text, as `room` bytes hold."""
    full = max(len(probe.tokens) for probe in runs[0].probes.values())
    most = max(len(run.steps) for run in runs)
    length, count, rounded = full, most, False
    cache: dict[tuple[int, int], dict[str, str]] = {}
    while True:
        chosen = [log_spaced(run.steps, count) for run in runs]
        blocks, size = {}, 0
        for i, step in ((i, step) for i, of_run in enumerate(chosen) for step in reversed(of_run)):
            if (i, step) not in cache:
                cache[i, step] = {name: _pack(maps, length, rounded) for name, maps in runs[i].load(step).items()}
            for name, text in cache[i, step].items():
                blocks[i, step, name] = text
                size += len(text) + 60  # its element
            if size > room:
                break
        if size <= room:
            break
        if not rounded:
            rounded, cache = True, {}
        elif count > MIN_STEPS:
            count = max(MIN_STEPS, int(count * 0.9))
        elif length > 8:
            length, cache = max(8, int(length * 0.85)), {}
        else:
            raise ValueError(f"even {count} steps of {length} tokens do not fit into {room} bytes: {size} and more")
    layers, heads = runs[0].snapshots[0].scores["sink"].shape
    saved = ["rounds weights to within 0.004"] if rounded else []
    if count < most:
        saved.append(f"shows {count} of {most} recorded steps (the curves show all)")
    if length < full:
        saved.append(f"shows the first {length} of {full} tokens (scores are of all)")
    notes = [f"To stay small, this page {', '.join(saved)}."] if saved else []
    return _Packed(blocks, [set(of_run) for of_run in chosen], length, layers, heads, notes)


def log_spaced(steps: Sequence[int], count: int) -> list[int]:
    """At most `count` of the ascending steps, the last and the first among them, evenly in log(1 + step)."""
    if count >= len(steps):
        return list(steps)
    if count == 1:
        return [steps[-1]]
    places = np.log1p(np.array(steps, dtype=float))
    chosen = [0]
    for left in range(count - 1, 0, -1):
        # The next of the steps that are left, evenly spread over what is left, but never so far that they run out.
        target = places[chosen[-1]] + (places[-1] - places[chosen[-1]]) / left
        nearest = int(np.abs(places - target).argmin())
        chosen.append(min(max(nearest, chosen[-1] + 1), len(steps) - left))
    return [steps[i] for i in chosen]


def _pack(maps: np.ndarray, length: int, rounded: bool) -> str:
    maps = np.asarray(maps, dtype=np.float32)[:, :, :length, :length]
    rows, columns = np.tril_indices(maps.shape[-1])
    values = 255 * np.sqrt(np.nan_to_num(maps[:, :, rows, columns]).clip(0, 1))
    # p = (value / 255)^2 changes the less with a value, the smaller that is: these steps all keep it within 0.004.
    step = np.select([values < 32, values < 64, values < 128], [8, 4, 2], 1) if rounded else 1
    packed = (np.rint(values / step) * step).astype(np.uint8)
    # Without a time stamp the same maps make the same page. Higher levels gain nothing on such noise.
    return base64.b64encode(gzip.compress(packed.tobytes(), 4, mtime=0)).decode()


def _curve(run: Captures, kept: frozenset[int] | set[int]) -> dict:
    """A run without its maps: errors and scores by step, and when heads formed."""
    steps = [snapshot.step for snapshot in run.snapshots]
    points = set(log_spaced(steps, MAX_CURVE_POINTS)) | kept
    formation = formation_steps(run)
    points |= {step for score in formation.values() for row in score for step in row if step is not None}
    return {
        "name": run.name,
        "formation": formation,
        "captures": [
            {
                "step": snapshot.step,
                "precision": snapshot.precision,
                "fidelity": snapshot.fidelity if math.isfinite(snapshot.fidelity) else None,
                "causality": snapshot.causality if math.isfinite(snapshot.causality) else None,
                "faithful": bool(snapshot.fidelity <= FIDELITY_LIMITS.get(snapshot.precision, 1e-5)),
                "causal": snapshot.causality == 0,
                "scores": {name: np.nan_to_num(score).round(3).tolist() for name, score in snapshot.scores.items()},
            }
            for snapshot in run.snapshots
            if snapshot.step in points
        ],
    }


def formation_steps(run: Captures) -> dict[str, list[list[int | None]]]:
    """For each score (L, H) steps at which a head has formed, None for those that have not."""
    steps = [snapshot.step for snapshot in run.snapshots]
    repeated = run.probes["repeated"]
    uniform = uniform_scores(len(run.probes["text"].tokens), len(repeated.tokens), repeated.period)
    formed = {}
    for name in SCORES:
        scores = np.stack([snapshot.scores[name] for snapshot in run.snapshots])
        formed[name] = [
            [formation_step(steps, scores[:, layer, head], uniform[name]) for head in range(scores.shape[2])]
            for layer in range(scores.shape[1])
        ]
    return formed


def _check_comparable(runs: Sequence[Captures]) -> None:
    for run in runs:
        if not run.steps:
            raise ValueError(f"{run.name} has no recorded maps")
    first = runs[0]
    for other in runs[1:]:
        for name, probe in first.probes.items():
            if other.probes[name].labels != probe.labels:
                raise ValueError(
                    f"{first.name} and {other.name} cannot be compared: their {name} probes have different tokens"
                )
        shapes = [run.snapshots[0].scores["sink"].shape for run in (first, other)]
        if shapes[0] != shapes[1]:
            sizes = " and ".join(f"{layers} x {heads}" for layers, heads in shapes)
            raise ValueError(f"{first.name} and {other.name} cannot be compared: they have {sizes} layers x heads")
