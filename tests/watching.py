"""Something that happens before a function is called, or a file is changed, wherever the program does it."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

CHANGES = ("open", "os.mkdir", "os.rename", "os.remove")  # Python's audit events


def before_call(replace: Callable, owner: object, name: str, action: Callable, number: int | None = None) -> None:
    """From now on, calls `action` with the arguments before each call of owner's function, or the n-th alone.

    `replace` is setattr, or monkeypatch.setattr, with which it ends with the test.
    """
    function, calls = getattr(owner, name), count(1)

    def watched(*args, **options):
        if next(calls) == number or number is None:
            action(*args, **options)
        return function(*args, **options)

    replace(owner, name, watched)


def before_change(folders: list[str], action: Callable, number: int | None = None, events=CHANGES) -> Callable:
    """From now on, calls `action` with the path before each change below these folders of this one, or the n-th alone.

    What it raises, the program gets. Returns the function that ends it.
    """
    changes, is_over = count(1), threading.Event()

    def hook(event: str, arguments: tuple) -> None:  # which Python keeps for ever
        if is_over.is_set() or event not in events or not isinstance(arguments[0], str | os.PathLike):
            return
        reads = event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if reads or os.path.relpath(arguments[0]).partition("/")[0] not in folders:
            return
        if next(changes) == number or number is None:
            action(arguments[0])

    sys.addaudithook(hook)
    return is_over.set


def signal_at(change: int, signum: int, delay: float | None = None, to_group: bool = False) -> None:
    """This process, or its group, gets a signal before the n-th change below runs/, or so many seconds later."""
    kill = partial(os.killpg if to_group else os.kill, os.getpid(), signum)
    later = kill if delay is None else threading.Timer(delay, kill).start
    before_change(["runs"], lambda _: later(), change)


def signal_after(file: str, signum: int) -> None:
    """This process gets a signal before the first change below runs/ that finds this file there."""

    def send(_: str) -> None:
        if Path(file).exists():
            stop()
            os.kill(os.getpid(), signum)

    stop = before_change(["runs"], send)


def kill_child(named: bytes, patience: float, *_, **__) -> None:
    """Kills a process that this one has started whose command line holds these bytes. Linux only.

    Waits so many seconds for this process to notice, or until that ends the wait with an error.
    """
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    child = next(child for child in children if named in Path(f"/proc/{child}/cmdline").read_bytes())
    os.kill(int(child), signal.SIGKILL)
    print("killed", child)
    late = time.monotonic() + patience
    while time.monotonic() < late:  # a signal that another thread gets does not end a sleep
        time.sleep(0.01)
