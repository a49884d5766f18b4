"""How a run learned, as its page tells it: a story, figures, curves over the steps, and what the model wrote."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

Rows = Sequence[Mapping[str, float]]  # of metrics.csv: the columns that have a number there, "step" always
Points = list[tuple[float, float]]  # (step, value)

MAX_POINTS = 1500  # of a curve: more than a screen has pixels for
MAX_SAMPLES = 200

# Title and unit of each chart, and its curves: name -> column of metrics.csv.
CHARTS = (
    ("Loss", "nats per token", {"training": "train/loss", "validation": "val/loss"}),
    ("Bits per byte", "of the validation text", {"validation": "val/bits_per_byte"}),
    ("Learning rate", "of the embeddings", {"learning rate": "lr"}),
    ("Tokens per second", "while training", {"tokens per second": "tokens_per_second"}),
    ("Model FLOPs utilisation", "share of the peak", {"MFU": "mfu"}),
)
CORPORA = {
    "stdlib": "the source of Python's standard library",
    "repetitions": "random letters that repeat themselves",
}


def learning(rows: Rows, samples: Sequence[dict], config_text: str, config: Mapping) -> dict[str, Any]:
    """What a page shows of a run; what the run does not have yet is left out.

    rows: of its metrics. samples: each with step, prompt and text. config_text: its configuration as YAML; config: as
    values, for the story.
    """
    return {
        "story": story(rows, config),
        "facts": facts(rows),
        "charts": [one for one in (chart(rows, *spec) for spec in CHARTS) if one["curves"]],
        "samples": evenly(samples, MAX_SAMPLES),
        "config": config_text,
    }


def story(rows: Rows, config: Mapping) -> str:
    """What this is and how long it trained on what, in sentences for someone who has never seen the project."""
    gpt, data = config.get("model", {}).get("gpt", {}), config.get("data", {})
    size = f" of {_count(gpt['num_layers'], 'layer')} with {_count(gpt['num_heads'], 'head')} each" if gpt else ""
    corpus = data.get("corpus")
    text = CORPORA.get(corpus, f"the corpus {corpus}") if corpus else "a text"
    if dataset := data.get("dataset"):
        text = f"the data set {dataset}"
    elif files := data.get("files"):
        text = ", ".join(files) if isinstance(files, list) else files
    repeated = data.get("repeat_fraction") or 0
    more = f"; {100 * repeated:.3g}% of its windows repeat themselves" if repeated else ""
    sentences = [f"A GPT{size} learns to predict the next token of {text}{more}."]
    if points := column_points(rows, "tokens"):
        seconds = training_seconds(rows)
        unit = "hours" if round(seconds) >= 3600 else "minutes"
        took = f"{clock(seconds)} {unit}" if seconds >= 60 else _count(round(seconds), "second")
        time = f", in {took}" if round(seconds) else ""
        step, planned = points[-1][0], (config.get("trainer") or {}).get("max_steps") or -1
        steps = f"{step} of {planned} steps" if step < planned else _count(step, "step")
        sentences.append(f"It read {short(points[-1][1])} tokens in {steps}{time}.")
    return " ".join(sentences)


def facts(rows: Rows) -> list[tuple[str, str, str]]:
    """The most important figures: (name, value, remark)."""
    found = []
    for column, name in (("val/bits_per_byte", "bits per byte"), ("val/loss", "validation loss")):
        if points := column_points(rows, column):
            last, best = points[-1], min(points, key=lambda point: point[1])
            remark = f"at step {last[0]:,}" if best == last else f"best {best[1]:.4f} at step {best[0]:,}"
            remark += "; a guess needs 8" * (name == "bits per byte")
            found.append((name, f"{last[1]:.4f}", remark))
    if points := column_points(rows, "tokens_per_second"):
        found.append(("tokens per second", short(median(value for _, value in points)), "median"))
    return found


def clock(seconds: float) -> str:
    """Such as 4:05 or 1:00:03."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def training_seconds(rows: Rows) -> float:
    """The time of the training steps, without validation: each row's new tokens at the speed of that row."""
    seconds = seen = 0.0
    for row in rows:
        if "tokens" in row:
            # The first row after a resume may have no speed.
            seconds += (row["tokens"] - seen) / row["tokens_per_second"] if row.get("tokens_per_second") else 0.0
            seen = row["tokens"]
    return seconds


def column_points(rows: Rows, column: str) -> Points:
    """The finite numbers of a column."""
    return [(row["step"], row[column]) for row in rows if math.isfinite(row.get(column, math.nan))]


def evenly(items: Sequence, count: int) -> list:
    """At most `count` of the items, evenly spaced, including the first and the last."""
    return [items[i] for i in np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)]


def chart(rows: Rows, title: str, unit: str, columns: dict[str, str]) -> dict:
    """Data of one chart: a curve for each column that has a number in some row. columns: name of a curve -> column."""
    points = {name: evenly(column_points(rows, column), MAX_POINTS) for name, column in columns.items()}
    curves = [{"name": name, "points": of_column} for name, of_column in points.items() if of_column]
    return {"title": title, "unit": unit, "curves": curves}


def short(number: float) -> str:
    """Such as 950, 51.3k, 1.47M."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def _count(number: float, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
