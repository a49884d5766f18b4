"""A person's mistakes, and what the machine does to a run, as one sentence and exit status 2.

For train.py and the scripts. Errors in code keep their traceback; where an error was raised tells which it is. Nothing
heavy is imported here, so that --help is fast.
"""

import argparse
import difflib
import errno
import functools
import io
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from model.checks import Mistake, is_out_of_memory, listed
from model.runs.folder import how_to_resume

STANDARD_LIBRARY = (sysconfig.get_path("stdlib"), "<frozen ")
LONGEST = 1000  # characters of a sentence, which may quote a file
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# jsonargparse has no exception types for most mistakes, only these phrases; its own sentence is the fallback.
# tests/model/runs/test_mistakes.py fails where a new version words them differently.
UNKNOWN = re.compile(
    r"unrecognized arguments: (--)?([^\s=]+)|Group '(.+)' does not accept option '(.+)'|Option '(.+)' is not accepted"
)
NO_GROUP = re.compile(r'Key "(.+)\.\w+" not found')
BAD_VALUE = re.compile(r'Parser key "(.+?)":\s+(.*)(?:Got|Given) value: (.*)\Z', re.DOTALL)
BAD_CLASS = re.compile(r"Problem with given class_path .+:\s+.+(?:(?<=:)\n.+)?|Expected a dot import path.+")
EXPECTED = re.compile(r"Expected a (?:<class '(.+)'>|(?:typing\.)?Literal\[(.+)\])")


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
def checking_options() -> Iterator[None]:
    """What libraries raise about the options that the block gives them becomes a `Mistake`.

    An error in which another file has a part, the project's or the person's, is one in code and passes.
    """
    try:
        yield
    except Mistake:
        raise
    except Exception as error:
        caller = traceback.extract_tb(error.__traceback__)[1].filename
        raise_from_code(error, caller)
        raise Mistake(str(error)) from error


def raise_from_code(error: Exception, *wiring: str) -> None:
    """Raises the error, or what has caused it, if code has a part in it that is no library's, nor of these files."""
    cause: BaseException | None = error
    while cause is not None:
        files = [frame.filename for frame in traceback.extract_tb(cause.__traceback__)]
        # Of Python itself, or in site-packages or dist-packages.
        own = [file for file in files if not file.startswith(STANDARD_LIBRARY) and "-packages" not in file]
        if set(own) - {__file__, *wiring} or files[-1] in own:
            raise cause from None
        cause = cause.__cause__


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
        raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
        is_cut_off = isinstance(error, (ConnectionError, EOFError)) and "multiprocessing" in raised_in  # within a batch
        if is_out_of_memory(error):
            said = "out of memory: lower data.batch_size, data.validation_batch_size or model.gpt.context_length"
        elif "DataLoader worker (pid" in said or is_cut_off:
            said = "a process that loads data has ended, often for want of memory: lower data.num_workers"
        elif isinstance(cause, OSError) and cause.errno in NO_ROOM and "make room" not in said:
            place = cause.filename or run_dir  # what writes to an open file names none
            said = f"{said}: make room" if isinstance(error, Mistake) else f"{place}: {cause.strerror}: make room"
        else:
            raise
        raise Mistake(f"{said}; {how_to_resume(run_dir)}") from error


def parse(parser: Any, args: list[str], **options: Any) -> Any:
    """`parse_args` of jsonargparse's parser, which has exit_on_error=False. Raises a `Mistake` with one sentence."""
    try:
        return parser.parse_args(args, **options)
    except argparse.ArgumentError as error:
        raise_from_code(error)
        raise Mistake(explain(error.message, list(parser.get_defaults().keys()))) from error


def explain(message: str, options: Collection[str]) -> str:
    """jsonargparse's error as one sentence, for an unknown name with those of `options` that are probably meant."""
    if unknown := UNKNOWN.match(message):
        dashes, *names = unknown.groups()
        if names[0] and not dashes:
            return f"{message}: quote several values, as in --data.files 'my/*.txt' or '[a.txt, b.txt]'"
        advice = "" if dashes else ": delete this line of the config, which is the run's config.yaml for --resume"
        return message + (suggestion(".".join(filter(None, names)), options) or advice)
    if group := NO_GROUP.match(message):
        return f"{group[1]} must hold options; leave it out for the defaults"
    if bad := BAD_VALUE.match(message):
        key, reasons, value = bad.groups()
        if found := BAD_CLASS.search(reasons):
            return f"{key}: {found[0]}"
        if allowed := ", ".join(kind or words for kind, words in EXPECTED.findall(reasons)):
            return f"{key} cannot be {value!r}: expected {allowed.replace('NoneType', 'null')}"
    return message


def suggestion(name: str, options: Collection[str]) -> str:
    """For example "; did you mean trainer.max_steps?" for "max_steps"; empty if no option is similar.

    Only the part after the last dot counts, which several groups may have: then all of them are listed.
    """
    last_parts = {option: option.rpartition(".")[2] for option in options}
    closest = difflib.get_close_matches(name.rpartition(".")[2], set(last_parts.values()), 1, 0.8)
    meant = [option for option, last in last_parts.items() if last in closest]
    return f"; did you mean {listed(meant, 'or')}?" if meant else ""
