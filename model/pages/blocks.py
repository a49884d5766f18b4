"""The recorded maps of a page: the bytes of each step, fitted into a size.

The page holds the lower triangles of the maps, one byte 255 sqrt(p) a weight, which is within 0.004 of a weight from 0
to 1; of others the page says that it shows them as 0 or 1 (see `verdicts`). The bytes of each probe and step are
compressed by gzip, encoded in base64, and decoded when they are first shown. To save a third of the size, bytes below
128 can be rounded further and still stay within 0.004. Weights above the diagonal are left out: a causal model has
none, and of another the page says that it looks into the future.

A further block a step, of compressed JSON, holds the details (see `recording`), to ROUNDED_DIGITS where weights are
rounded too.

Shapes: L layers, H heads, T tokens.
"""

import base64
import gzip
import json
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from model.checks import Mistake
from model.inspection.recording import Recording, as_json
from model.inspection.verdicts import PAGE_ERROR

MAX_STEPS = 100  # of a page: more than one looks at, and each takes time to pack
MIN_STEPS = 12  # the fewest steps that are kept before the text is cut
MIN_TOKENS = 8
MAX_CURVE_POINTS = 300
ROUNDED_DIGITS = ".2g"  # of details where space is short
ELEMENT = 70  # bytes around a block

Blocks = dict[int, list[str]]  # by step each probe's maps, and the details, in base64


def fit(recording: Recording, room: int, wanted: Collection[int] = ()) -> tuple[Blocks, int, list[str]]:
    """The maps that `room` bytes hold, the number of tokens that they show, and a note of what was left out.

    If all would take more, small weights are rounded. If that is not enough, steps are left out, evenly in the
    logarithm of the step but never the last nor those that are `wanted`. If MIN_STEPS steps are still too many, the
    text is cut.

    Raises a `Mistake` if even that does not fit.
    """
    steps, all_tokens = recording.mapped, max(len(probe.tokens) for probe in recording.probes.values())
    size = 0
    for rounded, count, length in _attempts(min(len(steps), MAX_STEPS), all_tokens):
        kept = sorted({*log_spaced(steps, count), *(step for step in steps if step in wanted)})
        blocks = {step: packed(recording, step, rounded, length) for step in kept}
        size = sum(len(text) + ELEMENT for texts in blocks.values() for text in texts)
        if size <= room:
            break
    else:
        raise Mistake(f"even {count} steps of {length} tokens do not fit into {room} bytes: {size} and more")
    saved = [f"rounds weights to within {PAGE_ERROR}"] if rounded else []
    if len(kept) < len(steps):
        saved.append(f"shows {len(kept)} of {len(steps)} recorded steps")
    if length < all_tokens:
        saved.append(f"shows the first {length} of {all_tokens} tokens (the scores are of all)")
    return blocks, length, [f"To stay small, this page {', '.join(saved)}."] if saved else []


def _attempts(count: int, length: int) -> Iterator[tuple[bool, int, int]]:
    """(rounded, number of steps, number of tokens), each setting smaller than the one before."""
    yield False, count, length
    yield True, count, length
    while count > MIN_STEPS:
        count = max(MIN_STEPS, int(count * 0.9))
        yield True, count, length
    while length > MIN_TOKENS:
        length = max(MIN_TOKENS, int(length * 0.85))
        yield True, count, length


def curve_steps(recording: Recording) -> set[int]:
    """The steps that are points of the curves, whether or not their maps are on the page."""
    points = set(log_spaced(recording.steps, MAX_CURVE_POINTS))
    return points | {step for heads in recording.formation.values() for step in heads.values()}


def log_spaced(steps: Sequence[int], count: int) -> list[int]:
    """At most `count`, 2 or more, of the ascending steps: the first, the last, and others evenly in log(1 + step)."""
    if count >= len(steps):
        return list(steps)
    places = np.log1p(np.array(steps, dtype=float))
    chosen = [0]
    for left in range(count - 1, 0, -1):
        # The step nearest to an even share of the rest, but early enough to leave one for each choice to come.
        target = places[chosen[-1]] + (places[-1] - places[chosen[-1]]) / left
        nearest = int(np.abs(places - target).argmin())
        chosen.append(min(max(nearest, chosen[-1] + 1), len(steps) - left))
    return [steps[i] for i in chosen]


@lru_cache(maxsize=2 * MAX_STEPS)  # of a run that goes on, a page writes only what is new
def packed(recording: Recording, step: int, rounded: bool, length: int) -> list[str]:
    """Each probe's maps at a step, and the details, in base64."""
    maps, details = recording.maps(step), _cut(recording.details(step), length)
    details = as_json(details, ROUNDED_DIGITS) if rounded else details
    return [*(_pack(maps[name], length, rounded) for name in recording.probes), compressed(details)]


def _pack(maps: np.ndarray, length: int, rounded: bool) -> str:
    maps = np.asarray(maps, dtype=np.float32)[:, :, :length, :length]
    rows, columns = np.tril_indices(maps.shape[-1])
    values = 255 * np.sqrt(np.nan_to_num(maps[:, :, rows, columns]).clip(0, 1))
    # p = (value / 255)^2 changes more slowly where the value is small. These steps all keep it within 0.004.
    step = np.select([values < 32, values < 64, values < 128], [8, 4, 2], 1) if rounded else 1
    return _encoded((np.rint(values / step) * step).astype(np.uint8).tobytes(), 4)  # a higher level helps no more


def _cut(details: dict, length: int) -> dict:
    """The details of the first `length` tokens of each probe."""
    probes, used = {}, set()
    for name, measured in details["probes"].items():
        cut = {field: measured[field][:length] for field in ("bits", "rank", "top", "top_probability")}
        cut["attribution"] = [row[:length] for row in measured["attribution"]]
        cut["lens"] = {field: [row[:length] for row in rows] for field, rows in measured["lens"].items()}
        probes[name] = measured | cut
        used |= {str(token) for row in (*cut["top"], *cut["lens"]["token"]) for token in row}
    tokens = {token: label for token, label in details["tokens"].items() if token in used}
    return details | {"probes": probes, "tokens": tokens}


def compressed(value: Any) -> str:
    """`value` as JSON, in gzip and base64."""
    return _encoded(json.dumps(value, allow_nan=False, separators=(",", ":")).encode(), 6)


def _encoded(content: bytes, level: int) -> str:
    # Without a time stamp, so that the same snapshots make the same page.
    return base64.b64encode(gzip.compress(content, level, mtime=0)).decode()
