"""How every script answers a mistake in what was typed."""

import argparse
import math
from collections.abc import Callable


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
