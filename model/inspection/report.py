"""The report of a run as one HTML file that works offline: figures, curves, samples, head scores, attention maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from model.inspection import template
from model.inspection.heads import SCORES
from model.inspection.page import Captures, attention_page, formation_steps

MAX_POINTS = 1500  # of a curve: more than a screen has pixels for
MAX_SAMPLES = 200

Rows = Sequence[dict[str, float]]  # of metrics.csv: the columns that have a number there, "step" always
Points = list[tuple[float, float]]  # (step, value)

# Title and unit of each chart, and its curves: name -> column of metrics.csv.
CHARTS = (
    ("Loss", "nats per token", {"training": "train/loss", "validation": "val/loss"}),
    ("Bits per byte", "of the validation text", {"validation": "val/bits_per_byte"}),
    ("Learning rate", "of the embeddings", {"learning rate": "lr"}),
    ("Tokens per second", "while training", {"tokens per second": "tokens_per_second"}),
    ("Model FLOPs utilisation", "share of the peak", {"MFU": "mfu"}),
)


def report_page(
    name: str, rows: Rows, samples: Sequence[dict], config_text: str = "", captures: Captures | None = None
) -> str:
    """The report, as HTML. What a run does not have yet is left out.

    Args:
        name: of the run.
        rows: of its metrics.
        samples: each with step, prompt and text.
        config_text: its configuration as YAML.
        captures: its attention maps.
    """
    formed = first_formed(captures) if captures and captures.snapshots else {}
    data = {
        "title": name,
        "facts": facts(rows),
        "charts": with_curves([chart(rows, *spec) for spec in CHARTS]),
        "heads": with_curves([head_chart(rows, score, formed.get(score, "")) for score in SCORES]),
        "samples": evenly(samples, MAX_SAMPLES),
        "config": config_text,
    }
    elements = [template.json_element("data", data)]
    if captures and captures.steps:
        elements.append(template.json_element("attention", attention_page([captures], f"{name}: attention")))
    return template.fill("report", name, elements)


def facts(rows: Rows) -> list[tuple[str, str, str]]:
    """The most important figures: (name, value, remark)."""
    found = []
    for column, name in (("val/bits_per_byte", "bits per byte"), ("val/loss", "validation loss")):
        if points := column_points(rows, column):
            last, best = points[-1], min(points, key=lambda point: point[1])
            remark = f"at step {last[0]:,}" if best == last else f"best {best[1]:.4f} at step {best[0]:,}"
            found.append((name, f"{last[1]:.4f}", remark))
    if points := column_points(rows, "train/loss"):
        found.append(("training loss", f"{points[-1][1]:.4f}", f"at step {points[-1][0]:,}"))
    if points := column_points(rows, "tokens"):
        found.append(("tokens seen", short(points[-1][1]), f"in {points[-1][0]:,} steps"))
    if points := column_points(rows, "tokens_per_second"):
        found.append(("tokens per second", short(median(value for _, value in points)), "median"))
    if seconds := training_seconds(rows):
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        time = f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
        found.append(("trained for", time, "without validation"))
    return found


def training_seconds(rows: Rows) -> float:
    """The time of the training steps, without validation: each row's new tokens at the speed of that row."""
    seconds = seen = 0.0
    for row in rows:
        if "tokens" in row:
            # The first row after a resume may have no speed.
            seconds += (row["tokens"] - seen) / row["tokens_per_second"] if row.get("tokens_per_second") else 0.0
            seen = row["tokens"]
    return seconds


def chart(rows: Rows, title: str, unit: str, columns: dict[str, str], **more: object) -> dict:
    """Data of one chart: a curve for each column that has a number in some row."""
    points = {name: evenly(column_points(rows, column), MAX_POINTS) for name, column in columns.items()}
    curves = [{"name": name, "points": of_curve} for name, of_curve in points.items() if of_curve]
    return {"title": title, "unit": unit, "curves": curves, **more}


def head_chart(rows: Rows, score: str, remark: str) -> dict:
    """Data of one score's chart: the best head of each layer."""
    start = f"attention/{score}/layer_"
    layers = sorted({int(name.removeprefix(start)) for row in rows for name in row if name.startswith(start)})
    columns = {f"layer {layer}": f"{start}{layer}" for layer in layers}
    return chart(rows, score.replace("_", " "), remark, columns, top=1, layers=True)


def with_curves(charts: list[dict]) -> list[dict]:
    return [one for one in charts if one["curves"]]


def first_formed(captures: Captures) -> dict[str, str]:
    """For each score for which heads formed: which was first, and when."""
    found = {}
    for score, heads in formation_steps(captures).items():
        if heads:
            step, (layer, head) = min((step, head) for head, step in heads.items())
            found[score] = f"{layer}.{head} forms at {step:,}"
    return found


def column_points(rows: Rows, column: str) -> Points:
    return [(row["step"], row[column]) for row in rows if math.isfinite(row.get(column, math.nan))]


def evenly(items: Sequence, count: int) -> list:
    """At most `count` of the items, evenly spaced, including the first and the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def short(number: float) -> str:
    """Such as 950, 51.3k, 1.47M."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"
