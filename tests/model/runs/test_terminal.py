"""Exit statuses and messages of every command line."""

import errno
import io
import subprocess
import sys

import pytest

from model.mistakes import Missing, Mistake
from model.runs.terminal import exit_status, sentence, shown
from tests import programs
from tests.command_lines import tells


@exit_status
def tool(error):
    """A program that raises `error`, if any."""
    if error:
        raise error


MISTAKE = (2, "", "test_terminal.py: two lines\n")
ENDS = [(None, 0, "", ""), (KeyboardInterrupt(), 130, "\n", "")]
ENDS += [(Mistake("two\n  lines"), *MISTAKE), (Missing("two\n  lines"), *MISTAKE)]


@pytest.mark.parametrize("error, status, output, message", ENDS)
def test_a_mistake_is_one_sentence_and_status_2_and_ctrl_c_is_status_130(capsys, error, status, output, message):
    assert tool(error) == status
    assert capsys.readouterr() == (output, message)


@pytest.mark.parametrize("kind", [KeyError, ValueError, TypeError, OSError, RuntimeError, BrokenPipeError])
def test_any_other_error_is_passed_on(kind):
    with pytest.raises(kind):
        tool(kind("a bug"))


@pytest.mark.parametrize("reason", [errno.ENAMETOOLONG, errno.EACCES, errno.ENOSPC])
def test_what_the_system_refuses_is_a_mistake(capsys, reason):
    """For example a folder that this user may not read, or standard output on a full disk."""
    assert tool(OSError(reason, "the reason", "runs/a")) == 2
    assert tells(capsys.readouterr().err, "test_terminal.py: runs/a")


def test_a_character_that_the_terminal_lacks_is_written_as_a_question_mark(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert exit_status(lambda: print("runs/é"))() == 0
    assert written.getvalue() == b"runs/?\n"


def test_long_messages_are_cut_and_control_characters_escaped():
    assert sentence(ValueError("x" * 1000)) == "x" * 1000
    assert sentence(ValueError("x" * 600 + "y" * 600)) == "x" * 500 + " ... " + "y" * 500
    assert sentence(ValueError("a\x1b[31m title\x07\x9b b\n\tä")) == r"a\x1b[31m title\x07\x9b b ä"
    assert shown("\u202eabc\u2066 \u200f\r\n\tä é 中") == r"\u202eabc\u2066 \u200f\r" + "\n\tä é 中"


@pytest.mark.parametrize("body, status", [("print('x')", 0), ("print('x' * 10**6)", 0), ("raise Mistake('a pipe')", 2)])
def test_a_closed_standard_output_is_no_error(body, status):
    """For example in `python scripts/generate.py | head -1`."""
    source = "import sys\nfrom model.mistakes import Mistake\nfrom model.runs.terminal import exit_status\n"
    source += f"@exit_status\ndef main():\n    {body}\n"
    source += "status = main()\nsys.stderr.write(f'status {status}')"
    program = programs.start("-c", source, stderr=subprocess.PIPE)
    program.stdout.close() if status == 0 else program.stdout.read()
    error = program.stderr.read()
    assert error.endswith(f"status {status}") and "Traceback" not in error
    assert program.wait() == 0


def test_help_imports_nothing_that_is_slow():
    source = """
import sys
from scripts import benchmark, convert_huggingface, evaluate, generate, inspect_attention, walk
slow = {"torch", "lightning", "jsonargparse", "datasets", "matplotlib"}
for script in (benchmark, convert_huggingface, generate, inspect_attention, walk, evaluate):
    if script is evaluate:  # whose --data options are those of train.py, by jsonargparse
        slow.remove("jsonargparse")
    try:
        script.main(["--help"])
    except SystemExit:
        assert not slow & set(sys.modules)
"""
    programs.run("-c", source)
