"""How a program speaks and ends: everything that it prints passes through here, and so does its exit status.

Imports nothing that is slow, because every script imports it.
"""

import errno
import functools
import inspect
import io
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from model.mistakes import WHERE_MODULES_ARE, Mistake, is_out_of_memory

# What the system answers where no check for a missing file expects it, or where a program prints: a path that is too
# long, a folder that this user may not read, a full disk.
REFUSED = (errno.ENAMETOOLONG, errno.EACCES, errno.ENOSPC)
LONGEST = 1000  # characters; a sentence may quote a file of any length
# Characters that control a terminal, but for tab and line break: C0, DEL, C1, and marks that change the direction of
# writing; and halves of characters, which cannot be written. A prompt, a folder's name or a stranger's checkpoint may
# hold them.
CONTROL_CHARACTER = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# What a parser's message lacks, by a pattern of it. Lightning's Trainer has more options, see trainer_options.py.
HINTS = {
    "No module named": WHERE_MODULES_ARE,
    "unrecognized.* --trainer|'trainer' does not accept": " (a run counts steps and saves itself: see --help)",
    "one argument$": " (write one that begins with - as --option=-x)",
    "^unrecognized arguments: [^-]": " (a value follows its --option; one with spaces or * needs quotes: 'my/*.txt')",
}


def shown(text: str) -> str:
    """Returns a text with control characters escaped, such as \\x1b."""
    return CONTROL_CHARACTER.sub(lambda match: repr(match[0])[1:-1], text)


def say(text: str, file: TextIO | None = None, end: str = "\n") -> None:
    """Prints a text at once, on standard output unless `file` is another stream. Control characters are escaped."""
    print(shown(text), file=file, end=end, flush=True)


class _Formatter(logging.Formatter):
    """Formats warnings, and the progress of data/, as they are shown."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


def gets_sentence(error: BaseException) -> bool:
    """Whether a program shows an error by its sentence alone: a `Mistake`, or one that the system has REFUSED."""
    return isinstance(error, Mistake) or (isinstance(error, OSError) and error.errno in REFUSED)


def exit_status(main: Callable[..., int | None]) -> Callable[..., int]:
    """Decorator for a `main` function: makes it return the exit status, and show some errors without a traceback.

    The status is what `main` returns, 0 for None; 2 after an error that `gets_sentence`, printed on standard error
    after the name of the program's file, or without memory; 130 after Ctrl-C; 0 if the reader of standard output has
    closed it.
    """
    program = Path(inspect.getfile(inspect.unwrap(main))).name

    @functools.wraps(main)
    def wrapper(*args, **kwargs) -> int:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # print ? for characters the terminal's encoding lacks
        handler = logging.StreamHandler()
        handler.setFormatter(_Formatter())
        logging.basicConfig(handlers=[handler])
        logging.getLogger("data").setLevel(logging.INFO)
        try:
            status = main(*args, **kwargs) or 0
            print(end="", flush=True)  # raises here, not when Python exits, if standard output is closed
            return status
        except KeyboardInterrupt:
            print()
            return 130
        except BrokenPipeError:
            if output_is_closed():
                return 0
            raise
        except Exception as error:
            if is_out_of_memory(error):
                error = Mistake("there is not enough memory: ask for less text, or for another --device")
            if not gets_sentence(error):
                raise
            say(f"{program}: {sentence(error)}", sys.stderr)
            return 2

    return wrapper


def output_is_closed() -> bool:
    """Whether the reader of standard output, such as `head`, has closed it. Further output is discarded then."""
    try:
        print(flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def sentence(error: BaseException | str) -> str:
    """Returns an error's message, or another text, on one line, cut if it is longer than LONGEST."""
    line = shown(" ".join(str(error).split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"


def with_hint(message: str) -> str:
    """Returns a parser's message, with what to write instead if HINTS knows it."""
    return message + next((hint for pattern, hint in HINTS.items() if re.search(pattern, message)), "")
