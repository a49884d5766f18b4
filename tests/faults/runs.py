"""Trainings in processes of their own, which can be killed, limited and refused; forked, because importing costs more.

The process that is forked from has imported everything and has no threads.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from model.checkpoint import read_checkpoint
from model.inspection.archive import AttentionArchive
from model.runs.folder import resume_point
from model.runs.results import read_metrics, read_samples
from train import main

RUN = Path("runs/run")
Main = Callable[[list[str]], int]
OUTPUTS: dict[int, list[int]] = {}  # pipes with the standard output and error of each process


@dataclass(frozen=True)
class Lab:
    """What all cases share: read it, never change it.

    options: of a run that takes a second, with its text and its cache; whole: that run, undisturbed.
    """

    folder: Path
    options: list[str]
    is_short: bool

    @property
    def whole(self) -> Path:
        return self.folder / "runs" / "run"


@dataclass(frozen=True)
class Ended:
    """status: as a shell has it, negative for a signal that ended the process; said: its last line of errors."""

    status: int
    output: str
    error: str

    @property
    def said(self) -> str:
        return (self.error.strip().splitlines() or [""])[-1]


def start(options: list[str], prepare: Callable[[], None] | None = None, main: Main = main) -> int:
    """Forks a process, the leader of a group, that calls `prepare` and then `main`; gives its id.

    What it writes goes to pipes, because its files may be limited.
    """
    pipes = [os.pipe(), os.pipe()]
    process = os.fork()
    if process:
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(process, process)
        for _, here in pipes:
            os.close(here)
        OUTPUTS[process] = [there for there, _ in pipes]
        return process
    os.setpgid(0, 0)
    for stream, (_, here) in enumerate(pipes, start=1):
        os.dup2(here, stream)
        os.close(here)
    for stop in (signal.SIGINT, signal.SIGTERM):  # as in train.py
        signal.signal(stop, lambda signum, _: sys.exit(128 + signum))
    logging.disable(logging.NOTSET)  # a case may have turned it off
    status = 1
    try:
        if prepare:
            prepare()
        status = main(options)
    except SystemExit as stop:
        status = stop.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def end(process: int) -> Ended:
    """Waits for a process that `start` has started, and ends those that it has left behind."""
    _, status = os.waitpid(process, 0)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
    return Ended(os.waitstatus_to_exitcode(status), *map(written, OUTPUTS.pop(process)))


def written(pipe: int) -> str:
    """What is in a pipe, without waiting for more: a process of another group may still hold its other end."""
    os.set_blocking(pipe, False)
    content = b""
    with suppress(BlockingIOError):
        while part := os.read(pipe, 2**16):
            content += part
    os.close(pipe)
    return content.decode(errors="replace")


def run(options: list[str], prepare: Callable[[], None] | None = None, main: Main = main) -> Ended:
    return end(start(options, prepare, main))


def has_ended(process: int) -> bool:
    """Whether `end` would not wait."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def wait_until(condition: Callable[[], bool], process: int, seconds: float = 60) -> bool:
    """Waits for the condition; False if the process has ended before."""
    give_up = time.monotonic() + seconds
    while not condition():
        if has_ended(process):
            return False
        assert time.monotonic() < give_up, "waited too long"
        time.sleep(0.0005)
    return True


WRITES = {"os.mkdir": "mkdir", "os.rename": "rename", "os.remove": "remove"}


def watch_writes(below: Path, action: Callable[[str, str], None]) -> None:
    """From now on, calls `action` before this process changes anything below a folder, which may not exist yet.

    Its arguments are "open" (for writing), "mkdir", "rename" or "remove", and the path. What it raises, the program
    gets. This cannot be undone, so it is for processes that `start` has started.
    """
    top = str(below.absolute()) + os.sep

    def hook(event: str, arguments: tuple) -> None:
        if event == "open":
            path, _, flags = arguments
            if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event in WRITES:
            path = arguments[0]
        else:
            return
        if isinstance(path, (str, os.PathLike)) and (str(Path(path).absolute()) + os.sep).startswith(top):
            action(WRITES.get(event, event), os.fspath(path))

    sys.addaudithook(hook)


def check_mistake(ended: Ended, *expected: str, program: str = "train.py") -> str:
    """One sentence, exit status 2 and no traceback; gives the sentence, without what differs from case to case."""
    assert ended.status == 2, f"exit status {ended.status}: {ended.error[-2000:]}"
    assert "Traceback" not in ended.error, ended.error[-2000:]
    assert ended.said.startswith(f"{program}: "), ended.error[-2000:]
    for words in expected:
        assert words in ended.said, f"{words!r} is not in: {ended.said}"
    return ended.said.removeprefix(f"{program}: ")


def check_whole_files(run: Path) -> int:
    """Every file of the run can be read, and nothing is half written; gives the step that it can be resumed from."""
    for checkpoint in (run / "checkpoints").glob("*.ckpt"):
        if not checkpoint.name.startswith("."):
            read_checkpoint(checkpoint)
    if (run / "metrics.csv").exists():
        steps = [row["step"] for row in read_metrics(run / "metrics.csv")]
        assert steps == sorted(set(steps)), steps
    read_samples(run / "samples.jsonl")
    if (run / "attention" / "scores.jsonl").exists():
        archive = AttentionArchive.open(run / "attention")
        for step in archive.steps:
            archive.maps(step), archive.details(step)
    try:
        return read_checkpoint(resume_point(run)[1])["global_step"]
    except FileNotFoundError:  # no config or no checkpoint yet
        return -1


def check_nothing_aside(folder: Path) -> None:
    left = [str(path) for path in folder.rglob(".*") if path.name.endswith((".aside", ".new"))]
    assert not left, left


def kind_of(path: str) -> str:
    """A file's name without its numbers and the signs of a file that is not ready, such as step_#.npz."""
    name = re.sub(r"\d+", "#", Path(path).name)
    return re.sub(r"^\.(.*?)(\.new)?(\.aside)?$", r"\1", name)
