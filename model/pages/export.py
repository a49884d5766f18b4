"""Chooses the step and the heads whose maps a person asks for, and writes these maps as a CSV table.

Shapes: L layers, H heads, T tokens.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from model.files import atomic_file
from model.inspection.formation import head_name
from model.inspection.recording import Recording
from model.mistakes import Mistake
from model.pages.describe import Head

DIGITS = "%.5g"  # of a weight: enough to tell every float16 from its neighbours


def choose_step(recording: Recording, step: int | None = None) -> int:
    """Returns `step`, or by default the last step with maps. Raises Mistake if this step, or any step, has no maps."""
    mapped = recording.mapped
    if not mapped:  # nothing was recorded, or its files have been removed
        raise Mistake(f"{recording.name} has no recorded maps")
    step = mapped[-1] if step is None else step
    if step in mapped:
        return step
    near = min(mapped, key=lambda other: abs(other - step))
    raise Mistake(f"--steps {step} has no maps in {recording.name}: write {near}, the nearest step that has maps")


def choose_heads(recording: Recording, names: Sequence[str] | None = None) -> list[list[Head]]:
    """Returns the heads called LAYER.HEAD in one row, by default a row for each layer. Raises Mistake for no head."""
    layers, heads = recording.snapshots[-1].shape
    rows = [[(layer, head) for head in range(heads)] for layer in range(layers)]
    if names is None:
        return rows
    known = {head_name(head): head for row in rows for head in row}
    for name in names:
        if name not in known:
            raise Mistake(f"--head must be LAYER.HEAD, from 0.0 to {layers - 1}.{heads - 1}, not {name}")
    return [[known[name] for name in dict.fromkeys(names)]]


def write_csv(
    recording: Recording,
    path: Path,
    step: int,
    rows: Sequence[Sequence[Head]],
) -> None:
    """Writes the maps of the probe "text" at a step, with one row for each pair of query and key.

    rows: of heads, see `choose_heads`. Layers, heads and positions count from 0. A key after its query has a row only
    if its weight is not 0.
    """
    text = recording.readings(step)["text"]
    tokens = np.array(text.tokens, dtype=object)
    with atomic_file(path) as file:
        for layer, head in chain(*rows):  # one at a time: the rows of all heads can fill the memory
            weights = text.maps[layer, head].numpy()  # (T, T)
            query, key = np.nonzero(np.tri(len(weights), dtype=bool) | (weights != 0))
            table = {
                "run": recording.name,
                "step": step,
                "layer": layer,
                "head": head,
                "query": query,
                "query_token": tokens[query],
                "key": key,
                "key_token": tokens[key],
                "weight": weights[query, key],
            }
            pd.DataFrame(table).to_csv(
                file,
                header=file.tell() == 0,
                index=False,
                float_format=DIGITS,
                lineterminator="\r\n",  # so that tokens with either of these are quoted
                errors="backslashreplace",  # a run folder's name may be invalid Unicode
            )
