"""What the scripts share on their command lines: the parser, options of several scripts, and what these name."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.mistakes import Mistake, file_errors, with_hint

if TYPE_CHECKING:
    import torch

DEFAULTS: dict[str, Any] = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}


class Parser(argparse.ArgumentParser):
    """Answers a mistake with one sentence, without the usage, and takes no abbreviated options.

    It takes what begins with - for an option, also after one that wants a value, and says how to write it as a value.
    """

    def __init__(self, **options) -> None:
        super().__init__(**DEFAULTS | options)

    def error(self, message: str) -> None:
        script = self.prog.split()[0]  # a subcommand's prog ends in its own name
        self.exit(2, f"{script}: {with_hint(message)}; --help lists the options\n")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """--checkpoint and --device, for `open_run` and `choose_device`."""
    kinds = "checkpoint file, run folder or folder of a Hugging Face model"
    parser.add_argument("--checkpoint", type=Path, metavar="PATH", help=f"{kinds} (default: newest run under runs/)")
    names = "cpu, cuda, cuda:1, mps, ... (default: auto, the fastest)"
    parser.add_argument("--device", default="auto", metavar="NAME", help=names)


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" is the accelerator, else the CPU."""
    import torch

    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        return torch.Generator(name).device  # which only a device with random numbers has
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise Mistake(f"--device {name} is not available here ({reason}): leave it out, or write cpu") from error


def prompt_text(prompt: str, file: Path | None = None) -> str:
    """The text of `file`, or else of --prompt, where - reads standard input. Raises Mistake unless it is UTF-8."""
    source, content = "--prompt", os.fsencode(prompt)
    if file is not None:
        source = str(file)
        with file_errors(file):
            content = file.read_bytes()
    elif prompt == "-":
        source = "standard input"
        if sys.stdin is None:
            raise Mistake("--prompt - reads standard input, which is closed")
        content = sys.stdin.buffer.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Mistake(f"{source} is not UTF-8 text: {error}") from error
