"""Something that happens before a function is called, or a file is changed, wherever the program does it."""

import os
import sys
from collections.abc import Callable
from itertools import count

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


def before_change(folders: list[str], action: Callable, number: int | None = None, events=CHANGES) -> None:
    """From now on, calls `action` with the path before each change below these folders of this one, or the n-th alone.

    What it raises, the program gets. This never ends, so it is for a process that a test has started.
    """
    changes = count(1)

    def hook(event: str, arguments: tuple) -> None:
        if event not in events or not isinstance(arguments[0], str | os.PathLike):
            return
        reads = event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if reads or os.path.relpath(arguments[0]).partition("/")[0] not in folders:
            return
        if next(changes) == number or number is None:
            action(arguments[0])

    sys.addaudithook(hook)
