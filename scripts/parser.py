"""What the scripts share on their command lines: the parser, options of several scripts, and checks."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.runs.mistakes import parse

if TYPE_CHECKING:
    from data.datamodule import TextDataModule


class Parser(argparse.ArgumentParser):
    """Answers a mistake with one sentence, without the usage, and takes no abbreviated options."""

    def __init__(self, **options) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter} | options)

    def error(self, message: str) -> None:
        script = self.prog.split()[0]  # a subcommand's prog ends in its own name
        self.exit(2, f"{script}: {message}; --help lists the options\n")


def at_least(minimum: int) -> Callable[[str], int]:
    """For `type=` of an option: a whole number that is not below `minimum`."""

    def convert(text: str) -> int:
        if int(text) < minimum:
            raise argparse.ArgumentTypeError(f"must be at least {minimum}, not {text}")
        return int(text)

    convert.__name__ = "int"  # argparse names it where the text is no number
    return convert


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """--checkpoint and --device, for `open_run` and `scripts.prompting.choose_device`."""
    kinds = "checkpoint file, run folder or folder of a Hugging Face model"
    parser.add_argument("--checkpoint", type=Path, metavar="PATH", help=f"{kinds} (default: newest run under runs/)")
    names = "cpu, cuda, cuda:1, mps, ... (default: auto, the fastest)"
    parser.add_argument("--device", default="auto", metavar="NAME", help=names)


def text_data(
    own: Parser, description: str, section: dict[str, Any], options: list[str], skip: Collection[str] = ()
) -> TextDataModule:
    """The text that `--data.*` options name, which are those of train.py.

    Args:
        own: the script's other options, without --help.
        section: options of the data that hold unless `options`, what was typed, say otherwise.
        skip: options of the data that the script does not have.

    Raises ValueError, TypeError or OSError with the sentences of train.py.
    """
    from jsonargparse import ArgumentParser

    from data.datamodule import TextDataModule
    from data.tokenizers import Tokenizer
    from model.runs.command_line import named_tokenizer

    parser = ArgumentParser(
        prog=own.prog,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[own],
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_class_arguments(TextDataModule, "data", skip=set(skip))
    chosen = parse(parser, ["--data", json.dumps(section), *options]).data.as_dict()
    if "tokenizer" in chosen:
        chosen["tokenizer"] = named_tokenizer(chosen["tokenizer"], Tokenizer.from_folder)
    return TextDataModule(**chosen)


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
