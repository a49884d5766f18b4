"""What a person chooses of the recorded maps for a picture or a table, and the table.

Shapes: L layers, H heads, T tokens.
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from model.files import write_atomically
from model.inspection.recording import Recording
from model.mistakes import Mistake

DIGITS = 5  # significant ones of a weight: enough to tell every float16 from its neighbours
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
    """The step itself, or the last that was recorded. Raises Mistake if there are no maps, or none of this step."""
    mapped = recording.mapped
    if not mapped:  # nothing was recorded, or the files have been removed
        raise Mistake(f"{recording.name} has no recorded maps")
    if step is None or step in mapped:
        return mapped[-1] if step is None else step
    near = min(mapped, key=lambda other: abs(other - step))
    raise Mistake(f"--steps {step} has no maps in {recording.name}: the nearest that has is {near}")


def choose_heads(recording: Recording, names: Sequence[str] | None) -> list[Head] | None:
    """The heads named LAYER.HEAD, or None for all. Raises Mistake for one that the model does not have."""
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
    """The maps of the text at a step, by default the last: a row for each weight of a query that can see its key.

    Layers, heads and positions count from 0. A later key has a row only where it has weight.
    """
    step = choose_step(recording, step)
    text = recording.readings(step)["text"]
    maps = text.maps.numpy()
    content = io.StringIO(newline="")
    writer = csv.writer(content)
    writer.writerow(COLUMNS)
    for layer, head in heads or np.ndindex(maps.shape[:2]):
        for query, key in np.ndindex(maps.shape[2:]):
            weight = maps[layer, head, query, key]
            if key <= query or weight:
                of_query = (
                    recording.name,
                    step,
                    layer,
                    head,
                    query,
                    text.tokens[query],
                )
                number = f"{weight:.{DIGITS}g}" if np.isfinite(weight) else ""
                writer.writerow((*of_query, key, text.tokens[key], number))
    write_atomically(path, content.getvalue().encode(errors="backslashreplace"))  # a folder's name may be no valid text
