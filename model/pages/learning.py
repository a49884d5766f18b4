"""The part of a page about a run's training: its story, its figures, curves over the steps, and samples."""

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from statistics import median
from typing import Any

import numpy as np

from model.mistakes import listed

Rows = Sequence[Mapping[str, float]]  # of metrics.csv: each row has "step" and the columns that are not empty
Points = list[tuple[float, float]]  # (step, value)

MAX_POINTS = 1500  # of a curve: about as many as a screen has pixels
MAX_SAMPLES = 200

# Each chart: title, unit, and its curves as {name: column of metrics.csv}. A column that a user logs has its own chart.
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


def learning(
    rows: Rows,
    samples: Sequence[dict],
    config_text: str,
    config: Mapping,
) -> dict[str, Any]:
    """The data of a page about a run's training. Charts and figures that the run does not have yet are left out.

    samples: dicts with step, prompt and text. config_text: the run's configuration as YAML. config: the same, parsed,
    for the story.
    """
    charts = []
    for title, unit, columns in (*CHARTS, *_own_charts(rows)):
        curves = []
        for name, column in columns.items():
            if points := column_points(rows, column):
                curves.append({"name": name, "points": evenly(points, MAX_POINTS)})
        if curves:
            charts.append({"title": title, "unit": unit, "curves": curves})
    return {
        "story": story(rows, config),
        "facts": facts(rows),
        "charts": charts,
        "samples": evenly(samples, MAX_SAMPLES),
        "config": config_text,
    }


def _own_charts(rows: Rows) -> list[tuple[str, str, dict[str, str]]]:
    """Returns a chart, as in CHARTS, for each column that a user logs. The scores of heads have charts of their own."""
    taken = {"step", "tokens"}.union(*(columns.values() for _, _, columns in CHARTS))
    logged = dict.fromkeys(column for row in rows for column in row)
    own = [column for column in logged if column not in taken and not column.startswith("attention/")]
    return [(column, "as logged", {column: column}) for column in own]


def evenly(items: Sequence, count: int) -> list:
    """Picks at most `count` items, evenly spaced, including the first and the last."""
    indices = np.linspace(0, len(items) - 1, min(count, len(items)))
    return [items[index] for index in indices.round().astype(int)]


def story(rows: Rows, config: Mapping) -> str:
    """Sentences for someone who has never seen the project: what the model is, and how long it trained on what."""
    model = config.get("model", {})
    gpt = model.get("gpt")
    size = f" of {_count(gpt['num_layers'], 'layer')} with {_count(gpt['num_heads'], 'head')} each" if gpt else ""
    data = config.get("data", {})
    goal = f"A GPT{size} learns to predict the next token of {_text_in_words(data)}.{_repeats_in_words(data)}"
    if model.get("init_from"):
        goal += f" It began as the model {model['init_from']}."
    progress = column_points(rows, "tokens")
    if not progress:
        return goal
    step, tokens = progress[-1]
    planned = (config.get("trainer") or {}).get("max_steps") or -1
    steps = f"{step} of {planned} steps" if step < planned else _count(step, "step")
    _, seconds = training_seconds(rows)[-1]
    return f"{goal} It read {short(tokens)} tokens in {steps}, in {timedelta(seconds=round(seconds))}."


def _text_in_words(data: Mapping) -> str:
    """Names the training text, from the data options."""
    corpus, files = data.get("corpus"), data.get("files")
    if data.get("dataset"):
        return f"the data set {data['dataset']}"
    if files:
        return ", ".join(files) if isinstance(files, list) else files
    return CORPORA.get(corpus, f"the corpus {corpus}")


def _repeats_in_words(data: Mapping) -> str:
    """A sentence on training texts that repeat themselves, from the data options; "" if there are none."""
    shares = []
    first, last = data.get("repeat_from") or 0, data.get("repeat_until")
    steps = f"from step {first} on" if last is None else f"in steps {first} to {last}"
    if share := data.get("repeat_fraction"):
        shares.append(f"{share:.0%} of its texts repeat their beginning {steps}")
    if share := data.get("random_repeat_fraction"):
        shares.append(f"{share:.1%} repeat random tokens")
    return f" So that heads form early, {listed(shares)}." if shares else ""


def facts(rows: Rows) -> list[tuple[str, str, str]]:
    """The most important figures, each as (name, value, remark)."""
    found = []
    for column, name in (("val/bits_per_byte", "bits per byte"), ("val/loss", "validation loss")):
        if points := column_points(rows, column):
            last = points[-1]
            best = min(points, key=lambda point: point[1])
            remark = f"at step {last[0]:,}" if best == last else f"best {best[1]:.4f} at step {best[0]:,}"
            found.append((name, f"{last[1]:.4f}", remark))
    if points := column_points(rows, "tokens_per_second"):
        found.append(("tokens per second", short(median(value for _, value in points)), "median"))
    return found


def training_seconds(rows: Rows) -> Points:
    """The points (step, seconds spent in training steps until then), from (0, 0) on; without validation.

    Sums over the rows: tokens since the row before, divided by the row's tokens per second.
    """
    seconds = seen = 0.0
    points = [(0.0, seconds)]
    for row in rows:
        if "tokens" in row:
            if row.get("tokens_per_second"):  # the first row after a resume may have none
                seconds += (row["tokens"] - seen) / row["tokens_per_second"]
            seen = row["tokens"]
            points.append((row["step"], seconds))
    return points


def column_points(rows: Rows, column: str) -> Points:
    """The points (step, value) of a column, without values that are empty, NaN or infinite."""
    return [(row["step"], row[column]) for row in rows if math.isfinite(row.get(column, math.nan))]


def short(number: float) -> str:
    """Formats a number such as 950, 51.3k or 1.47M."""
    for size, unit in ((1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def _count(number: float, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
