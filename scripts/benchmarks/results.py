"""The results so far as tables in Markdown, one for each machine and commit, with the newest figures of each work."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from scripts.benchmarks.contenders import Row

# Heading -> key of a row, and how its value is written.
COLUMNS = {
    "benchmark": ("benchmark", "{}"),
    "work": ("work", "{}"),
    "contender": ("contender", "{}"),
    "parameters": ("parameters", "{:,}"),
    "precision": ("precision", "{}"),
    "lowest loss": ("lowest_loss", "{:.3f}"),
    "bits per byte": ("bits_per_byte", "{:.3f}"),
    "seconds": ("seconds", "{:,.2f}"),
    "ms a step": ("milliseconds_per_step", "{:,.2f}"),
    "tokens a second": ("tokens_per_second", "{:,.0f}"),
    "ours is faster": ("times_faster", "{:.2f} times"),
}


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown, without the columns that none of them has; a dash stands for a missing figure."""
    columns = {name: column for name, column in COLUMNS.items() if any(row.get(column[0]) is not None for row in rows)}
    lines = [list(columns)]
    for row in rows:
        lines.append(["-" if row.get(key) is None else form.format(row[key]) for key, form in columns.values()])
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    padded = (map(str.ljust, line, widths) for line in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)


def markdown(path: Path) -> str:
    """The tables of a file of results; FileNotFoundError if there is none, ValueError if a line is not a record."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file of results {path}: run a benchmark first, or name one")
    newest: dict[tuple[str, str, str], tuple[str, list[Row]]] = {}  # machine, benchmark, work -> heading, rows
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
            machine = f"{record['machine']['device']}, {record['machine']['threads']} threads"
            heading, benchmark = f"{machine}, commit {str(record['commit'])[:7]}", record["benchmark"]
            for work in dict.fromkeys(row["work"] for row in record["rows"]):
                rows = [{"benchmark": benchmark, **row} for row in record["rows"] if row["work"] == work]
                newest[machine, benchmark, work] = (heading, rows)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} of {path} is not a benchmark's result") from error
    tables: dict[str, list[Row]] = {}
    for heading, rows in newest.values():
        tables.setdefault(heading, []).extend(rows)
    return "\n\n".join(f"{heading}:\n\n{table(rows)}" for heading, rows in tables.items())


def commit(folder: Path) -> str | None:
    """The commit that is checked out, with "+changes" if files differ from it; None if `folder` is not a repository."""
    if shutil.which("git") is None or not Path(folder, ".git").exists():
        return None
    git = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip() or None
