"""What a person takes away from captures: pictures (PNG, SVG, PDF), and tables of the numbers (CSV, JSON).

TABLES is the one list of columns, for the files that are written here and for those that the page saves. In all of
them layers, heads, positions and ranks count from 0, and a position is that of the token that is read: what it predicts
is the next token.

Shapes: L layers, H heads, T tokens. A function takes the captures of one model, or of two to compare.
"""

import csv
import io
import json
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

DIGITS = 5  # significant ones of a weight: enough to tell every float16 from its neighbours

Head = tuple[int, int]  # layer, head
Row = dict[str, Any]  # column -> str, int, float, or None for what is not known
# What all rows have; the texts of a column's numbers; columns as arrays along the axes of their table.
Measured = tuple[Row, dict[str, Sequence], dict[str, Any]]
TOPS = [f"top_{place}{part}" for place in range(1, TOP + 1) for part in ("", "_probability")]

# What each column holds. JSON files carry it with them.
COLUMNS = {
    "run": "name of the run or checkpoint",
    "step": "training steps taken when the model was captured",
    "other_run": "the run that is compared with it",
    "other_step": "that run's step",
    "other_layer": "the layer of the head that is compared with it",
    "other_head": "the number of that head within its layer",
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


# The columns of an axis, where these are not the axis itself.
AXES = {
    "layers": ("layer", "other_layer"),
    "heads": ("head", "other_head"),
    "position": ("position", "token", "next_token"),
    "query": ("query", "query_token"),
    "key": ("key", "key_token"),
}


@dataclass(frozen=True)
class Table:
    """A row for each place along the axes, in each of the captures. All but `about` name columns."""

    about: str
    axes: Sequence[str]
    values: Sequence[str]
    captures: Sequence[str] = ("run", "step", "probe")

    @property
    def columns(self) -> list[str]:
        return [*self.captures, *(column for axis in self.axes for column in AXES.get(axis, (axis,))), *self.values]


HEAD, TWO, TOKENS = ["layer", "head"], ["run", "step", "other_run", "other_step", "probe"], ["query", "key"]
DIFFERENCE = ["weight", "other_weight", "difference"]
EARLY = ["likeliest", "probability", "divergence"]
TABLES = {
    "weights": Table("Attention weights of one model", [*HEAD, *TOKENS], ["weight"]),
    "comparison": Table("Attention weights of two models", ["layers", "heads", *TOKENS], DIFFERENCE, captures=TWO),
    "scores": Table("Scores of heads over the steps", HEAD, [*SCORES, "copying"], captures=["run", "step"]),
    "surprise": Table("Predictions of the next token", ["position"], ["bits", "rank", *TOPS]),
    "lens": Table("Early predictions of the next token", ["sublayer", "position"], EARLY),
    "attribution": Table("What each part adds to the logit of the next token", ["part", "position"], ["logit"]),
    "value_norms": Table("What a head's full weight on a token moves", [*HEAD, "position"], ["value_norm"]),
    "ablation": Table("What the loss rises by without a part, over the steps", ["part"], ["loss_change"]),
}


def write_table(name: str, rows: Iterable[Row], path: Path) -> None:
    """Writes rows of one of TABLES as the ending of `path` says: .csv or .json."""
    table = TABLES[name]
    cells = ([row[column] for column in table.columns] for row in rows)
    if path.suffix == ".csv":
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(table.columns)
        writer.writerows(cells)
        content = text.getvalue().encode(errors="backslashreplace")  # a folder's name may be no valid text
    else:
        about = {"about": table.about, "columns": {column: COLUMNS[column] for column in table.columns}}
        lines = ",\n".join(json.dumps(row, allow_nan=False) for row in cells)
        content = f'{json.dumps(about)[:-1]}, "rows": [\n{lines}\n]}}\n'.encode()
    write_atomically(path, content)


# ---- what is chosen


def choose_step(captures: Captures, step: int | None = None, *, reads_maps: bool = True) -> int:
    """The step itself, or the last that was recorded, with its maps if these are read.

    Raises ValueError if there are no maps or not this step, FileNotFoundError if its maps are read and were removed.
    """
    recorded = [snapshot.step for snapshot in captures.snapshots]
    if reads_maps:
        captures.check_maps()
    if step is None:
        return captures.steps[-1] if reads_maps else recorded[-1]
    if step not in recorded:
        near = min(recorded, key=lambda other: abs(other - step))
        raise ValueError(f"--step {step} was not recorded in {captures.name}: the nearest that was is {near}")
    if reads_maps and step not in captures.steps:
        raise FileNotFoundError(f"the maps of step {step} in {captures.name} have been removed: choose another --step")
    return step


def choose_heads(names: Sequence[str] | None, shown: Sequence[Captures]) -> list[Head] | None:
    """The heads named LAYER.HEAD, or None for all. Raises ValueError for one that is not in every model, or no maps."""
    if empty := [captures.name for captures in shown if not captures.snapshots]:
        raise ValueError(f"{empty[0]} has no recorded maps")
    if names is None:
        return None
    layers, heads = np.min([captures.snapshots[0].shape for captures in shown], axis=0)
    known = {f"{layer}.{head}": (layer, head) for layer, head in np.ndindex(layers, heads)}
    for name in names:
        if name not in known:
            raise ValueError(f"--head must be LAYER.HEAD, from 0.0 to {layers - 1}.{heads - 1}, not {name}")
    return [known[name] for name in dict.fromkeys(names)]


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
    from model.pages.images import attention_grid  # imports matplotlib

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
        names = [f"A: {names[0]}", f"B: {names[1]}"]
        difference = grids[0] - grids[1]
        columns = [f"{model}, {name}".removesuffix(", ") for model in ("A", "B", "A − B") for name in columns]
    elif heads is not None:  # side by side
        grids, rows, columns = [grids[0].swapaxes(0, 1)], columns, rows
    title = f"{'; '.join(names)}: rows attend to columns"
    layout = {"rows": rows, "columns": columns, "differences": difference}
    labels = shown[0].probes[probe].labels
    attention_grid(np.concatenate(grids, axis=1), labels, output, title, **layout, **options)


def draw_scores(shown: Sequence[Captures], output: Path, heads: Sequence[Head] | None, **options: Any) -> None:
    """A picture of the scores over the steps. Raises ValueError for a model with fewer than two captures."""
    from model.pages.images import score_curves

    for captures in shown:
        if len(captures.snapshots) < 2:
            raise ValueError(f"{captures.name} was recorded at one step only: --scores needs a run with several steps")
    title = shown[0].name if len(shown) == 1 else ""  # two have their names beside their rows
    score_curves(shown, output, title, heads=heads, **options)


# ---- tables


def table_rows(
    name: str, shown: Sequence[Captures], step: int | None, probe: str, heads: Sequence[Head] | None
) -> Iterator[Row]:
    """The rows of one of TABLES: "scores" and "ablation" at every step, others at one, by default the last.

    Raises ValueError if the step was not recorded, or without this measurement, or if two models cannot be compared;
    FileNotFoundError if the maps of the step are needed and have been removed.
    """
    table = TABLES[name]
    if name in ("weights", "comparison"):
        measured: Iterable[Measured] = [_weights(shown, step, probe, heads)]
    else:
        measured = (one for captures in shown for one in _measured(name, captures, step, probe))
    for about, names, columns in measured:
        # As objects, because a column may hold texts, or None.
        values = {column: np.asarray(columns[column], object) for column in table.values}
        shape = values[table.values[0]].shape
        rest = shape if heads is None else shape[2:]
        for place in ((*head, *more) for head in ([()] if heads is None else heads) for more in np.ndindex(rest)):
            at = dict(zip(table.axes, place, strict=True))
            if at.get("key", 0) > at.get("query", 0) and not any(array[place] for array in values.values()):
                continue  # the future, which is masked
            row = dict(about)
            for axis, number in at.items():
                for column in AXES.get(axis, (axis,)):
                    row[column] = names[column][number] if column in names else number
            yield row | {column: as_json(array[place], f".{DIGITS}g") for column, array in values.items()}


def _weights(shown: Sequence[Captures], step: int | None, probe: str, heads: Sequence[Head] | None) -> Measured:
    steps, maps = _choose_maps(shown, step, probe, heads)
    about = {"run": shown[0].name, "step": steps[0], "probe": probe}
    about |= {"other_run": shown[-1].name, "other_step": steps[-1]}
    layers, count = np.min([array.shape[:2] for array in maps], axis=0)  # the chosen heads are among these
    one, other = (array[:layers, :count] for array in (maps[0], maps[-1]))
    return about, _texts(shown[0], probe), {"weight": one, "other_weight": other, "difference": one - other}


def _measured(name: str, captures: Captures, step: int | None, probe: str) -> Iterator[Measured]:
    run, snapshots = {"run": captures.name}, [snapshot.to_json(SCORE_DIGITS) for snapshot in captures.snapshots]
    if name == "scores":
        unknown = np.full(captures.snapshots[0].shape, None)
        for fields in snapshots:
            yield run | {"step": fields["step"]}, {}, {"copying": unknown, **fields, **fields["scores"]}
    elif name == "ablation":
        if not any("ablation" in fields for fields in snapshots):
            raise ValueError(f"{captures.name} has no {name}: it was recorded without it")
        for fields in snapshots:
            for of_probe, change in fields.get("ablation", {}).items():
                parts: dict[str, float] = {}
                for layer, heads in enumerate(change["heads"]):
                    parts |= {f"head {layer}.{head}": rise for head, rise in enumerate(heads)}
                parts |= {f"feed-forward {layer}": rise for layer, rise in enumerate(change["feed_forward"])}
                parts |= change["tables"]
                about = run | {"step": fields["step"], "probe": of_probe}
                yield about, {"part": list(parts)}, {"loss_change": list(parts.values())}
    else:
        at = choose_step(captures, step, reads_maps=False)
        details = captures.details(at)
        if probe not in details.get("probes", {}):
            raise ValueError(f"{captures.name} has no {name} of step {at}: that step was recorded without it")
        names = _texts(captures, probe) | {"sublayer": details["sublayers"], "part": details["parts"]}
        yield run | {"step": at, "probe": probe}, names, _predictions(details["probes"][probe], details["tokens"])


def _predictions(measured: Mapping, texts: Mapping[str, str]) -> dict[str, Any]:
    """The columns of a probe's details. texts: of the ids in them."""

    def words(tokens: Sequence[int]) -> list[str | None]:
        return [texts.get(str(token)) for token in tokens]

    lens = measured["lens"]
    columns = {**measured, **lens, "likeliest": list(map(words, lens["token"]))}
    columns |= {"logit": measured["attribution"], "value_norm": measured["value_norms"]}
    columns |= dict.fromkeys(TOPS, [None] * len(measured["bits"]))  # a vocabulary may be smaller
    top = zip(np.transpose(measured["top"]), np.transpose(measured["top_probability"]), strict=True)
    for place, (tokens, shares) in enumerate(top, start=1):
        columns |= {f"top_{place}": words(tokens), f"top_{place}_probability": shares}
    return columns


def _texts(captures: Captures, probe: str) -> dict[str, Sequence]:
    """What the columns with tokens hold, by position."""
    labels = captures.probes[probe].labels
    return {"token": labels, "next_token": [*labels[1:], None], "query_token": labels, "key_token": labels}
