"""A benchmark's result: a table for people, a line of JSON for programs."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any

from scripts.benchmarks.processes import ROOT, run_job

PACKAGES = ("torch", "lightning", "transformers", "numpy")


@dataclass
class Report:
    """What a subcommand found.

    Attributes:
        columns: heading -> key of a row; what the table shows of `rows`, which hold more.
        notes: what a reader must know to judge the rows.
    """

    columns: dict[str, str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def table(self) -> str:
        """Rows under headings, numbers to the right; a dash stands for a figure that there is not."""
        cells = [list(self.columns), *([show(row.get(key)) for key in self.columns.values()] for row in self.rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(self.columns))]
        lines = []
        for line in cells:
            first, *others = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            others = [cell.rstrip().rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
            lines.append("  ".join([first, *others]).rstrip())
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join([*lines, "", *self.notes])


def show(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


class Limits:
    """What the machine could do at most, measured when first asked for: a mistake in the options is found before.

    Args:
        seconds: to measure each of three limits for.
        stated_flops: operations a second that the machine's maker states.
    """

    def __init__(self, device: str, seconds: float, stated_flops: float | None = None):
        self.device, self.seconds, self.stated_flops = device, seconds, stated_flops

    @cached_property
    def measured(self) -> dict[str, Any]:
        """See scripts.benchmarks.limits."""
        return run_job("limits:measure", {"device": self.device, "seconds": self.seconds})

    @property
    def flops(self) -> float:
        """Operations a second that MFU is a share of: as stated, or as measured in the fastest precision."""
        return self.stated_flops or max(self.measured["float32_flops"], self.measured["bfloat16_flops"] or 0.0)

    @property
    def bytes_per_second(self) -> float:
        return self.measured["bytes_per_second"]

    def to_dict(self) -> dict[str, Any]:
        figures = {name: value for name, value in self.measured.items() if name != "machine"}
        return {**figures, "stated_flops": self.stated_flops}

    def __str__(self) -> str:
        machine, bfloat16 = self.measured["machine"], self.measured["bfloat16_flops"]
        rates = f"{self.measured['float32_flops'] / 1e9:,.0f} GFLOP/s in float32"
        if bfloat16:
            rates += f", {bfloat16 / 1e9:,.0f} in bfloat16"
        bandwidth = f"{self.bytes_per_second / 1e9:,.1f} GB/s"
        return f"{machine['device']}, {machine['threads']} threads, measured in this run: {rates}, memory {bandwidth}"


def record(
    benchmark: str, report: Report, limits: Limits, options: dict[str, Any], nanogpt: str | None
) -> dict[str, Any]:
    """All that there is to say of one invocation, as plain data."""
    return {
        "benchmark": benchmark,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(ROOT),
        "machine": limits.measured["machine"],
        "limits": limits.to_dict(),
        "versions": {
            "python": python_version(),
            **versions(),
            "nanogpt": nanogpt and (commit(Path(nanogpt)) or digest(nanogpt)),
        },
        "options": options,
        "rows": report.rows,
        "notes": report.notes,
    }


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit(folder: Path) -> str | None:
    """The checked-out commit, "+changes" behind it where files differ from it; None where git knows of none."""
    git = ["git", "-C", str(folder)]
    try:
        # Of a folder inside someone else's repository, that one's commit would say nothing.
        top = subprocess.run([*git, "rev-parse", "--show-toplevel", "HEAD"], capture_output=True, text=True)
        if top.returncode or Path(top.stdout.splitlines()[0]).resolve() != folder.resolve():
            return None
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True).stdout
    except OSError:  # no git
        return None
    return top.stdout.splitlines()[1] + ("+changes" if changed.strip() else "")


def digest(nanogpt: str) -> str:
    """What tells one version of nanoGPT's model from another where no commit does."""
    return f"model.py {hashlib.sha256(Path(nanogpt, 'model.py').read_bytes()).hexdigest()[:16]}"


def append(record: dict[str, Any], path: Path) -> None:
    """Adds `record` to the file of results, one line each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
