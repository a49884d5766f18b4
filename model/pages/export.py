"""Chooses the step and the heads whose maps a person asks for, and writes these maps as a CSV table.

Shapes: L layers, H heads, T tokens.
"""

import codecs
import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from model.files import atomic_file
from model.inspection.recording import Recording
from model.mistakes import Mistake

DIGITS = 5  # significant digits of a weight: enough to tell every float16 from its neighbours
COLUMNS = (
    "run",
    "step",
    "layer",
    "head",
    "query",
    "query_token",
    "key",
    "key_token",
    "weight",
)

Head = tuple[int, int]  # layer, head


def choose_step(recording: Recording, step: int | None = None) -> int:
    """Returns `step`, or by default the last step with maps. Raises Mistake if this step, or any step, has no maps."""
    mapped = recording.mapped
    if not mapped:  # nothing was recorded, or its files have been removed
        raise Mistake(f"{recording.name} has no recorded maps")
    if step is None or step in mapped:
        return mapped[-1] if step is None else step
    near = min(mapped, key=lambda other: abs(other - step))
    raise Mistake(f"--steps {step} has no maps in {recording.name}: write {near}, the nearest step that has maps")


def choose_heads(recording: Recording, names: Sequence[str] | None) -> list[Head] | None:
    """Parses names LAYER.HEAD; None stands for all heads. Raises Mistake for a head that the model does not have."""
    if names is None:
        return None
    layers, heads = recording.at(choose_step(recording)).shape
    known = {f"{layer}.{head}": (layer, head) for layer, head in np.ndindex(layers, heads)}
    for name in names:
        if name not in known:
            raise Mistake(f"--head must be LAYER.HEAD, from 0.0 to {layers - 1}.{heads - 1}, not {name}")
    return [known[name] for name in dict.fromkeys(names)]


def write_csv(
    recording: Recording,
    path: Path,
    step: int | None = None,
    heads: Sequence[Head] | None = None,
) -> None:
    """Writes the maps of the probe "text" at a step, by default the last, with one row for each pair of query and key.

    Layers, heads and positions count from 0. A key after its query has a row only if its weight is not 0.
    """
    step = choose_step(recording, step)
    text = recording.readings(step)["text"]
    maps = text.maps.numpy()
    # A run folder's name may be invalid Unicode.
    with atomic_file(path) as file:
        writer = csv.writer(codecs.getwriter("utf-8")(file, "backslashreplace"))
        writer.writerow(COLUMNS)
        for layer, head in heads or np.ndindex(maps.shape[:2]):
            for query, key in np.ndindex(maps.shape[2:]):
                weight = maps[layer, head, query, key]
                if key <= query or weight:
                    number = f"{weight:.{DIGITS}g}" if np.isfinite(weight) else ""
                    place = (layer, head, query, text.tokens[query], key, text.tokens[key])
                    writer.writerow((recording.name, step, *place, number))
