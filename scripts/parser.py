"""How every script answers a mistake in what was typed."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class Parser(argparse.ArgumentParser):
    """Answers a mistake with one sentence, without the usage."""

    def error(self, message: str) -> None:
        script = self.prog.split()[0]  # a subcommand has its own name behind it
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


def sentence(error: Exception) -> str:
    """What is wrong; of a failure of the system, which file met it and how, without the number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


@contextmanager
def writing(output: Path) -> Iterator[None]:
    """Says so where `output` cannot be written; what fails at another file is not touched."""
    try:
        yield
    except OSError as error:
        if error.filename != str(output):
            raise
        raise OSError(f"{output} cannot be written: {error.strerror}") from error
