"""Who works on what: the contenders that can take part, the size of their work, and whether it was the same."""

from __future__ import annotations

import argparse
import re
import shutil
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Size:
    """A GPT and its batches. Spelled LAYERSxHEADSxWIDTH/BATCHxCONTEXT/VOCABULARY, as in 4x4x128/12x64/65."""

    layers: int
    heads: int
    width: int
    batch: int
    context: int
    vocab: int

    @classmethod
    def parse(cls, text: str) -> Size:
        """Raises ValueError where `text` is not such a size."""
        numbers = re.fullmatch(r"(\d+)x(\d+)x(\d+)/(\d+)x(\d+)/(\d+)", text)
        if numbers is None or 0 in (values := [int(number) for number in numbers.groups()]):
            raise ValueError(
                f"{text!r} is no size: write LAYERSxHEADSxWIDTH/BATCHxCONTEXT/VOCABULARY, such as {CPU_SIZES[0]}"
            )
        if values[2] % values[1]:
            raise ValueError(f"in the size {text!r} the width {values[2]} is no multiple of the {values[1]} heads")
        return cls(*values)

    @classmethod
    def from_dict(cls, fields: dict[str, int]) -> Size:
        return cls(**fields)

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.layers}x{self.heads}x{self.width}/{self.batch}x{self.context}/{self.vocab}"

    @property
    def tokens_per_step(self) -> int:
        return self.batch * self.context


# nanoGPT's README on a laptop, and the size of its GPU config in smaller batches: 65 characters in Tiny Shakespeare.
CPU_SIZES = ("4x4x128/12x64/65", "6x6x384/16x256/65")
# nanoGPT's published character config, and GPT-2 with its vocabulary rounded up to 64, as nanoGPT trains it.
GPU_SIZES = ("6x6x384/64x256/65", "12x12x768/32x1024/50304")


def default_sizes(device: str) -> tuple[str, ...]:
    return GPU_SIZES if device == "cuda" else CPU_SIZES


# What each can be given that it does not have by itself.
EXTRAS = {"glassgpt": ("compile", "reduce-overhead"), "nanogpt": ("compile", "allocator", "bf16")}
COMPILERS = ("g++", "clang++", "gcc", "clang", "cc", "cl")


def add_nanogpt(parser: argparse.ArgumentParser) -> None:
    """The option `--nanogpt`, for the benchmarks in which it takes part."""
    parser.add_argument("--nanogpt", metavar="PATH", help="checkout of nanoGPT (default: its rows are left out)")


def select(names: list[str], options: argparse.Namespace, notes: list[str]) -> list[str]:
    """Those of `names` that can run here; a note says which cannot, and why.

    Raises:
        ValueError: for a name that is none, and where nobody is left.
    """
    chosen = []
    for name in names:
        base, *extras = name.split("+")
        if not set(extras) <= set(EXTRAS.get(base, ())) or base not in EXTRAS:
            raise ValueError(
                f"unknown contender {name!r}: write glassgpt, glassgpt+compile or glassgpt+reduce-overhead, or nanogpt "
                f"with any of +{', +'.join(EXTRAS['nanogpt'])}"
            )
        if base == "nanogpt" and options.nanogpt is None:
            notes.append(f"{name} is left out: name a checkout of it with --nanogpt")
        elif {"compile", "reduce-overhead"} & set(extras) and not any(map(shutil.which, COMPILERS)):
            notes.append(f"{name} is left out: this machine has no C++ compiler")
        else:
            chosen.append(name)
    return anybody(chosen, notes)


def anybody(chosen: list[str], notes: list[str]) -> list[str]:
    """`chosen`; raises ValueError, with the notes that say why, where it is empty."""
    if not chosen:
        raise ValueError(f"nobody is left to measure: {'; '.join(notes)}")
    return chosen


def compile_mode(extras: list[str]) -> bool | str:
    """What `--model.compile` would be for our contender with these extras."""
    return "reduce-overhead" if "reduce-overhead" in extras else True if "compile" in extras else "auto"


def check(rows: list[dict[str, Any]], *keys: str) -> list[dict[str, Any]]:
    """`rows`, if all did the same amount of work; raises RuntimeError where they differ in one of `keys`."""
    for key in keys:
        if len({row[key] for row in rows}) > 1:
            amounts = ", ".join(f"{row['contender']} {row[key]}" for row in rows)
            raise RuntimeError(f"the contenders differ in {key}, so their times cannot be compared: {amounts}")
    return rows
