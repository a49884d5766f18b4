"""Two whole runs side by side: whether their maps can be subtracted, their losses, and how their configurations differ.

Pure functions of plain data: the rows of metrics.csv and the values of config.yaml.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model.pages.page import Captures

MAX_POINTS = 300  # of a loss

Rows = Sequence[Mapping[str, float]]  # of metrics.csv: the columns that have a number there, "step" always
Points = list[tuple[float, float]]  # (step, value)

LOSSES = {"training": "train/loss", "validation": "val/loss"}
BITS = {"validation": "val/bits_per_byte"}
NOT_SET = "–"  # the value of an option that a configuration does not have


def why_apart(runs: Sequence[Captures]) -> str | None:
    """Why the maps of two runs cannot be compared square by square, as a sentence; None if they can."""
    if len(runs) < 2:
        return None
    first, other = runs
    reasons = [
        f"their {name} probes have different tokens"
        for name, probe in first.probes.items()
        if other.probes[name].labels != probe.labels
    ]
    shapes = [run.snapshots[0].shape for run in runs]
    if shapes[0] != shapes[1]:
        reasons.append("they have {} x {} and {} x {} layers x heads".format(*shapes[0], *shapes[1]))
    if not reasons:
        return None
    return f"There is no map of the difference between {first.name} and {other.name}: {reasons[0]}."


def losses(runs: Sequence[Captures]) -> dict | None:
    """One chart of all runs: title, note, and curves with run, name and points. None if none has metrics.

    A loss in nats per token depends on the tokenizer. Runs with different ones are compared by bits per byte, if both
    have it.
    """
    one_tokenizer = len({run.tokenizer for run in runs}) == 1
    in_bits = not one_tokenizer and all(column_points(run.metrics, BITS["validation"]) for run in runs)
    columns = BITS if in_bits else LOSSES
    curves = [
        {"run": number, **curve}
        for number, run in enumerate(runs)
        for curve in curves_of(run.metrics, columns, MAX_POINTS)
    ]
    if not curves:
        return None
    notes = [f"{run.name} has no metrics.csv." for run in runs if not run.metrics]
    if in_bits:
        notes.append("The runs have different tokenizers, so their losses per token cannot be compared.")
    elif not one_tokenizer:
        notes.append("The runs have different tokenizers, so a lower loss per token need not be a better model.")
    title = "Validation, bits per byte" if in_bits else "Loss, nats per token"
    return {"title": title, "curves": curves, "note": " ".join(notes)}


def options(runs: Sequence[Captures]) -> dict | None:
    """The options in which two runs differ, and a note. None if neither has a configuration."""
    configs = [run.config for run in runs]
    if not any(configs):
        return None
    if missing := [run.name for run in runs if not run.config]:
        return {"differences": [], "note": f"{missing[0]} has no config.yaml that can be read."}
    differences = config_differences(*configs)
    return {"differences": differences, "note": "" if differences else "All options are the same."}


def config_differences(first: Mapping, other: Mapping) -> list[tuple[str, str, str]]:
    """(option, its value in the first, in the other) of each option whose values differ, sorted by option.

    Options of sections are dotted, such as model.gpt.num_layers. Values are written as JSON, text without quotes.
    """
    values = [dict(_dotted(config)) for config in (first, other)]
    pairs = ((name, *(value.get(name, NOT_SET) for value in values)) for name in sorted(values[0] | values[1]))
    return [(name, one, two) for name, one, two in pairs if one != two]


def column_points(rows: Rows, column: str) -> Points:
    """The finite numbers of a column."""
    return [(row["step"], row[column]) for row in rows if math.isfinite(row.get(column, math.nan))]


def curves_of(rows: Rows, columns: Mapping[str, str], count: int) -> list[dict]:
    """Name and points of each curve that has a point, at most `count` of them. columns: name -> column."""
    curves = [{"name": name, "points": evenly(column_points(rows, column), count)} for name, column in columns.items()]
    return [curve for curve in curves if curve["points"]]


def evenly(items: Sequence, count: int) -> list:
    """At most `count` of the items, evenly spaced, including the first and the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _dotted(config: Mapping, start: str = "") -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _dotted(value, f"{start}{name}.")
        else:
            yield f"{start}{name}", _as_text(value)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, default=str)
