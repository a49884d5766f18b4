"""metrics.csv: one row for each step, in order of steps, whose columns are the metrics that were logged."""

import csv
import io
from itertools import chain
from pathlib import Path

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


def write_metrics(path: Path, rows: list[Row]) -> list[str]:
    """Replaces a metrics.csv, and returns its columns."""
    columns = [*dict.fromkeys(chain(COLUMNS, *rows))]
    header = {column: column for column in columns}
    write_atomically(path, as_csv(columns, [header, *rows]).encode())
    return columns


def as_csv(columns: list[str], rows: list) -> str:
    """Returns the lines of these rows."""
    text = io.StringIO()
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    return text.getvalue()
