"""The README's table of figures, from the file that the benchmarks append to: the newest record of each."""

from __future__ import annotations

import json
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


def markdown(results: Path) -> str:
    """A table in Markdown of the newest record of each benchmark in `results`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a line of it is not a benchmark's.
    """
    if not results.is_file():
        raise FileNotFoundError(f"there is no file of results {results}: run a benchmark first, or name one")
    newest = {}
    for number, text in enumerate(results.read_text().splitlines(), 1):
        try:
            record = json.loads(text)
            newest[record["benchmark"]] = record["rows"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} of {results} is no benchmark's result") from error
    lines = [line for name, summarise in SUMMARIES.items() for line in summarise(newest.get(name, []))]
    cells = [Line("work", "ours", "peer", "ratio"), Line("---", "---", "---", "---"), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def time_to_loss(rows: Rows) -> Iterator[Line]:
    ours, peer = named(rows, "glassgpt"), named(rows, "nanogpt")
    if ours and peer:
        yield Line(
            f"seconds of training to {peer['target']:.3f} nats per character",
            f"{ours['seconds']:.1f}",
            f"nanoGPT {peer['seconds']:.1f}",
            f"**{peer['times_faster']:.1f}**; cold {peer['times_faster_cold']:.1f}",
        )


def train(rows: Rows) -> Iterator[Line]:
    for (size,) in unique(rows, "size"):
        here = [row for row in rows if row["size"] == size]
        ours = best(here, ("glassgpt", "glassgpt+compile", "glassgpt+reduce-overhead"), "milliseconds_per_step")
        peer = best(here, ("nanogpt", "nanogpt+compile"), "milliseconds_per_step")
        if ours and peer:
            yield Line(
                f"tokens a second in training, GPT-2's architecture {size}",
                f"{ours['tokens_per_second']:,.0f} ({ours['mfu']:.0%} MFU)",
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
            f"{1 + row['recording_share']:.3f}",
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


def best(rows: Rows, contenders: tuple[str, ...], key: str) -> dict[str, Any] | None:
    """The row of one of these contenders that has least of `key`."""
    return min((row for row in rows if row["contender"] in contenders), key=lambda row: row[key], default=None)


def unique(rows: Rows, *keys: str) -> list[tuple]:
    """The values of these keys that occur together, in the order of the rows."""
    return list(dict.fromkeys(tuple(row[key] for key in keys) for row in rows))


def label(row: dict[str, Any]) -> str:
    return row["contender"].replace("nanogpt", "nanoGPT")
