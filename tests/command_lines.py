"""Calls command lines in this process, without the seconds that a new process takes to start."""

import re
import shlex

import pytest

from model.mistakes import Mistake


def call(main, capsys, *arguments):
    """Returns (exit status, standard output, standard error)."""
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as exit:  # argparse exits by itself
        status = exit.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def last_error(capsys):
    return capsys.readouterr().err.splitlines()[-1]


def tells(sentence, names):
    """Whether a sentence holds each of these space-separated names and figures as a whole word."""
    return all(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", sentence) for name in names.split())


def mistake(sentence):
    """A context that must raise a Mistake whose sentence matches this regular expression."""
    return pytest.raises(Mistake, match=sentence)


def refused(main, capsys, *arguments):
    """Asserts that a command line exits with status 2 and writes one line, to standard error; returns that line."""
    status, out, err = call(main, capsys, *arguments)
    program = main.__module__.rpartition(".")[2]
    assert (status, out) == (2, "") and err.startswith(f"{program}.py: ") and err.count("\n") == 1, (status, out, err)
    return err


def check_mistakes(main, capsys, mistakes, *arguments):
    """Asserts that each text that a user types after the arguments is refused with its names and figures."""
    for typed, names in mistakes.items():
        sentence = refused(main, capsys, *arguments, *shlex.split(typed))
        assert tells(sentence, names), f"{typed}: {sentence}"
