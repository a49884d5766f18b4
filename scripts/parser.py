"""What the scripts share on their command lines: the parser, a type of options, and the check of --output."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path


class Parser(argparse.ArgumentParser):
    """Answers a mistake with one sentence, without the usage, and takes no abbreviated options."""

    def __init__(self, **options) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter} | options)

    def error(self, message: str) -> None:
        script = self.prog.split()[0]  # a subcommand's prog ends in its own name
        self.exit(2, f"{script}: {message}; --help lists the options\n")


def at_least(minimum: float, number: type = int) -> Callable[[str], float]:
    """For `type=` of an option: a finite number that is not below `minimum`."""

    def convert(text: str) -> float:
        value = number(text)
        if not math.isfinite(value) or value < minimum:
            raise argparse.ArgumentTypeError(f"must be at least {minimum}, not {text}")
        return value

    convert.__name__ = number.__name__  # argparse names it where the text is no number
    return convert


def check_output(output: Path | None, *suffixes: str) -> None:
    """Raises ValueError or FileNotFoundError for an --output that cannot be written; None is accepted."""
    if output is None:
        return
    if output.suffix not in suffixes:
        raise ValueError(f"--output {output} must end in {' or '.join(suffixes)}")
    if not output.parent.is_dir():
        raise FileNotFoundError(f"--output {output}: there is no folder {output.parent}")
    if output.is_dir():
        raise ValueError(f"--output {output} is a folder: name a file in it")
