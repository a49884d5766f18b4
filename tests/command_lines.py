"""Calls a command line in this process, which takes no time to start."""

import re
from collections.abc import Callable

import pytest


def call(main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str], *arguments: object):
    """(exit status, standard output, standard error)"""
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as exit:  # argparse leaves by itself
        status = exit.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def tells(sentence: str, names: str) -> bool:
    """Whether a sentence has each of these names and figures, between which are spaces, as words of their own."""
    return all(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", sentence) for name in names.split())


def refused(main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one sentence that a command line answers to a mistake, with exit status 2 and nothing else."""
    status, out, err = call(main, capsys, *arguments)
    program = main.__module__.rpartition(".")[2]
    assert (status, out) == (2, "") and err.startswith(f"{program}.py: ") and err.count("\n") == 1, (status, out, err)
    return err
