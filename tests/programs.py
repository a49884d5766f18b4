"""Starts Python programs as processes, as a user does. Tests that need no process call `main`, which is faster.

Nothing here imports PyTorch: a process that needs this file but no network starts in half the time.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
PATIENCE = 180  # seconds; a program that takes longer is killed


def start(*command, before="", **options):
    """Starts a script of this repository, or "-c" and code, with arguments, in the working folder.

    The process leads a group of its own and finds our modules. Its standard error goes into its standard output.

    Args:
        before: code that runs in the process first.
        options: further options of Popen, which override the usual ones.
    """
    command = [str(argument) for argument in command]
    if command[0].endswith(".py"):
        command[0] = str(REPOSITORY / command[0])
    if before:
        then = f"import runpy, sys; sys.argv = {command}; runpy.run_path({command[0]!r}, run_name='__main__')"
        command = ["-c", f"{before}\n{then}"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} | options
    options["env"] = os.environ | {"PYTHONPATH": str(REPOSITORY)} | options.get("env", {})
    options |= {"text": True, "errors": "replace", "start_new_session": True}
    return subprocess.Popen([sys.executable, *command], **options)


def end(program, *statuses):
    """Returns what the program wrote. Fails unless it ends with one of `statuses`, by default 0; kills its group."""
    try:
        written, error = program.communicate(timeout=PATIENCE)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(program.pid, signal.SIGKILL)
    written += error or ""
    assert program.returncode in (statuses or (0,)), f"status {program.returncode}\n{written[-4000:]}"
    return written


def run(*command, **options):
    """Runs a program that must succeed; returns what it wrote."""
    return end(start(*command, **options))


def calling(function, *arguments):
    """Code that calls a module's function, for `before`. The repr of each argument must evaluate to it."""
    return f"from {function.__module__} import {function.__name__}; {function.__name__}(*{arguments!r})"
