"""Starts Python in a process of its own, as a person does. What need not be one calls `main`, which takes no time."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

from tests.small_runs import REPOSITORY

PATIENCE = 180  # seconds, after which a program that hangs is killed


def start(*command: object, before: str = "", **options) -> subprocess.Popen:
    """A script of this repository or "-c" and code, with their arguments, in the working folder.

    It leads a process group and finds our modules; `before` is code that runs first in its process, and `options` are
    those of Popen, which writes both streams into one unless they say otherwise.
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


def end(program: subprocess.Popen, *statuses: int) -> str:
    """What it wrote until it ended, with one of these statuses, or 0; those that it leaves behind are killed."""
    try:
        written, error = program.communicate(timeout=PATIENCE)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(program.pid, signal.SIGKILL)
    written += error or ""
    assert program.returncode in (statuses or (0,)), f"status {program.returncode}\n{written[-4000:]}"
    return written


def run(*command: object, **options) -> str:
    """What a program wrote that started and ended well."""
    return end(start(*command, **options))


def calling(function: Callable, *arguments: object) -> str:
    """The code that calls a function of a module with arguments that are their own repr."""
    return f"from {function.__module__} import {function.__name__}; {function.__name__}(*{arguments!r})"
