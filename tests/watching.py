"""Something that happens before a function is called, wherever the program calls it."""

from collections.abc import Callable
from itertools import count


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
