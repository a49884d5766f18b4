"""What a run came to, as one HTML file that needs no network: figures, curves, samples, head scores, attention."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from model.files import write_atomically
from model.inspection import template
from model.inspection.archive import AttentionArchive
from model.inspection.heads import SCORES
from model.inspection.page import Captures, attention_page, formation_steps

MAX_POINTS = 1500  # of a curve: more than a screen has pixels for
MAX_SAMPLES = 200

Points = list[tuple[int, float]]  # (step, value)

# Title and unit of each chart, and its curves: name -> column of metrics.csv.
CHARTS = (
    ("Loss", "nats a token", {"training": "train/loss", "validation": "val/loss"}),
    ("Bits per byte", "of the validation text", {"validation": "val/bits_per_byte"}),
    ("Learning rate", "of the embeddings", {"learning rate": "lr"}),
    ("Tokens a second", "while training", {"tokens a second": "tokens_per_second"}),
    ("Model FLOPs utilisation", "share of the peak", {"MFU": "mfu"}),
)


def write_report(run: Path, path: Path | None = None) -> Path:
    """Writes the report, by default as report.html in the run's folder; returns where it is. Raises as `run_report`."""
    path = path or Path(run) / "report.html"
    write_atomically(path, run_report(run).encode())
    return path


def run_report(run: Path) -> str:
    """The report of a run's folder, as HTML. It is made of whatever is there: a run may be going on still.

    Raises:
        FileNotFoundError: if the folder has no metrics.csv.
        ValueError: if a file in it is damaged.
    """
    run = Path(run)
    rows = read_metrics(run / "metrics.csv")
    name = run.resolve().name
    elements = []
    formed = {}
    if (run / "attention" / "scores.jsonl").exists():
        captures = Captures.of(AttentionArchive.open(run / "attention"), name)
        if captures.snapshots:
            formed = first_formed(captures)
        if captures.steps:
            elements.append(template.json_element("attention", attention_page([captures], f"{name}: attention")))
    charts = [chart(rows, *spec) for spec in CHARTS]
    data = {
        "title": name,
        "facts": facts(rows),
        "charts": [one for one in charts if one["curves"]],
        "heads": head_charts(rows, formed),
        "samples": evenly(read_samples(run / "samples.jsonl"), MAX_SAMPLES),
        "config": _read_text(run / "config.yaml") if (run / "config.yaml").exists() else "",
    }
    return template.fill("report.html", name, [template.json_element("data", data), *elements])


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of a metrics.csv, each with the columns that it has a number for; one cut short by a kill is left out.

    Raises FileNotFoundError if there is no such file, ValueError if it is no table of numbers.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}: nothing has been trained there yet")
    text = _read_text(path)
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    try:
        rows = [{name: float(value) for name, value in row.items() if value} for row in reader]
        return [row | {"step": int(row["step"])} for row in rows]
    except (ValueError, TypeError, KeyError, csv.Error) as error:
        raise ValueError(f"{path}, line {reader.line_num}: damaged ({type(error).__name__} {error})") from None


def read_samples(path: Path) -> list[dict]:
    """Step, prompt and text of every sample; none if there is no such file. Raises ValueError for a damaged one."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    try:
        samples = [json.loads(line) for line in lines if line.endswith(b"\n")]
        return [{"step": int(one["step"]), "prompt": str(one["prompt"]), "text": str(one["text"])} for one in samples]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__} {error})") from None


def facts(rows: Sequence[dict[str, float]]) -> list[tuple[str, str, str]]:
    """The figures that matter most: (name, value, remark)."""
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
        found.append(("tokens a second", short(median(value for _, value in points)), "median"))
    if seconds := training_seconds(rows):
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        found.append(
            ("trained for", f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}", "steps alone")
        )
    return found


def training_seconds(rows: Sequence[dict[str, float]]) -> float:
    """Time that the steps took, without validation: each row's tokens at its own speed."""
    seconds = seen = 0.0
    for row in rows:
        if "tokens" in row:
            # The first row after a resume may have no speed of its own.
            seconds += (row["tokens"] - seen) / row["tokens_per_second"] if row.get("tokens_per_second") else 0.0
            seen = row["tokens"]
    return seconds


def chart(rows: Sequence[dict[str, float]], title: str, unit: str, columns: dict[str, str], **more: object) -> dict:
    """Data of one chart: a curve for each column that has a number somewhere."""
    curves = [
        {"name": name, "points": evenly(column_points(rows, column), MAX_POINTS)} for name, column in columns.items()
    ]
    return {"title": title, "unit": unit, "curves": [curve for curve in curves if curve["points"]], **more}


def head_charts(rows: Sequence[dict[str, float]], formed: dict[str, str]) -> list[dict]:
    """One chart a score: the best head of each layer."""
    charts = []
    for score in SCORES:
        start = f"attention/{score}/layer_"
        layers = sorted({int(name[len(start) :]) for row in rows for name in row if name.startswith(start)})
        columns = {f"layer {layer}": f"{start}{layer}" for layer in layers}
        charts.append(chart(rows, score.replace("_", " "), formed.get(score, ""), columns, top=1, layers=True))
    return [one for one in charts if one["curves"]]


def first_formed(captures: Captures) -> dict[str, str]:
    """For each score that a head has formed, which was first and when."""
    found = {}
    for score, layers in formation_steps(captures).items():
        formed = [
            (step, layer, head) for layer, row in enumerate(layers) for head, step in enumerate(row) if step is not None
        ]
        if formed:
            step, layer, head = min(formed)
            found[score] = f"{layer}.{head} forms at {step:,}"
    return found


def column_points(rows: Sequence[dict[str, float]], column: str) -> Points:
    return [(row["step"], row[column]) for row in rows if math.isfinite(row.get(column, math.nan))]


def evenly(items: Sequence, count: int) -> list:
    """At most `count` of them, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def short(number: float) -> str:
    """Such as 950, 51.3k, 1.47M."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged, for it is no text ({error})") from None
