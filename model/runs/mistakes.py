"""A person's mistakes, and what the machine does to a run, as one sentence and exit status 2.

For train.py and the scripts. An error in code keeps its traceback: its type tells which it is. Nothing heavy is
imported here, so that --help is fast.
"""

import argparse
import errno
import functools
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from model.checks import Mistake, is_out_of_memory
from model.runs.run import Run

LONGEST = 1000  # characters of a sentence, which may quote a file
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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


@contextmanager
def explain_machine(run_dir: Path) -> Iterator[None]:
    """Says what to do where the machine has no memory or room for a run, or has killed a process that loads its data.

    Raises a `Mistake` with such a sentence; other errors pass.
    """
    try:
        yield
    except (RuntimeError, OSError, EOFError, MemoryError, Mistake) as error:
        # After a write that failed torch.save still ends its archive, and raises another error where that fails too.
        said, cause = str(error), error.__cause__ or error.__context__ or error
        is_cut_off = isinstance(error, (ConnectionError, EOFError))  # within a batch
        if is_out_of_memory(error):
            said = "out of memory: lower data.batch_size, data.validation_batch_size or model.gpt.context_length"
        elif "DataLoader worker (pid" in said or is_cut_off:
            said = "a process that loads data has ended, often for want of memory: lower data.num_workers"
        elif isinstance(cause, OSError) and cause.errno in NO_ROOM and "make room" not in said:
            place = cause.filename or run_dir  # what writes to an open file names none
            said = f"{said}: make room" if isinstance(error, Mistake) else f"{place}: {cause.strerror}: make room"
        else:
            raise
        raise Mistake(f"{said}; {Run(run_dir).how_to_resume}") from error


def parse(parser: Any, args: list[str], **options: Any) -> Any:
    """`parse_args` of jsonargparse's parser, which has exit_on_error=False. What it raises then becomes a `Mistake`."""
    try:
        return parser.parse_args(args, **options)
    except argparse.ArgumentError as error:
        raise Mistake(error.message) from error
