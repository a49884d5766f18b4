"""The README's table of figures, from the file that the benchmarks append to: the newest of each piece of work."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Rows = list[dict[str, Any]]


class Line(NamedTuple):
    """What was done; what we took, and what the peer took; the one by the other."""

    work: str
    ours: str
    peer: str
    ratio: str


# What tells one piece of work of a benchmark from another; those of one piece were measured in one invocation.
WORK = {
    "train": ("size",),
    "generate": ("model", "batch", "new_tokens"),
    "trainer_tax": ("config",),
    "recording_tax": ("config",),
}


def markdown(results: Path) -> str:
    """For each machine in `results` a table in Markdown, of the newest figures of each piece of work.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a line of it is not a benchmark's.
    """
    if not results.is_file():
        raise FileNotFoundError(f"there is no file of results {results}: run a benchmark first, or name one")
    machines: dict[str, dict[str, dict[tuple, Rows]]] = {}
    for number, text in enumerate(results.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(text)
            name, rows, machine = record["benchmark"], record["rows"], record["machine"]
            pieces = defaultdict(list)
            for row in rows:
                pieces[tuple(row[key] for key in WORK.get(name, ()))].append(row)
            heading = f"{machine['device']}, {machine['threads']} threads"
            machines.setdefault(heading, {}).setdefault(name, {}).update(pieces)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} of {results} is no benchmark's result") from error
    return "\n\n".join(f"{heading}:\n\n{table(newest)}" for heading, newest in machines.items())


def table(newest: dict[str, dict[tuple, Rows]]) -> str:
    lines = [Line("work", "ours", "peer", "ratio"), Line("---", "---", "---", "---")]
    for name, summarise in SUMMARIES.items():
        lines += summarise([row for piece in newest.get(name, {}).values() for row in piece])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def time_to_loss(rows: Rows) -> Iterator[Line]:
    rows = [row for row in rows if row["seconds"]]  # who reached the target
    ours, peer = best(rows, "glassgpt", "seconds"), best(rows, "nanogpt", "seconds")
    if ours and peer:
        yield Line(
            f"seconds of training to {peer['target']:.3f} nats per character",
            f"{ours['seconds']:.1f} {label(ours)}".strip(),
            f"{label(peer)} {peer['seconds']:.1f}",
            f"**{peer['times_faster']:.1f}**; cold {peer['times_faster_cold']:.1f}",
        )


def train(rows: Rows) -> Iterator[Line]:
    for (size,) in unique(rows, "size"):
        here = [row for row in rows if row["size"] == size]
        ours = best(here, "glassgpt", "milliseconds_per_step")
        peer = best(here, "nanogpt", "milliseconds_per_step")
        if ours and peer:
            yield Line(
                f"tokens a second in training, GPT-2's architecture {size}",
                f"{ours['tokens_per_second']:,.0f} ({ours['mfu']:.0%} MFU) {label(ours)}".strip(),
                f"{label(peer)} {peer['tokens_per_second']:,.0f} ({peer['mfu']:.0%})",
                f"**{peer['times_faster']:.2f}**",
            )


def generate(rows: Rows) -> Iterator[Line]:
    for batch, new_tokens in unique(rows, "batch", "new_tokens"):
        here = [row for row in rows if (row["batch"], row["new_tokens"]) == (batch, new_tokens)]
        ours = named(here, "glassgpt")
        peers = [row for row in here if row is not ours]
        if ours and peers:
            texts = "a text" if batch == 1 else f"{batch} texts"
            yield Line(
                f"tokens a second in writing {texts} of {new_tokens}, {ours['model']}",
                f"{ours['tokens_per_second']:,.0f}",
                ", ".join(f"{label(peer)} {peer['tokens_per_second']:,.0f}" for peer in peers),
                ", ".join(f"**{peer['times_faster']:.1f}**" for peer in peers),
            )


def trainer_tax(rows: Rows) -> Iterator[Line]:
    for row in rows:
        yield Line(
            f"milliseconds a step, {Path(row['config']).name}",
            f"Trainer {row['trainer_milliseconds']:.1f}",
            f"bare loop {row['bare_milliseconds']:.1f}",
            f"{row['tax']:.3f}",
        )


def recording_tax(rows: Rows) -> Iterator[Line]:
    for row in rows:
        same = "same weights" if row["same_weights"] else "other weights"
        yield Line(
            f"seconds of {row['steps']} steps, {Path(row['config']).name}",
            f"with maps {row['seconds_with']:.1f}, of them {row['recording_seconds']:.1f} for the maps",
            f"without {row['seconds_without']:.1f}, {same}",
            f"{row['recording_share']:.1%} for the maps",
        )


def default_run(rows: Rows) -> Iterator[Line]:
    ours = named(rows, "glassgpt")
    peers = [row for row in rows if row is not ours]
    if ours and peers:
        peer = min(peers, key=lambda row: row["bits_per_byte"])
        yield Line(
            f"bits per byte of the default run, {ours['seconds']:.0f} seconds",
            f"{ours['bits_per_byte']:.3f}",
            f"GPT-2's architecture with AdamW, {peer['seconds']:.0f} seconds: {peer['bits_per_byte']:.3f}",
            f"**{peer['lower_by']:.3f}** lower",
        )


SUMMARIES: dict[str, Callable[[Rows], Iterator[Line]]] = {
    "default_run": default_run,
    "time_to_loss": time_to_loss,
    "train": train,
    "generate": generate,
    "trainer_tax": trainer_tax,
    "recording_tax": recording_tax,
}


def named(rows: Rows, contender: str) -> dict[str, Any] | None:
    return next((row for row in rows if row["contender"] == contender), None)


def best(rows: Rows, name: str, key: str) -> dict[str, Any] | None:
    """The row of this contender, compiled or not, that has least of `key`; with our allocator it is not the peer's."""
    theirs = [row for row in rows if row["contender"].partition("+")[0] == name and "allocator" not in row["contender"]]
    return min(theirs, key=lambda row: row[key], default=None)


def unique(rows: Rows, *keys: str) -> list[tuple]:
    """The values of these keys that occur together, in the order of the rows."""
    return list(dict.fromkeys(tuple(row[key] for key in keys) for row in rows))


def label(row: dict[str, Any]) -> str:
    name, *extras = row["contender"].replace("nanogpt", "nanoGPT").split("+")
    if name == "glassgpt":
        name = ""
    compiled = {"compile": "compiled", "reduce-overhead": "CUDA graphs"}
    return " ".join([name, *(compiled.get(extra, extra) for extra in extras)]).strip()
