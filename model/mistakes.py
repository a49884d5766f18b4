"""Mistakes of the user: the error that is shown as one sentence, the checks that raise it, and how programs show it.

Every other file may import this one, so it imports nothing but Python's standard library.
"""

import errno
import functools
import io
import math
import os
import re
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

LONGEST = 1000  # characters; a sentence may quote a file of any length
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
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
        raise kind(f"{path}: {error.strerror or error}{advice}") from error


@contextmanager
def parsing(place: Path | str, advice: str = "") -> Iterator[None]:
    """Turns any error raised in the block into a `Mistake` that calls `place` damaged. The block must only parse it.

    A damaged file can raise errors of any type; a damaged zip file can even look encrypted. So every error is caught,
    and a bug in the block would be reported as a damaged file. Only a lack of memory is not blamed on the file.

    Args:
        advice: end of the sentence.
    """
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise Mistake(f"this machine does not have enough memory to open {place}") from error
        reason = str(error) if type(error) in (Mistake, ValueError) else f"{type(error).__name__} {error}"
        raise Mistake(f"{place} is damaged ({' '.join(reason.split())}){advice}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the machine, or its GPU, has no memory left."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    message = str(error).lower()
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(map(message.count, NO_MEMORY)))


def check_range(
    name: str,
    value: float | None,
    low: float,
    high: float = math.inf,
    *,
    low_open: bool = False,
    high_open: bool = False,
) -> None:
    """Raises a `Mistake` for a number outside low..high, and for infinity and NaN. None, an unset option, passes.

    Args:
        name: the option, for the message.
        low_open, high_open: whether the bound itself is refused too.
    """
    if value is None:
        return
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


def check_divides(divisor_name: str, divisor: int, name: str, value: int) -> None:
    """Raises a `Mistake` if `divisor` does not divide `value`."""
    if value % divisor:
        raise Mistake(f"{divisor_name}={divisor} does not divide {name}={value}: change one to divide the other")


# ---- how a program ends


def exit_status(program: str) -> Callable[[Callable[..., int | None]], Callable[..., int]]:
    """Decorator for a `main` function: makes it return the exit status, and show a `Mistake` without a traceback.

    The status is what `main` returns, 0 for None; 2 after a `Mistake`, which is printed on standard error; 130 after
    Ctrl-C; 0 if the reader of standard output has closed it.
    """

    def decorate(main: Callable[..., int | None]) -> Callable[..., int]:
        @functools.wraps(main)
        def wrapper(*args, **kwargs) -> int:
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(errors="replace")  # print ? for characters the terminal's encoding lacks
            try:
                status = main(*args, **kwargs) or 0
                print(end="", flush=True)  # raises here, not when Python exits, if standard output is closed
                return status
            except KeyboardInterrupt:
                print()
                return 130
            except Mistake as error:
                print(f"{program}: {sentence(error)}", file=sys.stderr)
                return 2
            except BrokenPipeError:
                if output_is_closed():
                    return 0
                raise

        return wrapper

    return decorate


def output_is_closed() -> bool:
    """Whether the reader of standard output, such as `head`, has closed it. Further output is discarded then."""
    try:
        print(flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def sentence(error: BaseException) -> str:
    """Returns an error's message on one line, with control characters escaped, and cut if it is longer than LONGEST."""
    # The message may quote a file's content or name, which must not control the terminal.
    line = CONTROL_CHARACTER.sub(lambda match: repr(match[0])[1:-1], " ".join(str(error).split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"


def with_hint(message: str) -> str:
    """Adds to argparse's message how to write a value that begins with -, or that the shell would split."""
    option, _, reason = message.removeprefix("argument ").partition(": ")
    if reason == "expected one argument":
        return f"{message} (write one that begins with - as {option}=-x)"
    if option == "unrecognized arguments" and not reason.startswith("-"):
        return f"{message} (each value follows its --option; one with spaces or *, such as 'my/*.txt', needs quotes)"
    return message
