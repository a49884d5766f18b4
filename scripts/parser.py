"""What the command lines of the scripts share: the parser, options to choose a model, and functions that read them."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.mistakes import Mistake
from model.runs.terminal import with_hint

if TYPE_CHECKING:
    import torch

DEFAULTS: dict[str, Any] = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one sentence, without the usage lines, and accepts no abbreviated options.

    argparse takes text that begins with - for an option, even after an option that needs a value. The sentence then
    says how to write such a value.
    """

    def __init__(self, **options) -> None:
        super().__init__(**DEFAULTS | options)

    def error(self, message: str) -> None:
        raise Mistake(f"{with_hint(message)}; --help lists the options")


def add_model_options(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Adds --checkpoint, for `open_run`, and --device, for `choose_device`. nargs "+": one or more checkpoints."""
    parser.add_argument(
        "--checkpoint",
        type=Path,
        nargs=nargs,
        metavar="PATH",
        help="checkpoint file, run folder or folder of a Hugging Face model (default: newest run under runs/)",
    )
    parser.add_argument(
        "--device",
        default="auto",
        metavar="NAME",
        help="cpu, cuda, cuda:1, mps, ... (default: auto, a GPU if there is one)",
    )


def choose_device(name: str) -> torch.device:
    """Returns the device called `name`; "auto" is a GPU or other accelerator if there is one, else the CPU."""
    import torch

    from model.kernels import check_device

    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    check_device("--device", name)
    return torch.device(name)


def prompt_text(prompt: str) -> str:
    """Returns the prompt; for the prompt -, returns what standard input holds. Raises Mistake unless it is UTF-8."""
    source, content = "--prompt", os.fsencode(prompt)
    if prompt == "-":
        source = "standard input"
        if sys.stdin is None:
            raise Mistake("--prompt - reads standard input, which is closed")
        content = sys.stdin.buffer.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Mistake(f"{source} is not UTF-8 text: {error}") from error
