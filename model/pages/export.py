"""What a person takes away from captures: pictures (PNG, SVG, PDF), and tables of the numbers (CSV, JSON).

Shapes: L layers, H heads, T tokens. A function takes the captures of one model, or of two to compare.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model.files import write_atomically
from model.inspection.archive import SCORE_DIGITS, as_json
from model.inspection.heads import SCORES
from model.inspection.lens import TOP
from model.pages.captures import Captures, check_comparable
from model.pages.images import attention_grid, score_curves

DIGITS = 5  # significant ones of a weight: enough to tell every float16 from its neighbours

Head = tuple[int, int]  # layer, head
Row = tuple[str | int | float | None, ...]

# What the columns of the tables hold. JSON files carry it with them.
COLUMNS = {
    "run": "name of the run or checkpoint",
    "step": "training steps taken when the model was captured",
    "other_run": "the run that is compared with it",
    "other_step": "that run's step",
    "probe": "text, or random tokens that are repeated",
    "layer": "number from 0",
    "head": "number within the layer, from 0",
    "query": "position of the token that attends, from 0",
    "query_token": "its text",
    "key": "position of the token attended to, from 0; a later one has a row only where it has weight",
    "key_token": "its text",
    "weight": f"attention weight of the key for the query, {DIGITS} significant digits",
    "other_weight": "the same in the other run",
    "difference": f"weight - other_weight, {DIGITS} significant digits",
    **{name: f"this head {score.meaning}; 0 to 1, {SCORE_DIGITS} decimals" for name, score in SCORES.items()},
    "copying": "how far the head raises the logits of the tokens that it attends to (OV copying score), -1 to 1",
    "position": "position that reads the token and predicts the next, from 0",
    "token": "text of the token at this position",
    "next_token": "text of the token to predict; empty at the last position",
    "bits": "surprise: -log2 of the probability of the next token",
    "rank": "place of the next token among all by probability, 0 = likeliest",
    **{f"top_{place}": f"the likeliest next token, number {place}" for place in range(1, TOP + 1)},
    **{f"top_{place}_probability": "its probability" for place in range(1, TOP + 1)},
    "sublayer": "part of the model after which the prediction is read",
    "likeliest": "the likeliest next token there",
    "probability": "probability of the next token there",
    "divergence": "Kullback-Leibler divergence of the prediction there from the final one, in bits",
    "part": "part of the model",
    "logit": "what the part adds to the next token's logit, before the soft-cap and with the final norm's scale fixed",
    "value_norm": "length of what the head writes for a weight of 1 on this token; times a weight, what that one moves",
    "loss_change": "change of the loss, in nats per token, when the part is replaced by its mean",
}


@dataclass(frozen=True)
class Table:
    """Rows of numbers and names; `columns` are keys of COLUMNS, and None stands for what is not known."""

    about: str
    columns: Sequence[str]
    rows: Iterable[Row]


def write_table(table: Table, path: Path) -> None:
    """Writes a table as the ending of `path` says: .csv or .json."""
    if path.suffix == ".csv":
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(table.columns)
        writer.writerows(table.rows)
        content = text.getvalue().encode(errors="backslashreplace")  # a folder's name may be no valid text
    else:
        about = {"about": table.about, "columns": {name: COLUMNS[name] for name in table.columns}}
        rows = ",\n".join(json.dumps(row, allow_nan=False) for row in table.rows)
        content = f'{json.dumps(about)[:-1]}, "rows": [\n{rows}\n]}}\n'.encode()
    write_atomically(path, content)


# ---- what is chosen


def choose_step(captures: Captures, step: int | None = None) -> int:
    """The step itself, or the last that has maps.

    Raises:
        ValueError: if there are no maps, or the step was not recorded.
        FileNotFoundError: if its maps have been removed.
    """
    captures.check_maps()
    recorded = [snapshot.step for snapshot in captures.snapshots]
    if step is None:
        return captures.steps[-1]
    if step not in recorded:
        near = min(recorded, key=lambda other: abs(other - step))
        raise ValueError(f"--step {step} was not recorded in {captures.name}: the nearest that was is {near}")
    if step not in captures.steps:
        raise FileNotFoundError(f"the maps of step {step} in {captures.name} have been removed: choose another --step")
    return step


def choose_heads(names: Sequence[str] | None, shown: Sequence[Captures]) -> list[Head] | None:
    """The heads named LAYER.HEAD, or None for all. Raises ValueError for one that is not in every model.

    A model of which nothing was captured has no heads to show: ValueError too.
    """
    if empty := [captures.name for captures in shown if not captures.snapshots]:
        raise ValueError(f"{empty[0]} has no recorded maps")
    if names is None:
        return None
    layers, heads = np.min([captures.snapshots[0].shape for captures in shown], axis=0)
    chosen = []
    for name in names:
        match = re.fullmatch(r"(\d+)\.(\d+)", name)
        if not match or int(match[1]) >= layers or int(match[2]) >= heads:
            raise ValueError(f"--head must be LAYER.HEAD, from 0.0 to {layers - 1}.{heads - 1}, not {name}")
        chosen.append((int(match[1]), int(match[2])))
    return list(dict.fromkeys(chosen))


def _choose_maps(
    shown: Sequence[Captures], step: int | None, probe: str, heads: Sequence[Head] | None
) -> tuple[list[int], list[np.ndarray]]:
    """Of each model the step and its maps (L, H, T, T). Raises ValueError if two cannot be subtracted."""
    steps = [choose_step(captures, step) for captures in shown]
    maps = [np.asarray(captures.load(at)[probe], np.float32) for captures, at in zip(shown, steps, strict=True)]
    check_comparable(shown, [probe], of_one_shape=heads is None)
    return steps, maps


# ---- pictures


def draw_maps(
    shown: Sequence[Captures], output: Path, step: int | None, probe: str, heads: Sequence[Head] | None, **options: Any
) -> None:
    """A picture of the maps at a step, by default the last; of two models with their difference."""
    steps, maps = _choose_maps(shown, step, probe, heads)
    if heads is None:
        grids, (layers, width) = maps, maps[0].shape[:2]
        rows, columns = [f"layer {layer}" for layer in range(layers)], [f"head {head}" for head in range(width)]
    else:
        grids = [np.stack([array[head] for head in heads])[:, None] for array in maps]
        rows, columns = [f"head {layer}.{head}" for layer, head in heads], [""]
    names = [f"{captures.name}, step {at}" for captures, at in zip(shown, steps, strict=True)]
    difference = None
    if len(shown) == 2:
        names = [f"{letter}: {name}" for letter, name in zip("AB", names, strict=True)]
        difference = grids[0] - grids[1]
        columns = [f"{model}, {name}" if name else model for model in ("A", "B", "A − B") for name in columns]
    elif heads is not None:  # side by side
        grids, rows, columns = [grids[0].swapaxes(0, 1)], columns, rows
    title = f"{'; '.join(names)}: rows attend to columns"
    layout = {"rows": rows, "columns": columns, "differences": difference}
    labels = shown[0].probes[probe].labels
    attention_grid(np.concatenate(grids, axis=1), labels, output, title, **layout, **options)


def draw_scores(shown: Sequence[Captures], output: Path, heads: Sequence[Head] | None, **options: Any) -> None:
    """A picture of the scores over the steps. Raises ValueError for a model with fewer than two captures."""
    for captures in shown:
        if len(captures.snapshots) < 2:
            raise ValueError(f"{captures.name} was recorded at one step only: --scores needs a run with several steps")
    title = shown[0].name if len(shown) == 1 else ""  # two have their names beside their rows
    score_curves(shown, output, title, heads=heads, **options)


# ---- tables


def map_table(shown: Sequence[Captures], step: int | None, probe: str, heads: Sequence[Head] | None) -> Table:
    """The weights at a step, by default the last: a row for each query and each key that it sees."""
    steps, maps = _choose_maps(shown, step, probe, heads)
    labels = shown[0].probes[probe].labels
    models = [cell for captures, at in zip(shown, steps, strict=True) for cell in (captures.name, at)]
    chosen = list(np.ndindex(maps[0].shape[:2])) if heads is None else heads

    def rows() -> Iterator[Row]:
        for head in chosen:
            for query in range(len(labels)):
                for key in range(len(labels)):
                    weights = [array[head][query, key] for array in maps]
                    if key > query and not any(weights):
                        continue
                    if len(weights) == 2:
                        weights.append(weights[0] - weights[1])
                    place = (probe, *head, query, labels[query], key, labels[key])
                    yield (*models, *place, *as_json(weights, f".{DIGITS}g"))

    place = ("probe", "layer", "head", "query", "query_token", "key", "key_token")
    if len(shown) == 1:
        return Table("Attention weights of one model", ["run", "step", *place, "weight"], rows())
    columns = ["run", "step", "other_run", "other_step", *place, "weight", "other_weight", "difference"]
    return Table("Attention weights of two models", columns, rows())


def score_table(shown: Sequence[Captures], heads: Sequence[Head] | None) -> Table:
    """What every capture says of each head: a row for each model, step and head."""
    taken = [(captures.name, one.to_json(SCORE_DIGITS)) for captures in shown for one in captures.snapshots]
    names = [*SCORES, "copying"] if any("copying" in fields for _, fields in taken) else list(SCORES)
    rows: list[Row] = []
    for name, fields in taken:
        known = fields["scores"] | {"copying": fields.get("copying")}
        for layer, head in np.ndindex(np.shape(known["sink"])) if heads is None else heads:
            scores = [known[score] and known[score][layer][head] for score in names]
            rows.append((name, fields["step"], layer, head, *scores))
    return Table("Scores of heads over the steps", ["run", "step", "layer", "head", *names], rows)


def measure_table(shown: Sequence[Captures], measure: str, step: int | None, probe: str) -> Table:
    """One of MEASURES at a step, by default the last: rows for each position of the probe."""
    columns, rows_of = MEASURES[measure]
    rows: list[Row] = []
    for captures in shown:
        at = choose_step(captures, step)
        details = captures.details(at)
        if probe not in details.get("probes", {}):
            raise ValueError(f"{captures.name} has no {measure} of step {at}: that step was recorded without it")
        tokens = captures.probes[probe].labels
        for position, measured in rows_of(details["probes"][probe], details):
            following = tokens[position + 1] if position + 1 < len(tokens) else None
            rows.append((captures.name, at, probe, position, tokens[position], following, *measured))
    names = ["run", "step", "probe", "position", "token", "next_token", *columns]
    return Table(f"{measure.capitalize()} of a probe's tokens, numbers to 4 significant digits", names, rows)


def ablation_table(shown: Sequence[Captures]) -> Table:
    """What the loss of every capture rises by without a part of the model: a row for each step, probe and part."""
    rows: list[Row] = []
    for captures in shown:
        before = len(rows)
        for snapshot in captures.snapshots:
            for probe, change in (snapshot.to_json(SCORE_DIGITS).get("ablation") or {}).items():
                heads, layers = np.ndindex(snapshot.shape), range(snapshot.shape[0])
                parts = {f"head {layer}.{head}": change["heads"][layer][head] for layer, head in heads}
                parts |= {f"feed-forward {layer}": change["feed_forward"][layer] for layer in layers}
                parts |= change["tables"]
                rows += [(captures.name, snapshot.step, probe, part, loss) for part, loss in parts.items()]
        if len(rows) == before:
            raise ValueError(f"{captures.name} has no ablation: it was recorded without it")
    return Table("Ablation over the steps", ["run", "step", "probe", "part", "loss_change"], rows)


def _surprise_rows(measured: Mapping, details: Mapping) -> Iterator[tuple[int, Row]]:
    names = ("bits", "rank", "top", "top_probability")
    for position, (bits, rank, top, shares) in enumerate(zip(*(measured[name] for name in names), strict=True)):
        cells = [cell for token, share in zip(top, shares, strict=True) for cell in (_text(details, token), share)]
        cells += [None] * (2 * TOP - len(cells))  # a vocabulary may be smaller
        yield position, (bits, rank, *cells)


def _lens_rows(measured: Mapping, details: Mapping) -> Iterator[tuple[int, Row]]:
    lens = measured["lens"]
    numbers = (lens["token"], lens["probability"], lens["divergence"])  # each (2L + 1, T)
    for name, *of_sublayer in zip(details["sublayers"], *numbers, strict=True):
        for position, (token, probability, divergence) in enumerate(zip(*of_sublayer, strict=True)):
            yield position, (name, _text(details, token), probability, divergence)


def _attribution_rows(measured: Mapping, details: Mapping) -> Iterator[tuple[int, Row]]:
    for part, logits in zip(details["parts"], measured["attribution"], strict=True):
        for position, logit in enumerate(logits):
            yield position, (part, logit)


def _value_rows(measured: Mapping, details: Mapping) -> Iterator[tuple[int, Row]]:
    for layer, of_layer in enumerate(measured["value_norms"]):
        for head, norms in enumerate(of_layer):
            for position, norm in enumerate(norms):
                yield position, (layer, head, norm)


def _text(details: Mapping, token: int | None) -> str | None:
    return details["tokens"].get(str(token))


# Each measurement of a step: its columns, and from the details positions with rows of them.
MEASURES = {
    "surprise": (
        ["bits", "rank", *(f"top_{place}{part}" for place in range(1, TOP + 1) for part in ("", "_probability"))],
        _surprise_rows,
    ),
    "lens": (["sublayer", "likeliest", "probability", "divergence"], _lens_rows),
    "attribution": (["part", "logit"], _attribution_rows),
    "value_norms": (["layer", "head", "value_norm"], _value_rows),
}
