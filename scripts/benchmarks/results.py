"""Results: one record for each invocation, as a line of JSON in a file, and one table writer for people."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.benchmarks.contenders import Row

# Heading -> key of a row, and how a value is written. A column without values is left out.
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
    "MFU": ("mfu", "{:.0%}"),
    "share of bandwidth": ("bandwidth_share", "{:.0%}"),
    "maps": ("recording_share", "{:.1%}"),
    "ours is faster": ("times_faster", "{:.2f} times"),
}


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown; a dash stands for a figure that a row does not have."""
    columns = [heading for heading, (key, _) in COLUMNS.items() if any(row.get(key) is not None for row in rows)]
    cells = [columns]
    for row in rows:
        values = [(row.get(COLUMNS[heading][0]), COLUMNS[heading][1]) for heading in columns]
        cells.append(["-" if value is None else form.format(value) for value, form in values])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    lines = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def add_rates(row: Row, limits: dict[str, Any]) -> Row:
    """`row`, with tokens per second and the share of the machine's limit that it reached."""
    seconds = row["seconds"] if "seconds" in row else row["milliseconds_per_step"] / 1000
    rates = {"tokens_per_second": ("tokens", 1.0), "bandwidth_share": ("bytes", limits["bytes_per_second"])}
    rates["mfu"] = ("flops", max(limits["float32_flops"], limits["bfloat16_flops"] or 0.0))
    return row | {rate: row[key] / seconds / limit for rate, (key, limit) in rates.items() if row.get(key) and seconds}


def describe(limits: dict[str, Any]) -> str:
    """The limits in a sentence."""
    machine, bfloat16 = limits["machine"], limits["bfloat16_flops"]
    rates = f"{limits['float32_flops'] / 1e9:,.0f} GFLOP/s in float32"
    rates += f", {bfloat16 / 1e9:,.0f} in bfloat16" if bfloat16 else ""
    bandwidth = f"{limits['bytes_per_second'] / 1e9:,.1f} GB/s"
    return f"{machine['device']}, {machine['threads']} threads, measured in this run: {rates}, memory {bandwidth}"


def append(record: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def markdown(path: Path) -> str:
    """A table for each machine and commit in a file of results, with the newest rows of each piece of work.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a line of it is not a record.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file of results {path}: run a benchmark first, or name one")
    newest: dict[tuple[str, str, str], tuple[str, list[Row]]] = {}  # machine, benchmark, work -> heading, rows
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
            benchmark, commit, machine = (record[key] for key in ("benchmark", "commit", "machine"))
            name = f"{machine['device']}, {machine['threads']} threads"
            pieces: dict[str, list[Row]] = {}
            for row in record["rows"]:
                pieces.setdefault(row["work"], []).append({"benchmark": benchmark, **row})
            for work, rows in pieces.items():
                newest[name, benchmark, work] = (f"{name}, commit {str(commit)[:7]}", rows)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} of {path} is not a benchmark's result") from error
    tables: dict[str, list[Row]] = {}
    for heading, rows in newest.values():
        tables.setdefault(heading, []).extend(rows)
    return "\n\n".join(f"{heading}:\n\n{table(rows)}" for heading, rows in tables.items())


def commit(folder: Path) -> str | None:
    """The commit that is checked out, with "+changes" if files differ from it; None if `folder` is not a repository."""
    if not Path(folder, ".git").exists():
        return None
    git = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    try:
        return subprocess.run(git, capture_output=True, text=True).stdout.strip() or None
    except OSError:  # git is not installed
        return None
