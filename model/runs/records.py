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

from model.files import whole_lines, write_atomically
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
    text = io.StringIO()
    writer = csv.DictWriter(text, dict.fromkeys(chain(COLUMNS, *rows)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def add_rows(path: Path, added: list[Row]) -> None:
    """Adds metrics to a metrics.csv: new rows, or more columns of a step's row."""
    rows: dict[float, Row] = {}
    for row in [*read_metrics(path), *added]:
        rows[row["step"]] = rows.get(row["step"], {}) | row
    write_metrics(path, [*rows.values()])


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Reads a file such as samples.jsonl, [] if there is none. Raises a `Mistake` unless each line has a step."""
    lines = whole_lines(path).split("\n")[:-1]
    with parsing(path):
        records = map(json.loads, lines)
        return [record | {"step": int(record["step"])} for record in records]


def as_line(record: dict[str, Any]) -> str:
    """Returns the line of a record."""
    return json.dumps(record, ensure_ascii=False) + "\n"
