"""Tables of what was measured (CSV, JSON), and what a person chooses of it, for a table or a picture.

TABLES is the one list of columns, for the files that are written here and for those that the page saves. In all of
them layers, heads, positions and ranks count from 0, and a position is that of the token that is read: what it predicts
is the next token.

Shapes: L layers, H heads, T tokens. `shown` is the history of one model, or those of two to compare.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from model.files import write_atomically
from model.inspection.archive import SCORE_DIGITS, as_json
from model.inspection.heads import SCORES
from model.inspection.lens import TOP
from model.inspection.verdicts import PAGE_ERROR
from model.pages.history import History, check_comparable

DIGITS = 5  # significant ones of a weight: enough to tell every float16 from its neighbours

Head = tuple[int, int]  # layer, head
Heads = Sequence[Head] | None  # None for all
Row = dict[str, Any]  # column -> str, int, float, or None for what is not known
TOPS = [f"top_{place}{part}" for place in range(1, TOP + 1) for part in ("", "_probability")]

# What each column holds. JSON files carry it with them.
COLUMNS = {
    "run": "name of the run or checkpoint",
    "step": "training steps taken when the model was measured",
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
    "weight": f"attention weight of the key for the query, {DIGITS} significant digits; from a page to {PAGE_ERROR}",
    "other_weight": "the same in the other run",
    "difference": f"weight - other_weight, {DIGITS} significant digits; from a page to {2 * PAGE_ERROR}",
    **{name: f"this head {score.meaning}; 0 to 1, {SCORE_DIGITS} decimals" for name, score in SCORES.items()},
    "copying": "how far the head raises the logits of the tokens that it attends to (OV copying score), -1 to 1; "
    f"{SCORE_DIGITS} decimals",
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
    "loss_change": "change of the loss, in nats per token, when the part is replaced by its mean; "
    f"{SCORE_DIGITS} decimals",
}


class Table(NamedTuple):
    about: str
    columns: list[str]


ABOUT, HEAD, TOKEN = ["run", "step", "probe"], ["layer", "head"], ["position", "token", "next_token"]
TWO, TWO_HEADS = ["run", "step", "other_run", "other_step", "probe"], ["layer", "other_layer", "head", "other_head"]
MAP = ["query", "query_token", "key", "key_token", "weight"]
TABLES = {
    "weights": Table("Attention weights of one model", [*ABOUT, *HEAD, *MAP]),
    "comparison": Table("Attention weights of two models", [*TWO, *TWO_HEADS, *MAP, "other_weight", "difference"]),
    "scores": Table("Scores of heads over the steps", ["run", "step", *HEAD, *SCORES, "copying"]),
    "surprise": Table("Predictions of the next token", [*ABOUT, *TOKEN, "bits", "rank", *TOPS]),
    "lens": Table(
        "Early predictions of the next token", [*ABOUT, "sublayer", *TOKEN, "likeliest", "probability", "divergence"]
    ),
    "attribution": Table("What each part adds to the logit of the next token", [*ABOUT, "part", *TOKEN, "logit"]),
    "value_norms": Table("What a head's full weight on a token moves", [*ABOUT, *HEAD, *TOKEN, "value_norm"]),
    "ablation": Table("What the loss rises by without a part, over the steps", [*ABOUT, "part", "loss_change"]),
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


def choose_step(history: History, step: int | None = None, *, reads_maps: bool = True) -> int:
    """The step itself, or the last that was recorded, with its maps if these are read.

    Raises ValueError if there are no maps or not this step, FileNotFoundError if its maps are read and were removed.
    """
    recorded = [snapshot.step for snapshot in history.snapshots]
    if reads_maps:
        history.check_maps()
    if step is None:
        return history.steps[-1] if reads_maps else recorded[-1]
    if step not in recorded:
        near = min(recorded, key=lambda other: abs(other - step))
        raise ValueError(f"--step {step} was not recorded in {history.name}: the nearest that was is {near}")
    if reads_maps and step not in history.steps:
        raise FileNotFoundError(f"the maps of step {step} in {history.name} have been removed: choose another --step")
    return step


def choose_heads(names: Sequence[str] | None, shown: Sequence[History]) -> Heads:
    """The heads named LAYER.HEAD, or None for all. Raises ValueError for one that is not in every model, or no maps."""
    if empty := [history.name for history in shown if not history.snapshots]:
        raise ValueError(f"{empty[0]} has no recorded maps")
    if names is None:
        return None
    layers, heads = np.min([history.snapshots[0].shape for history in shown], axis=0)
    known = {f"{layer}.{head}": (layer, head) for layer, head in np.ndindex(layers, heads)}
    for name in names:
        if name not in known:
            raise ValueError(f"--head must be LAYER.HEAD, from 0.0 to {layers - 1}.{heads - 1}, not {name}")
    return [known[name] for name in dict.fromkeys(names)]


def choose_maps(
    shown: Sequence[History], step: int | None, probe: str, heads: Heads
) -> tuple[list[int], list[np.ndarray]]:
    """Of each model the step and its maps (L, H, T, T). Raises ValueError if two cannot be subtracted."""
    steps = [choose_step(history, step) for history in shown]
    maps = [np.asarray(history.load(at)[probe], np.float32) for history, at in zip(shown, steps, strict=True)]
    check_comparable(shown, [probe], of_one_shape=heads is None)
    return steps, maps


# ---- the rows


def table_rows(name: str, shown: Sequence[History], step: int | None, probe: str, heads: Heads) -> Iterator[Row]:
    """The rows of one of TABLES: "scores" and "ablation" at every step, others at one, by default the last.

    heads: those that the rows of weights and scores are of.

    Raises ValueError if the step was not recorded, or if two models cannot be compared; FileNotFoundError if the file
    that is needed has been removed.
    """
    if name in ("weights", "comparison"):
        return (as_json(row, f".{DIGITS}g") for row in _weights(shown, step, probe, heads))
    if name == "scores":
        return (row for history in shown for row in _scores(history, heads))
    if name == "ablation":
        return (row for history in shown for row in _ablation(history))
    return (row for history in shown for row in _details(name, history, step, probe))


def _weights(shown: Sequence[History], step: int | None, probe: str, heads: Heads) -> Iterator[Row]:
    steps, maps = choose_maps(shown, step, probe, heads)
    about = {"run": shown[0].name, "step": steps[0], "probe": probe}
    about |= {"other_run": shown[-1].name, "other_step": steps[-1]}
    labels = shown[0].probes[probe].labels
    for layer, head in heads or np.ndindex(maps[0].shape[:2]):
        of_head = about | {"layer": layer, "other_layer": layer, "head": head, "other_head": head}
        one, other = maps[0][layer, head], maps[-1][layer, head]
        difference = one - other
        for query, key in np.ndindex(one.shape):
            weights = {"weight": one[query, key], "other_weight": other[query, key]}
            if key <= query or any(weights.values()):  # others are of the future, which is masked
                tokens = {"query": query, "query_token": labels[query], "key": key, "key_token": labels[key]}
                yield of_head | tokens | weights | {"difference": difference[query, key]}


def _scores(history: History, heads: Heads) -> Iterator[Row]:
    for snapshot in history.snapshots:
        fields = snapshot.to_json()
        scores = fields["scores"] | {"copying": fields["copying"]}
        for layer, head in heads or np.ndindex(snapshot.shape):
            at = {"run": history.name, "step": snapshot.step, "layer": layer, "head": head}
            yield at | {name: values[layer][head] for name, values in scores.items()}


def _ablation(history: History) -> Iterator[Row]:
    for snapshot in history.snapshots:
        for probe, changes in snapshot.to_json()["ablation"].items():
            for part, change in changes.items():
                at = {"run": history.name, "step": snapshot.step, "probe": probe}
                yield at | {"part": part, "loss_change": change}


def _details(name: str, history: History, step: int | None, probe: str) -> Iterator[Row]:
    """What `archive` calls the details: a row for each token, or for each of several things at each token."""
    at = choose_step(history, step, reads_maps=False)
    details, labels = history.details(at), history.probes[probe].labels
    measured, lens = details["probes"][probe], details["probes"][probe]["lens"]

    def words(tokens: Sequence[int]) -> list[str]:
        return [details["tokens"][str(token)] for token in tokens]

    found: list[tuple[Row, dict[str, Sequence]]] = []  # of what; columns, with a number for each token
    if name == "surprise":
        columns = {**measured, **dict.fromkeys(TOPS, [None] * len(labels))}  # a vocabulary may be smaller
        top = zip(np.transpose(measured["top"]), np.transpose(measured["top_probability"]), strict=True)
        for place, (tokens, shares) in enumerate(top, start=1):
            columns |= {f"top_{place}": words(tokens), f"top_{place}_probability": shares}
        found = [({}, {column: columns[column] for column in ("bits", "rank", *TOPS)})]
    elif name == "lens":
        for number, sublayer in enumerate(details["sublayers"]):
            early = {column: lens[column][number] for column in ("probability", "divergence")}
            found.append(({"sublayer": sublayer}, early | {"likeliest": words(lens["token"][number])}))
    elif name == "attribution":
        logits = zip(details["parts"], measured["attribution"], strict=True)
        found = [({"part": part}, {"logit": of_part}) for part, of_part in logits]
    else:
        for layer, head in np.ndindex(history.snapshots[0].shape):
            found.append(({"layer": layer, "head": head}, {"value_norm": measured["value_norms"][layer][head]}))
    for of_what, columns in found:
        for position, (token, following) in enumerate(zip_longest(labels, labels[1:])):
            tokens = {"position": position, "token": token, "next_token": following}
            values = {column: values[position] for column, values in columns.items()}
            yield {"run": history.name, "step": at, "probe": probe} | of_what | tokens | values
