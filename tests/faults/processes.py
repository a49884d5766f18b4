"""Trainings in processes of their own, which can be killed, limited and refused; forked, as importing takes seconds."""

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from train import main

WRITES = ("open", "mkdir", "rename", "remove")


class Ended(NamedTuple):
    status: int  # as a shell has it, negative for a signal that ended the process
    output: str


class Started:
    """The leader of a process group, which calls `prepare` and then `main`. Writes to a pipe: files may be limited."""

    def __init__(self, options: list[str], prepare: Callable = lambda: None, main: Callable[[list[str]], int] = main):
        self.pipe, end = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(end)
            return
        try:
            os.setpgid(0, 0)
            for stream in (1, 2):
                os.dup2(end, stream)
            sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1) for stream in (1, 2))  # not pytest's
            for stop in (signal.SIGINT, signal.SIGTERM):  # as in train.py
                signal.signal(stop, lambda signum, _: sys.exit(128 + signum))
            logging.getLogger().handlers.clear()  # pytest's too
            status = 1
            prepare()
            status = main(options)
        except SystemExit as stop:
            status = stop.code
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def end(self) -> Ended:
        """Waits for it, and ends the processes that it has left behind."""
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        os.set_blocking(self.pipe, False)  # a process of another group may still hold its other end
        with os.fdopen(self.pipe, "rb", buffering=0) as file:
            return Ended(status, (file.readall() or b"").decode(errors="replace"))


def run(*arguments) -> Ended:
    """As `Started` takes them."""
    return Started(*arguments).end()


def run_well(*arguments) -> Ended:
    ended = run(*arguments)
    assert ended.status == 0 and "Traceback" not in ended.output, ended.output[-2000:]
    return ended


def watch_writes(action: Callable[[str, str], None], *below: str) -> None:
    """From now on, calls `action` before this process changes anything below the folders, which may not exist yet.

    Its arguments are "open" (for writing), "mkdir", "rename" or "remove", and the path. What it raises, the program
    gets. This cannot be undone, so it is for processes that are `Started`.
    """
    tops = tuple(str(Path(folder).absolute()) + os.sep for folder in below)

    def hook(event: str, arguments: tuple) -> None:
        event, path = event.removeprefix("os."), arguments[0] if arguments else None
        if event not in WRITES or not isinstance(path, (str, os.PathLike)):
            return
        writes = event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and (str(Path(path).absolute()) + os.sep).startswith(tops):
            action(event, os.fspath(path))

    sys.addaudithook(hook)


def nth_write(number: int, action: Callable[[], object], *below: str, events=WRITES) -> None:
    """Calls `action` when this process is about to change its n-th file below the folders."""
    changes = count(1)
    watch_writes(lambda event, _: event in events and next(changes) == number and action(), *below)
