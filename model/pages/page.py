"""One self-contained HTML page of attention maps. It opens from a file, offline, and stays under 25 MB.

The page holds the lower triangles of the maps, one byte 255 sqrt(p) a weight, which is within 0.004 of a weight from 0
to 1; of others the page says that it shows them as 0 or 1 (see `verdicts`). The bytes of each probe and step are
compressed by gzip, encoded in base64, and decoded when they are first shown. To save a third of the size, bytes below
128 can be rounded further and still stay within 0.004. Weights above the diagonal are left out: a causal model has
none, and of another the page says that it looks into the future.

A further block a step, of compressed JSON, holds what else was measured there (see `recording`), to ROUNDED_DIGITS
where weights are rounded too, and under "descriptions" what each head does (see `describe`).

Shapes: N snapshots, L layers, H heads, T tokens.
"""

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from model.inspection.ablation import ERRORS
from model.inspection.heads import SCORES, threshold
from model.inspection.recording import Recording, as_json
from model.inspection.verdicts import PAGE_ERROR, verdicts, warnings
from model.pages import template
from model.pages.describe import describe_heads, opening_view, stages

MAX_BYTES = 25_000_000
MARGIN = 20_000  # bytes for the notes, the runs' sizes and the texts of their probes
MAX_CURVE_POINTS = 300
MIN_STEPS = 12  # the fewest steps that are kept before the text is cut
MIN_TOKENS = 8
ROUNDED_DIGITS = ".2g"  # of other measurements where space is short

Blocks = dict[int, list[str]]  # by step each probe's maps, and the details, in base64


def attention_page(runs: Sequence[Recording], title: str, *, max_bytes: int = MAX_BYTES) -> str:
    """The page, as HTML. With two runs it opens with both side by side.

    If the page would take more than `max_bytes`, small weights are rounded. If that is not enough, steps are left out,
    evenly in the logarithm of the step but never the last. If MIN_STEPS steps are still too many, the text is cut. The
    page says what was done.

    Raises a `Mistake` if a run has no maps.
    """
    for run in runs:
        run.check_maps()
    data = legend(title)
    room = max_bytes - len(template.fill("page", data).encode()) - MARGIN
    room -= sum(len(json.dumps([run.formation, _curves(run, {})])) for run in runs)
    blocks, length, notes = _fit(runs, room)
    data["notes"] = [*notes, *(f"{run.name}: {sentence}" for run in runs for sentence in warnings(run.snapshots))]
    data["runs"] = []
    elements: list[str] = []
    for run, of_run in zip(runs, blocks, strict=True):
        places = {}  # of each step: the numbers of the elements that hold its maps and its details
        for step, texts in of_run.items():
            *maps, details = numbers = range(len(elements), len(elements) + len(texts))
            places[step] = {"blocks": maps, "details": details}
            elements += [template.json_element(f"block-{i}", text) for i, text in zip(numbers, texts, strict=True)]
        # Of each probe, whether the first update left its maps as they were.
        unmoved = [before == after for before, after in zip(of_run.get(0, []), of_run.get(1, []), strict=False)]
        data["runs"].append(about(run, length) | {"snapshots": _curves(run, places), "unmoved": unmoved})
    return template.fill("page", data, elements)


def _fit(runs: Sequence[Recording], room: int) -> tuple[list[Blocks], int, list[str]]:
    """The maps of each run that `room` bytes hold, the number of tokens they show, and notes of what was left out."""
    all_tokens = max(len(probe.tokens) for run in runs for probe in run.probes.values())
    all_steps = max(len(run.mapped) for run in runs)
    packed = lru_cache(maxsize=sum(len(run.mapped) for run in runs))(_pack_step)
    for rounded, count, length in _attempts(all_steps, all_tokens):
        blocks: list[Blocks] = [{} for _ in runs]
        size = 0
        kept = [(i, step) for i, run in enumerate(runs) for step in reversed(log_spaced(run.mapped, count))]
        for i, step in kept:
            blocks[i][step] = packed(runs[i], step, rounded, length)
            size += sum(len(text) + 70 for text in blocks[i][step])  # with their elements
            if step not in curve_steps(runs[i]):  # whose scores are not counted yet
                size += len(json.dumps(runs[i].at(step).to_json())) + 70
            if size > room:
                break
        else:
            break
    else:
        raise ValueError(f"even {count} steps of {length} tokens do not fit into {room} bytes: {size} and more")
    saved = [f"rounds weights to within {PAGE_ERROR}"] if rounded else []
    if count < all_steps:
        whole = all(len(curve_steps(run)) == len(run.snapshots) for run in runs)
        saved.append(f"shows {count} of {all_steps} recorded steps (the curves show {'all' if whole else 'more'})")
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


def _pack_step(run: Recording, step: int, rounded: bool, length: int) -> list[str]:
    """Each probe's maps at a step, and the details, in base64."""
    maps, details = run.maps(step), _cut(run.details(step), length)
    details = as_json(details, ROUNDED_DIGITS) if rounded else details
    details |= {"descriptions": describe_heads(run.at(step))}
    content = json.dumps(details, allow_nan=False, separators=(",", ":")).encode()
    return [*(_pack(maps[name], length, rounded) for name in run.probes), _compressed(content, 9)]


def _pack(maps: np.ndarray, length: int, rounded: bool) -> str:
    maps = np.asarray(maps, dtype=np.float32)[:, :, :length, :length]
    rows, columns = np.tril_indices(maps.shape[-1])
    values = 255 * np.sqrt(np.nan_to_num(maps[:, :, rows, columns]).clip(0, 1))
    # p = (value / 255)^2 changes more slowly where the value is small. These steps all keep it within 0.004.
    step = np.select([values < 32, values < 64, values < 128], [8, 4, 2], 1) if rounded else 1
    return _compressed((np.rint(values / step) * step).astype(np.uint8).tobytes(), 4)  # a higher level helps no more


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


def _compressed(content: bytes, level: int) -> str:
    # Without a time stamp, so that the same snapshots make the same page.
    return base64.b64encode(gzip.compress(content, level, mtime=0)).decode()


def about(run: Recording, length: int) -> dict:
    """A run's sizes, the first `length` tokens of its probes, and the probe, head and token that it is shown with."""
    layers, heads = run.snapshots[0].shape
    opening = opening_view(run, run.mapped[-1], length)
    uniform = run.snapshots[-1].heads.uniform
    return {
        "name": run.name,
        "formation": run.formation,
        "stages": stages(run),
        "layers": layers,
        "heads": heads,
        "probes": [
            {"name": name, "labels": of.labels[:length], "period": of.period} for name, of in run.probes.items()
        ],
        "uniform": uniform,
        "threshold": {name: threshold(of_uniform) for name, of_uniform in uniform.items()},
        "opening": opening | {"probe": list(run.probes).index(opening["probe"])},
    }


def _curves(run: Recording, places: Mapping[int, dict]) -> list[dict]:
    """A run's errors and scores by step, and where the page has the maps of a step."""
    points = curve_steps(run)
    shown = [one for one in run.snapshots if one.step in points or one.step in places]
    return [one.to_json() | verdicts(one.checks) | places.get(one.step, {}) for one in shown]


def curve_steps(run: Recording) -> set[int]:
    """The steps that are points of the curves, whether or not their maps are on the page."""
    points = set(log_spaced(run.steps, MAX_CURVE_POINTS))
    return points | {step for heads in run.formation.values() for step in heads.values()}


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


def legend(title: str) -> dict[str, Any]:
    """What every page has: its title, its colours, and what the scores mean."""
    fields, scores = ("meaning", "glossary", "probe", "is_pattern"), {}
    for name, score in SCORES.items():
        scores[name] = {"label": name.replace("_", " "), "letter": score.letter or name[0].upper()}
        scores[name] |= {field: getattr(score, field) for field in fields}
    return {"title": title, "scores": scores, "errors": ERRORS, "colours": template.PALETTES}
