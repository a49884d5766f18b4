"""The report of a run as one HTML file that works offline, and that tells its story from top to bottom.

What was trained and on what; how the loss fell and when heads formed; what the model wrote; where it was surprised;
which heads matter; how a prediction forms; every attention map.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import median

import numpy as np

from model.checks import listed
from model.inspection.heads import SCORES, threshold
from model.inspection.recording import Recording, Snapshot
from model.inspection.verdicts import warnings
from model.pages import template
from model.pages.describe import describe_heads, stages
from model.pages.page import attention_page

Rows = Sequence[Mapping[str, float]]  # of metrics.csv: the columns that have a number there, "step" always
Points = list[tuple[float, float]]  # (step, value)

MAX_POINTS = 1500  # of a curve: more than a screen has pixels for
MAX_SAMPLES = 200

# Title and unit of each chart, and its curves: name -> column of metrics.csv.
CHARTS = (
    ("Loss", "nats per token", {"training": "train/loss", "validation": "val/loss"}),
    ("Bits per byte", "of the validation text", {"validation": "val/bits_per_byte"}),
)
MACHINE_CHARTS = (
    ("Learning rate", "of the embeddings", {"learning rate": "lr"}),
    ("Tokens per second", "while training", {"tokens per second": "tokens_per_second"}),
    ("Model FLOPs utilisation", "share of the peak", {"MFU": "mfu"}),
)
CORPORA = {
    "stdlib": "the source of Python's standard library",
    "repetitions": "random letters that repeat themselves",
}


def report_page(
    name: str,
    rows: Rows,
    samples: Sequence[dict],
    config_text: str = "",
    history: Recording | None = None,
    config: Mapping | None = None,
    model_page: str = "",
    experiments: Mapping[str, int] | None = None,
) -> str:
    """The report, as HTML. What a run does not have yet is left out.

    Args:
        name: of the run.
        rows: of its metrics.
        samples: each with step, prompt and text.
        config_text: its configuration as YAML.
        history: its attention maps, and what was measured beside them.
        config: the configuration as values, for the sentences at the top.
        model_page: the file beside the report that holds the model, if there is one.
        experiments: the step from which on each one holds, see `experiments.first_steps`.
    """
    head_charts = [one for one in (head_chart(rows, score) for score in SCORES) if one["curves"]]
    faint = [one for one in head_charts if is_faint(one, history)]
    data = {
        "title": name,
        "story": " ".join([*warnings(history.snapshots if history else []), story(rows, config or {})]),
        "facts": facts(rows, config or {}),
        "charts": [one for one in (chart(rows, *spec) for spec in CHARTS) if one["curves"]],
        "heads": [one for one in head_charts if one not in faint],
        "faint": [one["title"] for one in faint],
        "machine": [one for one in (chart(rows, *spec) for spec in MACHINE_CHARTS) if one["curves"]],
        "stages": [],
        "samples": evenly(samples, MAX_SAMPLES),
        "config": config_text,
        "model": model_page,
        "experiments": "; ".join(f"{title}: step {step:,}" for title, step in (experiments or {}).items()),
        "colours": template.PALETTES,
    }
    if history and history.snapshots:
        data |= {"stages": stages(history)} | last_snapshot(history)
    elements = []
    if history and history.mapped:
        elements = [template.json_element("attention", attention_page([history], f"{name}: attention"))]
    return template.fill("report", data, elements)


def story(rows: Rows, config: Mapping) -> str:
    """What this is and how long it trained on what, in sentences for someone who has never seen the project."""
    gpt = _section(_section(config, "model"), "gpt")
    size = ""
    layers, heads = gpt.get("num_layers"), gpt.get("num_heads")
    if isinstance(layers, int) and isinstance(heads, int):
        size = f" of {_count(layers, 'layer')} with {_count(heads, 'attention head')} each"
    data = _section(config, "data")
    text = CORPORA.get(str(data.get("corpus")), "a text")
    if dataset := data.get("dataset"):
        text = f"the data set {dataset}"
    elif files := data.get("files"):
        text = ", ".join(map(str, files)) if isinstance(files, list) else str(files)
    sentences = [f"A small GPT{size} learned to predict the next token of {text}."]
    if points := column_points(rows, "tokens"):
        seconds = training_seconds(rows)
        unit = "hours" if seconds >= 3600 else "minutes"
        took = f"{clock(seconds)} {unit}" if seconds >= 60 else _count(round(seconds), "second")
        time = f", which took {took}" if round(seconds) else ""
        sentences.append(f"It read {short(points[-1][1])} tokens in {_count(points[-1][0], 'step')}{time}.")
    if points := column_points(rows, "val/bits_per_byte"):
        bits = points[-1][1]
        sentences.append(f"It now needs {bits:.2f} bits for a byte of text that it has not read; a guess needs 8.")
    return " ".join(sentences)


def last_snapshot(history: Recording) -> dict:
    """What was measured at the last snapshot: on its text, by its lens, and which heads matter."""
    snapshot = history.snapshots[-1]
    matter, idle = heads_that_matter(snapshot) if snapshot.ablation else ([], "")
    found: dict = {"step": snapshot.step, "matter": matter, "idle": idle}
    if snapshot.step in history.mapped:  # its files have not been removed
        details = history.details(snapshot.step)
        text = {name: details["probes"]["text"][name] for name in ("bits", "rank", "top", "top_probability", "lens")}
        found["details"] = {name: details[name] for name in ("tokens", "sublayers")} | {"probes": {"text": text}}
        found["labels"] = history.probes["text"].labels
    return found


def heads_that_matter(snapshot: Snapshot) -> tuple[list[dict], str]:
    """All heads without which the loss clearly changes, those first that are missed most, and what each does.

    Returns for each head its name, the change of the loss on text and on repetition in nats per token with its standard
    error (None where it is no clear effect), and its sentence; and one sentence that names the other heads.
    """
    ranked, idle = [], []
    for (layer, head), described in zip(np.ndindex(snapshot.shape), chain(*describe_heads(snapshot)), strict=True):
        changes = {kind: parts[f"head {layer}.{head}"] for kind, parts in snapshot.ablation.items()}
        if any(change.is_clear for change in changes.values()):
            clear = {kind: change if change.is_clear else None for kind, change in changes.items()}
            ranked.append({"head": f"{layer}.{head}", "sentence": described["sentence"]} | clear)
        else:
            idle.append(f"{layer}.{head}")
    ranked.sort(key=lambda one: -max(change.rise for change in (one["text"], one["repeated"]) if change))
    return ranked, f"Without head {listed(idle, 'or')} there is no clear effect on either." if idle else ""


def facts(rows: Rows, config: Mapping) -> list[tuple[str, str, str]]:
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
    if 0 < (seconds := training_seconds(rows)) < math.inf:
        found.append(("trained for", clock(seconds), "without validation"))
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


def chart(rows: Rows, title: str, unit: str, columns: dict[str, str], **more: object) -> dict:
    """Data of one chart: a curve for each column that has a number in some row. columns: name of a curve -> column."""
    points = {name: evenly(column_points(rows, column), MAX_POINTS) for name, column in columns.items()}
    curves = [{"name": name, "points": of_column} for name, of_column in points.items() if of_column]
    return {"title": title, "unit": unit, "curves": curves, **more}


def head_chart(rows: Rows, score: str) -> dict:
    """Data of one score's chart: the best head of each layer."""
    start = f"attention/{score}/layer_"
    layers = sorted({int(name.removeprefix(start)) for row in rows for name in row if name.startswith(start)})
    columns = {f"layer {layer}": f"{start}{layer}" for layer in layers}
    meaning = SCORES[score].meaning
    return chart(rows, score.replace("_", " "), meaning, columns, top=1, layers=True, score=score)


def is_faint(chart: Mapping, history: Recording | None) -> bool:
    """Whether the score of a chart is a pattern, and no head passes its threshold."""
    if not SCORES[chart["score"]].is_pattern or not (history and history.snapshots):
        return False
    least = threshold(history.snapshots[-1].heads.uniform[chart["score"]])
    return all(value <= least for curve in chart["curves"] for _, value in curve["points"])


def short(number: float) -> str:
    """Such as 950, 51.3k, 1.47M."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def _count(number: float, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _section(values: Mapping, name: str) -> Mapping:
    section = values.get(name)
    return section if isinstance(section, Mapping) else {}
