"""metrics.csv: one row for each step, in order of steps, whose columns are the metrics that were logged."""

import csv
import io
from pathlib import Path

from model.files import append, whole_lines, write_atomically
from model.mistakes import parsing

# The first columns of every metrics.csv. Other logged metrics, such as head scores, come after them.
COLUMNS = ("step", "tokens", "train/loss", "val/loss", "val/bits_per_byte", "lr", "tokens_per_second", "mfu")

Row = dict[str, float]  # a step and its metrics


class MetricsFile:
    """A metrics.csv to which rows are added. It is not read before the first row, and need not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: list[str] = []
        self.last: Row = {}  # the row that was written last

    def put(self, row: Row) -> None:
        """Writes a row, or adds to the row that its step already has.

        Appends it where that is enough; writes the whole file if a column is new or the step already has a row.
        """
        if row == self.last:
            return
        if row["step"] != self.last.get("step") and row.keys() <= set(self.columns):
            append(self.path, _lines(self.columns, [row]))
        else:
            by_step = {earlier["step"]: earlier for earlier in read_metrics(self.path)}
            by_step[row["step"]] = by_step.get(row["step"], {}) | row
            self.columns = write_metrics(self.path, list(by_step.values()))
        self.last = row


def read_metrics(path: Path) -> list[Row]:
    """Reads a metrics.csv: one row for each step, in order, without its empty columns; [] if there is no file.

    Skips a last row that a kill has cut short. Raises a `Mistake` if the file is not a table of numbers.
    """
    text = whole_lines(path)

    def number(figure: str) -> float:  # digits alone are an int, so that a row read and written again is the same
        return int(figure) if figure.isdecimal() else float(figure)

    with parsing(path):
        reader = csv.DictReader(io.StringIO(text))
        rows = [{name: number(value) for name, value in row.items() if value} for row in reader]
        return sorted(rows, key=lambda row: int(row["step"]))


def write_metrics(path: Path, rows: list[Row]) -> list[str]:
    """Replaces a metrics.csv, and returns its columns."""
    columns = list(dict.fromkeys([*COLUMNS, *(column for row in rows for column in row)]))
    header = dict(zip(columns, columns, strict=True))
    write_atomically(path, _lines(columns, [header, *rows]).encode())
    return columns


def _lines(columns: list[str], rows: list) -> str:
    text = io.StringIO()
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    return text.getvalue()
