"""A person's mistakes as one sentence and exit status 2.

For train.py and the scripts. An error in code keeps its traceback: its type tells which it is. Nothing heavy is
imported here, so that --help is fast.
"""

import functools
import io
import os
import re
import sys
from collections.abc import Callable

from model.mistakes import Mistake

LONGEST = 1000  # characters of a sentence, which may quote a file
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")


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
