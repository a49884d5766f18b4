"""The files of a run that grow with its steps.

metrics.csv has one row for each step, in order of steps, whose columns are the metrics that were logged. samples.jsonl
and attention/scores.jsonl have lines of JSON, each with its step. A kill may cut the last row or line short.
"""

import csv
import io
import json
from itertools import chain
from pathlib import Path
from typing import Any

from model.files import append, content_of, whole_lines, write_atomically
from model.mistakes import parsing

# The first columns of every metrics.csv. Other logged metrics, such as head scores, come after them.
COLUMNS = ("step", "tokens", "train/loss", "val/loss", "val/bits_per_byte", "lr", "tokens_per_second", "mfu")

Row = dict[str, float]  # a step and its metrics


def read_metrics(path: Path) -> list[Row]:
    """Reads a metrics.csv: one row for each step, in order, without its empty columns; [] if there is no file.

    Skips a last row that a kill has cut short. Raises a `Mistake` if the file is not a table of numbers.
    """
    lines = whole_lines(path).splitlines()
    with parsing(path):
        reader = csv.DictReader(lines)
        rows = [{name: _number(value) for name, value in row.items() if value} for row in reader]
        return sorted(rows, key=lambda row: int(row["step"]))


def _number(figure: str) -> float:
    """Returns an int for digits alone, so that a row that is read and written again is the same."""
    return int(figure) if figure.isdecimal() else float(figure)


def write_metrics(path: Path, rows: list[Row]) -> None:
    """Replaces a metrics.csv."""
    columns = [*dict.fromkeys(chain(COLUMNS, *rows))]
    header = {column: column for column in columns}
    write_atomically(path, _as_csv(columns, [header, *rows]).encode())


def add_rows(path: Path, added: list[Row]) -> None:
    """Adds metrics to a metrics.csv: new rows, or more columns of a step's row.

    Appends where that is enough, so that a long run does not parse and write its whole file at every checkpoint.
    """
    rows = _merged(added)
    lines = content_of(path).decode(errors="replace").splitlines(keepends=True)
    if len(lines) > 1 and lines[-1].endswith("\n"):  # there are rows, and none was cut short
        columns, last_step = next(csv.reader(lines)), lines[-1].partition(",")[0]
        are_later = last_step.isdecimal() and rows[0]["step"] > int(last_step)
        if are_later and all(row.keys() <= {*columns} for row in rows):
            append(path, _as_csv(columns, rows))
            return
    write_metrics(path, _merged([*read_metrics(path), *rows]))


def _merged(rows: list[Row]) -> list[Row]:
    """Returns one row for each step, in order of steps."""
    merged: dict[float, Row] = {}
    for row in sorted(rows, key=lambda row: row["step"]):
        merged[row["step"]] = merged.get(row["step"], {}) | row
    return [*merged.values()]


def _as_csv(columns: list[str], rows: list) -> str:
    """Returns the lines of these rows."""
    text = io.StringIO()
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    return text.getvalue()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Reads a file such as samples.jsonl, [] if there is none. Raises a `Mistake` unless each line has a step."""
    lines = whole_lines(path).split("\n")[:-1]
    with parsing(path):
        records = map(json.loads, lines)
        return [record | {"step": int(record["step"])} for record in records]


def as_line(record: dict[str, Any]) -> str:
    """Returns the line of a record."""
    return json.dumps(record, ensure_ascii=False) + "\n"
