"""The recorded maps of a page: the bytes of each step, as many steps as fit into a size.

The page holds the lower triangles of the maps, one byte 255 sqrt(p) a weight, which is within 0.004 of a weight from 0
to 1; of others the page says that it shows them as 0 or 1 (see `Checks`). Weights above the diagonal are left out: a
causal model has none, and of another the page says that it looks into the future. The bytes of each probe and step are
compressed by gzip, encoded in base64, and decoded when they are first shown.

A further block a step, of compressed JSON, holds what was predicted and why (see `Reading.figures`).

Shapes: L layers, H heads, T tokens.
"""

import base64
import gzip
import json
from collections.abc import Collection, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from torch import Tensor

from model.inspection.recording import Recording, Snapshot
from model.mistakes import Mistake

MAX_STEPS = 100  # of a page: more than one looks at, and each takes time to pack
ELEMENTS = 300  # bytes around the blocks of a step

Blocks = dict[int, list[str]]  # by step each probe's maps, and the details, in base64

# Of the steps in the last page of a recording, as long as that lives: of a run that goes on, a page packs only what is
# new. It takes as many bytes as that page.
_packed: WeakKeyDictionary[Snapshot, list[str]] = WeakKeyDictionary()


def pack_steps(
    recording: Recording,
    room: int,
    wanted: Collection[int] = (),
) -> tuple[Blocks, list[str]]:
    """The steps that `room` bytes hold, and a note if steps were left out.

    They are left out evenly, but never the first, the last, or those that are `wanted`.

    Raises a `Mistake` if even these do not fit.
    """
    steps = recording.mapped
    asked = [step for step in steps if step in wanted]
    kept = {*evenly(steps, MAX_STEPS), *asked}
    sizes = [len("".join(step_blocks(recording, step))) + ELEMENTS for step in kept]
    fits = room // max(sizes)
    count = min(MAX_STEPS, fits if len(steps) <= fits else fits - len(asked))
    if count < min(2, len(steps)):
        length = max(probe.length for probe in recording.probes.values())
        raise Mistake(f"maps of {length} tokens do not fit into a page: take a shorter text, or a .csv")
    kept = {*evenly(steps, count), *asked}
    blocks = {step: step_blocks(recording, step) for step in sorted(kept)}
    for snapshot in recording.snapshots:
        if snapshot.step not in blocks:
            _packed.pop(snapshot, None)
    left_out = len(kept) < len(steps)
    return blocks, [f"To stay small, this page shows {len(kept)} of {len(steps)} recorded steps."] if left_out else []


def evenly(items: Sequence, count: int) -> list:
    """At most `count` of the items, evenly spaced, including the first and the last."""
    places = np.linspace(
        0,
        len(items) - 1,
        min(count, len(items)),
    )
    return [items[place] for place in places.round().astype(int)]


def step_blocks(recording: Recording, step: int) -> list[str]:
    """The maps of each reading at a step, and what they tell beside their maps, in base64."""
    snapshot = recording.at(step)
    if snapshot not in _packed:
        readings = recording.readings(snapshot.step)
        told = {kind: reading.figures for kind, reading in readings.items()}
        _packed[snapshot] = [
            *(_pack(reading.maps) for reading in readings.values()),
            compressed(told),
        ]
    return _packed[snapshot]


def _pack(maps: Tensor) -> str:
    rows, columns = np.tril_indices(maps.shape[-1])
    weights = maps.numpy()[:, :, rows, columns]
    values = 255 * np.sqrt(np.nan_to_num(weights).clip(0, 1))
    return _encoded(
        np.rint(values).astype(np.uint8).tobytes(),
        level=4,
    )  # a higher one helps no more


def compressed(value: Any) -> str:
    """`value` as JSON, in gzip and base64."""
    return _encoded(
        json.dumps(value, allow_nan=False, separators=(",", ":")).encode(),
        level=6,
    )


def _encoded(content: bytes, level: int) -> str:
    # Without a time stamp, so that the same snapshots make the same page.
    packed = gzip.compress(content, level, mtime=0)
    return base64.b64encode(packed).decode()
