"""Programs in processes of their own, which can be killed, limited and refused; forked, as importing takes seconds."""

import logging
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from tests.small_runs import REPOSITORY


class Started(multiprocessing.get_context("fork").Process):
    """The leader of a process group, which calls `prepare` and then is a program that a person has started."""

    def __init__(self, command: list[str], prepare: Callable = lambda: None):
        super().__init__()
        self.command, self.prepare = command, prepare
        self.pipe, self.written = os.pipe()  # no file, as those may be limited
        self.start()
        os.close(self.written)

    def run(self) -> None:
        os.setpgid(0, 0)
        for stream in (1, 2):
            os.dup2(self.written, stream)
        sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1) for stream in (1, 2))  # not pytest's
        logging.getLogger().handlers.clear()  # pytest's too
        sys.argv = self.command
        self.prepare()
        try:
            runpy.run_path(str(REPOSITORY / self.command[0]), run_name="__main__")
        except SystemExit as stop:
            os._exit(stop.code)  # before another signal comes

    def end(self, *statuses: int) -> "Started":
        """Waits until it ends with one of these, in one sentence if that is 2; whom it leaves behind is killed."""
        self.join()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.output = os.read(self.pipe, 2**16).decode(errors="replace")  # all that a pipe holds
        os.close(self.pipe)
        self.mistake = self.output.strip().splitlines()[-1] if self.exitcode == 2 else ""
        assert self.exitcode in statuses, (self.exitcode, self.output[-2000:])
        assert self.mistake.startswith(f"{Path(self.command[0]).name}: ") or self.exitcode != 2, self.output[-2000:]
        # Where the main process is gone, nobody keeps its loaders from complaining.
        assert "Traceback" not in self.output or self.exitcode == -signal.SIGKILL, self.output[-2000:]
        assert self.exitcode or not [path for path in Path().rglob(".*") if path.suffix in (".aside", ".new")]
        return self


def run(command: list[str], prepare: Callable = lambda: None, ends: Collection[int] = (0,)) -> Started:
    """A program that has `Started` and ended with one of these statuses."""
    return Started(command, prepare).end(*ends)
