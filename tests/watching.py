"""Runs an action before a function is called or a file is changed, to disturb a program at a chosen moment."""

import os
import signal
import sys
import threading
import time
from functools import partial
from itertools import count
from pathlib import Path

CHANGES = ("open", "os.mkdir", "os.rename", "os.remove")  # Python's audit events


def before_call(replace, owner, name, action, number=None):
    """Calls `action` with the arguments before every call of `owner.name`, or before call `number` only.

    replace: setattr, or monkeypatch.setattr to undo it after the test.
    """
    function, calls = getattr(owner, name), count(1)

    def watched(*args, **options):
        if next(calls) == number or number is None:
            action(*args, **options)
        return function(*args, **options)

    replace(owner, name, watched)


def before_change(folders, action, number=None, events=CHANGES):
    """Calls `action` with the path before each change of a file in `folders`, or before change `number` only.

    The program gets what `action` raises. Returns a function that stops the watching.

    folders: names of folders in the working folder.
    """
    changes, is_over = count(1), threading.Event()

    def hook(event, arguments):  # Python cannot remove an audit hook, hence `is_over`
        if is_over.is_set() or event not in events or not isinstance(arguments[0], str | os.PathLike):
            return
        reads = event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if reads or os.path.relpath(arguments[0]).partition("/")[0] not in folders:
            return
        if next(changes) == number or number is None:
            action(arguments[0])

    sys.addaudithook(hook)
    return is_over.set


def signal_at(change, signum, delay=None, to_group=False):
    """Sends this process, or its group, a signal before change number `change` in runs/, or `delay` seconds later."""
    kill = partial(os.killpg if to_group else os.kill, os.getpid(), signum)
    later = kill if delay is None else threading.Timer(delay, kill).start
    before_change(["runs"], lambda _: later(), change)


def kill_wandb(*_, **__):
    """Kills the process of Weights & Biases, a child of this one. Linux only.

    Then waits a second for this process to notice; an error that noticing raises ends the wait.
    """
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    child = next(child for child in children if b"wandb-core" in Path(f"/proc/{child}/cmdline").read_bytes())
    os.kill(int(child), signal.SIGKILL)
    print("killed", child)
    late = time.monotonic() + 1
    while time.monotonic() < late:  # short sleeps: a signal that another thread receives does not end a long one
        time.sleep(0.01)
