"""One self-contained HTML page of attention maps. It opens from a file, offline, and stays under 25 MB.

The page holds the lower triangles of the maps, one byte 255 sqrt(p) a weight, which is within 0.004 of the weight. The
bytes of each probe and step are compressed by gzip, encoded in base64, and decoded when they are first shown. To save a
third of the size, bytes below 128 can be rounded further and still stay within 0.004. Weights above the diagonal are
left out because the recorder masks them; the page's causality badge says whether the model itself is causal.

A further block a step, of compressed JSON, holds what else was measured there (see `archive`), to ROUNDED_DIGITS where
weights are rounded too, and under "descriptions" what each head does (see `describe`).

Shapes: N captures, L layers, H heads, T tokens.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np

from model.inspection import template
from model.inspection.archive import AttentionArchive, Probe, Snapshot
from model.inspection.compare import Rows, losses, options, why_apart
from model.inspection.describe import Description, describe_heads, opening_view
from model.inspection.heads import SCORES, formation_step, threshold, uniform_scores
from model.inspection.images import PALETTES

MAX_BYTES = 25_000_000
MIN_STEPS = 12  # the fewest steps that are kept before the text is cut
MIN_TOKENS = 8
MAX_CURVE_POINTS = 300

# Of each measurement of a probe the axis that runs over its tokens.
TOKEN_AXES = {"bits": 0, "rank": 0, "top": 0, "top_probability": 0, "attribution": 1, "value_norms": 2}

# The largest fidelity (see `recorder`) that rounding explains, by the type that attention was computed in.
FIDELITY_LIMITS = {"float64": 1e-5, "float32": 1e-5, "float16": 5e-3, "bfloat16": 2e-2}

ROUNDED_DIGITS = 2  # significant, of other measurements where space is short
DETAILS = "details"  # the block of a step that holds no maps

Blocks = dict[tuple[int, int, str], str]  # (number of the run, step, name of the probe or DETAILS) -> in base64


def no_details(step: int) -> dict:
    """For captures that hold nothing but maps and scores."""
    return {}


@dataclass(frozen=True)
class Captures:
    """The captures of one model.

    name: its name on the page. probes: "text" and "repeated". snapshots: by step.
    load: from a step to each probe's maps (L, H, T, T). steps: those that have maps, in ascending order.
    details: from a step to what was measured beside its maps, {} where nothing was.
    tokenizer: its fingerprint, "" if unknown.
    metrics, config: of its training, as `compare` needs them; empty if unknown.
    is_prompt: whether the text is a person's own, which they want to see first.
    """

    name: str
    probes: Mapping[str, Probe]
    snapshots: Sequence[Snapshot]
    load: Callable[[int], Mapping[str, np.ndarray]]
    steps: Sequence[int]
    details: Callable[[int], dict] = no_details
    tokenizer: str = ""
    metrics: Rows = ()
    config: Mapping = field(default_factory=dict)
    is_prompt: bool = False

    @classmethod
    def of(cls, archive: AttentionArchive, name: str) -> Captures:
        """A run's archive. Steps whose file has been removed keep their scores."""
        steps = [step for step in archive.steps if archive.path(step).exists()]
        return cls(name, archive.probes, archive.snapshots, archive.maps, steps, archive.details, archive.tokenizer)

    @cached_property
    def uniform(self) -> dict[str, float]:
        """The scores that a head with uniform attention has on these probes."""
        return uniform_scores(self.probes)

    @cached_property
    def formation(self) -> dict[str, dict[str, int]]:
        """For each score the heads that have formed: "LAYER.HEAD" -> the step at which it did."""
        steps = [snapshot.step for snapshot in self.snapshots]
        formed: dict[str, dict[str, int]] = {name: {} for name in SCORES}
        for name, found in formed.items():
            scores = np.stack([snapshot.scores[name] for snapshot in self.snapshots])  # (N, L, H)
            for layer, head in np.ndindex(scores.shape[1:]):
                step = formation_step(steps, scores[:, layer, head].tolist(), self.uniform[name])
                if step is not None:
                    found[f"{layer}.{head}"] = step
        return formed

    @property
    def curve_steps(self) -> set[int]:
        """The steps that are points of the curves, whether or not their maps are on the page."""
        points = set(log_spaced([snapshot.step for snapshot in self.snapshots], MAX_CURVE_POINTS))
        return points | {step for heads in self.formation.values() for step in heads.values()}

    def check_captures(self) -> None:
        """Raises ValueError if nothing was captured."""
        if not self.snapshots:
            raise ValueError(f"{self.name} has no recorded maps")

    def check_maps(self) -> None:
        """Raises ValueError if no capture has maps: nothing was captured, or their files have been removed."""
        if not self.steps:
            raise ValueError(f"{self.name} has no recorded maps")


def attention_page(runs: Sequence[Captures], title: str, *, max_bytes: int = MAX_BYTES) -> str:
    """The page, as HTML. With two runs it opens with both side by side.

    Two runs whose maps cannot be subtracted are shown one at a time; their scores, losses and configurations are
    compared all the same.

    If the page would take more than `max_bytes`, small weights are rounded. If that is not enough, steps are left out,
    evenly in the logarithm of the step but never the last. If MIN_STEPS steps are still too many, the text is cut. The
    page says what was done.

    Raises:
        ValueError: if a run has no maps.
    """
    for captures in runs:
        captures.check_maps()
    data: dict[str, Any] = _legend(title) | {"apart": why_apart(runs)}
    if len(runs) == 2:
        data |= {"losses": losses(runs), "options": options(runs)}
    room = max_bytes - len(template.fill("page", title, [template.json_element("data", data)]).encode()) - 20_000
    room -= sum(len(json.dumps(_curves(run, {}))) for run in runs)
    blocks, length, notes = _fit(runs, room)
    numbers: list[dict[int, dict[str, int]]] = [{} for _ in runs]  # for each run: step -> name -> number of the block
    for number, (run, step, name) in enumerate(blocks):
        numbers[run].setdefault(step, {})[name] = number
    data["notes"] = notes
    data["runs"] = [_about(run, length) | _curves(run, of_run) for run, of_run in zip(runs, numbers, strict=True)]
    elements = [template.json_element(f"block-{number}", text) for number, text in enumerate(blocks.values())]
    return template.fill("page", title, [template.json_element("data", data), *elements])


def live_page(run: Captures, title: str, opening: Sequence[int], model: Iterable[str]) -> str:
    """The page that holds the model itself, as HTML: it reads what a person types.

    Args:
        run: a capture of each snapshot in the page, in ascending order. Its scores and names of heads are shown beside
            the maps of what is typed.
        opening: the tokens that the page opens with.
        model: the elements that hold it, see `live.Packed`.
    """
    captures = []
    formation: dict[str, dict[str, int]] = {score: {} for score in SCORES}  # since when a head has had its last name
    for snapshot in run.snapshots:
        described = describe_heads(run.load(snapshot.step), run.probes)
        names = {f"{layer}.{head}": one["name"] for layer, row in enumerate(described) for head, one in enumerate(row)}
        for score, since in formation.items():
            now = {head: since.get(head, snapshot.step) for head, name in names.items() if name == score}
            formation[score] = now
        # Of a head without a name the sentence has only counts, which are of the probe and not of what is typed.
        sentences = [[{"sentence": head["sentence"] if head["name"] else ""} for head in row] for row in described]
        captures.append(snapshot.to_json(digits=3) | {"blocks": [], "descriptions": sentences})
    shown = _about(run, len(run.probes["text"].tokens))
    shown |= {"name": run.name, "formation": formation, "captures": captures}
    shown["opening"] = {name: shown["opening"][name] for name in ("head", "score")}  # its token is of the probe
    shown["probes"] = [{"name": "text", "labels": [], "period": None}]  # what is typed
    data = _legend(title) | {"opening": list(opening), "notes": [], "apart": "", "runs": [shown]}
    return template.fill("live", title, [template.json_element("data", data), *model])


def log_spaced(steps: Sequence[int], count: int) -> list[int]:
    """At most `count` of the ascending steps, including the first and the last, evenly spaced in log(1 + step)."""
    if count >= len(steps):
        return list(steps)
    if count == 1:
        return [steps[-1]]
    places = np.log1p(np.array(steps, dtype=float))
    chosen = [0]
    for left in range(count - 1, 0, -1):
        # The step nearest to an even share of the rest, but early enough to leave one for each choice to come.
        target = places[chosen[-1]] + (places[-1] - places[chosen[-1]]) / left
        nearest = int(np.abs(places - target).argmin())
        chosen.append(min(max(nearest, chosen[-1] + 1), len(steps) - left))
    return [steps[i] for i in chosen]


def _fit(runs: Sequence[Captures], room: int) -> tuple[Blocks, int, list[str]]:
    """The maps that `room` bytes hold, the number of tokens they show, and notes about what was left out."""
    all_tokens = max(len(probe.tokens) for run in runs for probe in run.probes.values())
    all_steps = max(len(run.steps) for run in runs)

    snapshots = [{snapshot.step: snapshot for snapshot in run.snapshots} for run in runs]
    in_curves = [run.curve_steps for run in runs]
    load = [lru_cache(maxsize=1)(run.load) for run in runs]  # a step is described and packed at once

    @cache
    def described(run: int, step: int) -> list[list[Description]]:
        return describe_heads(load[run](step), runs[run].probes, snapshots[run][step].ablation)

    def size_of_scores(run: int, step: int) -> int:
        """What a step adds to the page besides its blocks."""
        if step in in_curves[run]:
            return 0
        return len(json.dumps(snapshots[run][step].to_json(digits=3))) + 70

    @lru_cache(maxsize=sum(len(run.steps) for run in runs))
    def packed(run: int, step: int, rounded: bool, length: int) -> dict[str, str]:
        maps = load[run](step)
        details = _cut(runs[run].details(step), length, rounded) | {"descriptions": described(run, step)}
        packed_maps = {name: _pack(maps[name], length, rounded) for name in runs[run].probes}
        return packed_maps | {DETAILS: _compressed_json(details)}

    for rounded, count, length in _attempts(all_steps, all_tokens):
        blocks, size = {}, 0
        for i, step in ((i, step) for i, run in enumerate(runs) for step in reversed(log_spaced(run.steps, count))):
            size += size_of_scores(i, step)
            for name, text in packed(i, step, rounded, length).items():
                blocks[i, step, name] = text
                size += len(text) + 70  # with its element
            if size > room:
                break
        if size <= room:
            break
    else:
        raise ValueError(f"even {count} steps of {length} tokens do not fit into {room} bytes: {size} and more")
    saved = ["rounds weights to within 0.004"] if rounded else []
    if count < all_steps:
        saved.append(f"shows {count} of {all_steps} recorded steps (the curves show all)")
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


def _pack(maps: np.ndarray, length: int, rounded: bool) -> str:
    maps = np.asarray(maps, dtype=np.float32)[:, :, :length, :length]
    rows, columns = np.tril_indices(maps.shape[-1])
    values = 255 * np.sqrt(np.nan_to_num(maps[:, :, rows, columns]).clip(0, 1))
    # p = (value / 255)^2 changes more slowly where the value is small. These steps all keep it within 0.004.
    step = np.select([values < 32, values < 64, values < 128], [8, 4, 2], 1) if rounded else 1
    return _compressed((np.rint(values / step) * step).astype(np.uint8).tobytes(), 4)  # a higher level helps no more


def _cut(details: dict, length: int, rounded: bool) -> dict:
    """The details of the first `length` tokens of each probe."""

    def first(values: list, axis: int) -> list:
        return [first(one, axis - 1) for one in values] if axis else values[:length]

    def shorter(measured: dict) -> dict:
        lens = {name: first(values, 1) for name, values in measured["lens"].items()}
        cut = {name: first(measured[name], axis) for name, axis in TOKEN_AXES.items()}
        return measured | cut | {"lens": lens}

    if not details:
        return {}
    probes = {name: shorter(measured) for name, measured in details["probes"].items()}
    used = {
        str(token) for probe in probes.values() for row in (*probe["top"], *probe["lens"]["token"]) for token in row
    }
    tokens = {token: label for token, label in details["tokens"].items() if token in used}
    details = details | {"probes": probes, "tokens": tokens}
    return _rounded(details) if rounded else details


def _rounded(value: Any) -> Any:
    """All numbers in JSON data to ROUNDED_DIGITS."""
    if isinstance(value, float):
        return float(f"{value:.{ROUNDED_DIGITS}g}")
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return {name: _rounded(one) for name, one in value.items()} if isinstance(value, dict) else value


def _compressed_json(value: object) -> str:
    return _compressed(json.dumps(value, allow_nan=False, separators=(",", ":")).encode(), 9)


def _compressed(content: bytes, level: int) -> str:
    # Without a time stamp, so that the same captures make the same page.
    return base64.b64encode(gzip.compress(content, level, mtime=0)).decode()


def _about(run: Captures, length: int) -> dict:
    """A run's sizes, the first `length` tokens of its probes, and the probe, head and token that it is shown with."""
    layers, heads = run.snapshots[0].shape
    shown = {"text": run.probes["text"]} if run.is_prompt else run.probes
    opening = opening_view(run.load(run.steps[-1]), shown, length)
    return {
        "layers": layers,
        "heads": heads,
        "probes": [
            {"name": name, "labels": probe.labels[:length], "period": probe.period}
            for name, probe in run.probes.items()
        ],
        "uniform": run.uniform,
        "threshold": {name: threshold(uniform) for name, uniform in run.uniform.items()},
        "opening": opening | {"probe": list(run.probes).index(opening["probe"])},
    }


def _curves(run: Captures, blocks: Mapping[int, Mapping[str, int]]) -> dict:
    """A run's errors and scores by step, and when heads formed. `blocks`: the numbers of the blocks of each step."""
    points, captures = run.curve_steps | set(blocks), []
    for snapshot in run.snapshots:
        if snapshot.step in points:
            faithful = snapshot.fidelity <= FIDELITY_LIMITS.get(snapshot.precision, 1e-5)
            verdicts = {"faithful": faithful, "causal": snapshot.causality == 0}
            captures.append(snapshot.to_json(digits=3) | verdicts)
            if snapshot.step in blocks:
                numbers = blocks[snapshot.step]
                captures[-1] |= {"blocks": [numbers[name] for name in run.probes], "details": numbers[DETAILS]}
    return {"name": run.name, "formation": run.formation, "captures": captures}


def _legend(title: str) -> dict[str, Any]:
    """What every page has: its title, its colours, and what the scores mean."""
    scores = {
        name: {"meaning": score.meaning, "glossary": score.glossary, "letter": score.letter, "probe": score.probe}
        for name, score in SCORES.items()
    }
    return {"title": title, "scores": scores, "colours": PALETTES}
