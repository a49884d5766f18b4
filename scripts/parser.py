"""What the command lines of the scripts share: options from a function's signature.

jsonargparse, which train.py and evaluate.py use, also takes options from signatures, but importing it makes --help take
three times as long.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import re
from collections.abc import Callable
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from model.mistakes import Mistake
from model.runs.terminal import exit_status, with_hint

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


def add_parameters(parser: argparse.ArgumentParser, function: Callable) -> None:
    """Adds each parameter that the docstring of `function` explains under Args.

    A keyword-only parameter is an --option, any other an argument. Type and default are those of the signature. A list
    takes several values, and as an option may be repeated; an option that is a bool takes none.
    """
    _, _, explained = inspect.getdoc(function).partition("\nArgs:\n")
    helps = dict(re.findall(r"^    (\w+): (.+?)(?=\n    \w|\n\n|\Z)", explained, re.MULTILINE | re.DOTALL))
    parameters = inspect.signature(function, eval_str=True).parameters
    for name, text in helps.items():
        parameter = parameters[name]
        kind, default = parameter.annotation, parameter.default
        is_option = parameter.kind is parameter.KEYWORD_ONLY
        if NoneType in get_args(kind):  # such as int | None
            kind = get_args(kind)[0]
        settings: dict[str, Any] = {"type": kind}
        if kind is bool:
            settings = {"action": "store_true"}
        elif kind == list[str]:
            settings = {"nargs": "+" if is_option else "*", "action": "extend"}
        elif get_origin(kind) is Literal:
            settings = {"choices": get_args(kind)}
        if is_option and kind is not bool and default is not None:
            text += f" (default: {default!r})"
        parser.add_argument(f"--{name}" if is_option else name, default=default, help=text, **settings)


def program(function: Callable, description: str | None) -> Callable[..., int]:
    """Returns the `main` of a script, which calls `function` with the options of the command line, its parameters."""

    @exit_status
    @functools.wraps(function)
    def main(argv: list[str] | None = None) -> None:
        parser = Parser(description=description)
        add_parameters(parser, function)
        function(**vars(parser.parse_args(argv)))

    return main


def read_command(functions: dict[str, Callable], argv: list[str] | None, description: str) -> dict[str, Any]:
    """Returns the options of a command line that begins with a "command", the name of one of `functions`."""
    parser = Parser(description=description)
    commands = parser.add_subparsers(dest="command", required=True, metavar=" | ".join(functions))
    for name, function in functions.items():
        text, _, _ = inspect.getdoc(function).partition("\nArgs:\n")
        add_parameters(commands.add_parser(name, help=text.splitlines()[0], description=text), function)
    return vars(parser.parse_args(argv))
