"""The error of this folder for what a person can mend without reading code."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Mistake(ValueError):
    """Options, files or data cannot be used. Its sentence says what is wrong, where, and what to write instead.

    train.py and the scripts print that sentence and exit with status 2. Every other error is one in code and gets its
    traceback, so raise this only where options and files are checked. The network has its own: model/checks.py.
    """


@contextmanager
def reading(what: Path | str) -> Iterator[None]:
    """What a library raises over data that is missing or damaged is a person's mistake. For a block that only reads."""
    try:
        yield
    except Mistake:
        raise
    except (OSError, EOFError, ValueError, Warning, zlib.error) as error:
        reason = (str(getattr(error, "strerror", None) or error).splitlines() or [type(error).__name__])[0]
        raise Mistake(f"cannot read {what}: {reason}") from error


@contextmanager
def parsing(sentence: str) -> Iterator[None]:
    """Whatever fails in the block, which only takes apart what was read, means this sentence: data has many shapes."""
    try:
        yield
    except Exception as error:
        reason = str(error) if isinstance(error, Mistake) else f"{type(error).__name__} {error}"
        raise Mistake(f"{sentence} ({reason})") from error
