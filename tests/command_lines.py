"""Calls a command line in this process, which takes no time to start."""

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
