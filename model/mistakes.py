"""`Mistake`, the error that is shown as one sentence, and the checks that raise it.

Every other file may import this one, so it imports nothing but Python's standard library.
"""

import errno
import importlib
import math
import typing
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

WHERE_MODULES_ARE = " (a module must lie in the current folder, or in one that PYTHONPATH names)"
# Parts of the messages of the RuntimeErrors that torch's allocators raise.
NO_MEMORY = ("out of memory", "allocate memory", "tried to allocate", "not enough memory")


class Mistake(ValueError):
    """Raised for options, files or data that cannot be used: says what is wrong, where, and what to write instead.

    train.py and the scripts print this one sentence and exit with status 2. Every other error is a bug and shows its
    traceback, so raise a `Mistake` only where options, files and data are checked.
    """


class Missing(Mistake, FileNotFoundError):
    """Raised for a file, run or model that does not exist."""


@contextmanager
def file_errors(path: Path | str, advice: str = "") -> Iterator[None]:
    """Turns an OSError raised in the block into a `Mistake` that names `path`. The block must only read or write it.

    Args:
        advice: end of the sentence, which says what to do.
    """
    try:
        yield
    except Mistake:
        raise
    except OSError as error:
        kind = Missing if isinstance(error, FileNotFoundError) else Mistake
        raise kind(f"{path}: {error.strerror or error}{_elsewhere(error, path)}{advice}") from error


@contextmanager
def parsing(place: Path | str, advice: str = "") -> Iterator[None]:
    """Turns any error raised in the block into a `Mistake` that calls `place` damaged. The block must only parse it.

    A damaged file can raise errors of any type; a damaged zip file can even look encrypted. So every error is caught,
    and a bug in the block would be reported as a damaged file. What the system refuses is not blamed on the file: a
    lack of memory, a full disk, or another file that the block needs.

    Args:
        advice: end of the sentence.
    """
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise Mistake(f"this machine does not have enough memory to open {place}") from error
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # EINVAL: a damaged zip file
            raise Mistake(f"{place} could not be read: {error.strerror}{_elsewhere(error, place)}") from error
        reason = str(error) if type(error) in (Mistake, ValueError) else f"{type(error).__name__} {error}"
        raise Mistake(f"{place} is damaged ({' '.join(reason.split())}){advice}") from error


def _elsewhere(error: OSError, place: Path | str) -> str:
    """Returns the path that the error is about, in brackets, if it is not `place`."""
    return f" ({error.filename})" if error.filename and str(error.filename) != str(place) else ""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the machine, or its GPU, has no memory left."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    message = str(error).lower()
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(map(message.count, NO_MEMORY)))


def check(is_right: bool, name: str, wanted: str, value: object) -> None:
    """Raises a `Mistake` if `is_right` is False: what `name` must be, and that it is `value`."""
    if not is_right:
        raise Mistake(f"{name} must be {wanted}, not {value!r:.80}")


def check_range(
    name: str,
    value: float | None,
    low: float,
    high: float = math.inf,
    *,
    low_open: bool = False,
    high_open: bool = False,
    whole: bool = False,
) -> None:
    """Raises a `Mistake` for a number outside low..high, and for infinity and NaN. None, an unset option, passes.

    Args:
        name: the option, for the message.
        low_open, high_open: whether the bound itself is refused too.
        whole: whether the number must be an integer.
    """
    if value is None:
        return
    if not isinstance(value, Integral if whole else Real):
        raise Mistake(f"{name} must be a {'whole ' if whole else ''}number, not {value!r}")
    if isinstance(value, int) and abs(value) >= 2**53:  # torch fails on sizes of more than 64 bits
        raise Mistake(f"{name} must be below 2^53, not {value}")
    too_low = value <= low if low_open else value < low
    too_high = value >= high if high_open else value > high
    if math.isfinite(value) and not too_low and not too_high:
        return
    allowed = f"above {low}" if low_open else f"at least {low}"
    if high != math.inf:
        allowed += f" and {'below' if high_open else 'at most'} {high}"
    elif not math.isfinite(value):
        allowed += " and finite"
    raise Mistake(f"{name} must be {allowed}, not {value}")


def check_choices(config: Any, prefix: str = "") -> None:
    """Raises a `Mistake` if a dataclass field is none of its `Literal` choices, or no number or bool where it must be.

    Args:
        prefix: put before the field's name in the message, as on the command line ("model.optimizer.").
    """
    for name, annotation in typing.get_type_hints(type(config)).items():
        value, allowed = getattr(config, name), ""
        if typing.get_origin(annotation) is Literal and value not in typing.get_args(annotation):
            allowed = listed([repr(choice) for choice in typing.get_args(annotation)], "or")
        elif annotation in (int, int | None, float, float | None) and not isinstance(value, annotation | int):
            allowed = "a whole number" if annotation in (int, int | None) else "a number"
        elif annotation is bool and not isinstance(value, bool):
            allowed = "true or false"
        if allowed:
            raise Mistake(f"{prefix}{name} must be {allowed}, not {value!r}")


def listed(parts: Sequence[str], word: str = "and") -> str:
    """Joins parts into a list such as "a, b and c"."""
    return f" {word} ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def imported(option: str, path: str, names: Iterable[str]) -> Any:
    """Imports what a dotted path such as mine.my_corpus names, the value of an option that may also be one of `names`.

    Raises a `Mistake` if it is no dotted path, or if there is no such module or nothing of that name in it.
    """
    module, _, name = path.rpartition(".")
    check(bool(module), option, listed([*map(repr, names), "a path such as mine.my_own"], "or"), path)
    found = None
    try:
        if all(map(str.isidentifier, path.split("."))):
            found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # another module, which this one imports
    if found is None:
        raise Mistake(f"{option}: there is no {path}{WHERE_MODULES_ARE}")
    return found


def check_divides(divisor_name: str, divisor: int, name: str, value: int) -> None:
    """Raises a `Mistake` if `divisor` does not divide `value`."""
    if value % divisor:
        raise Mistake(f"{divisor_name}={divisor} does not divide {name}={value}: change one to divide the other")
