"""A person's mistakes: the one error that is a sentence, what raises it, and how a program tells it.

The whole project stands on this file, so it needs nothing but Python.
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

LONGEST = 1000  # characters of a sentence, which may quote a file
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# What torch's allocators say in a RuntimeError.
NO_MEMORY = ("out of memory", "allocate memory", "tried to allocate", "not enough memory")


class Mistake(ValueError):
    """Options, files or data cannot be used. Its sentence says what is wrong, where, and what to write instead.

    train.py and the scripts print that sentence and exit with status 2. Every other error is one in code and gets its
    traceback, so raise this only where options, files and data are checked.
    """


class Missing(Mistake, FileNotFoundError):
    """The mistake of naming a file, run or model that is not there."""


@contextmanager
def file_errors(path: Path | str, advice: str = "") -> Iterator[None]:
    """What the system refuses becomes a `Mistake` that names the file: for a block that only reads or writes it.

    Args:
        advice: what to do, as the end of the sentence.
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
    """Whatever fails in the block, which parses what was read at `place`, becomes a `Mistake` that says so.

    A damaged file fails in many ways, a zip file even as an encrypted one. So nothing but parsing belongs in the block:
    an error in code would be told as a damaged file. A machine that has no memory says nothing about the file.
    """
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise Mistake(f"this machine has not enough memory to open {place}") from error
        reason = str(error) if type(error) in (Mistake, ValueError) else f"{type(error).__name__} {error}"
        raise Mistake(f"{place} is damaged ({' '.join(reason.split())}){advice}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the machine, or its GPU, has no memory left."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    said = str(error).lower()
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(map(said.count, NO_MEMORY)))


def check_range(
    name: str,
    value: float | None,
    low: float,
    high: float = math.inf,
    *,
    low_open: bool = False,
    high_open: bool = False,
) -> None:
    """Refuses a number outside low .. high; None, an option that is not set, passes.

    Args:
        low_open, high_open: the bound itself is refused too. Infinity and NaN always are.
    """
    if value is None:
        return
    if isinstance(value, int) and abs(value) >= 2**53:  # torch's sizes have 64 bits
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
    """Refuses a dataclass in which a field annotated with a `Literal` has another value, or one for a number none.

    Args:
        prefix: stands before the field's name in the message, as on the command line ("model.optimizer.").
    """
    for name, annotation in typing.get_type_hints(type(config)).items():
        value, allowed = getattr(config, name), ""
        if typing.get_origin(annotation) is Literal and value not in typing.get_args(annotation):
            allowed = listed([repr(choice) for choice in typing.get_args(annotation)], "or")
        elif annotation in (int, int | None, float, float | None) and not isinstance(value, annotation | int):
            allowed = "a whole number" if annotation in (int, int | None) else "a number"
        if allowed:
            raise Mistake(f"{prefix}{name} must be {allowed}, not {value!r}")


def listed(parts: Sequence[str], word: str = "and") -> str:
    """Such as "a, b and c"."""
    return f" {word} ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def check_divides(divisor_name: str, divisor: int, name: str, value: int) -> None:
    """Refuses a divisor that leaves a remainder."""
    if value % divisor:
        raise Mistake(f"{divisor_name}={divisor} does not divide {name}={value}: change one to divide the other")


# ---- how a program ends


def exit_status(program: str) -> Callable[[Callable[..., int | None]], Callable[..., int]]:
    """Decorator for a `main` function: it then returns the exit status and prints no traceback for a `Mistake`.

    0 after success; 2 after the sentence of a mistake on standard error; 130 after Ctrl-C; or what `main` returns.
    """

    def decorate(main: Callable[..., int | None]) -> Callable[..., int]:
        @functools.wraps(main)
        def wrapper(*args, **kwargs) -> int:
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(errors="replace")  # by a question mark what the terminal's encoding lacks
            try:
                status = main(*args, **kwargs) or 0
                print(end="", flush=True)  # a closed standard output shows here and not when Python ends
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
    """Whether the reader of standard output, such as `head`, has closed it; what is still written then goes nowhere."""
    try:
        print(flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def sentence(error: BaseException) -> str:
    """What is wrong, on one line."""
    # What a file holds, or is called, must not act on the terminal.
    line = CONTROL_CHARACTER.sub(lambda found: repr(found[0])[1:-1], " ".join(str(error).split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"


def with_hint(message: str) -> str:
    """What argparse says of options, and how a value is written that it takes for another option."""
    option, _, reason = message.removeprefix("argument ").partition(": ")
    if reason == "expected one argument":
        return f"{message} (one that begins with - is written {option}=-x)"
    return message
