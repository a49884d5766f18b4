"""A person's mistakes, and what the machine does to a run, as one sentence and exit status 2.

For train.py and the scripts. Errors in code keep their traceback; where an error was raised tells which it is. Nothing
heavy is imported here, so that --help is fast.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import functools
import io
import os
import re
import shlex
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import data.mistakes
from model.checks import Mistake, listed
from model.runs.folder import BEST, CHECKPOINTS, LAST, PREVIOUS

if TYPE_CHECKING:
    import jsonargparse

MISTAKES = Mistake, data.mistakes.Mistake
STANDARD_LIBRARY = sysconfig.get_path("stdlib")
LONGEST = 1000  # characters of a sentence, which may quote a file
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")  # RuntimeErrors of torch's allocators

# jsonargparse has no exception types for most mistakes, only these phrases; its own sentence is the fallback.
# tests/model/runs/test_mistakes.py fails where a new version words them differently.
UNRECOGNIZED = re.compile(r"unrecognized arguments: --([^\s=]+)")
UNEXPECTED = re.compile(r"unrecognized arguments: ([^-\s]\S*)")
REFUSED_KEY = re.compile(r"'(.+?)'")
BAD_VALUE = re.compile(r'Parser key "(.+?)":\s+(.*)(?:Got|Given) value: (.*)\Z', re.DOTALL)
BAD_CLASS = re.compile(r"Problem with given class_path '(.+)':\s+(.+)")
EXPECTED = re.compile(r"Expected a (?:<class '(.+)'>|(?:typing\.)?Literal\[(.+)\])(?:\..*)?$", re.MULTILINE)


def exit_status(
    program: str,
    mistakes: tuple[type[Exception], ...] = (ValueError, OSError),  # until all rooms raise Mistake
) -> Callable[[Callable[..., int | None]], Callable[..., int]]:
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
            except (*MISTAKES, *mistakes) as error:
                if isinstance(error, BrokenPipeError) and output_is_closed():
                    return 0
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
def checking_options(kind: type[Exception] = Exception) -> Iterator[None]:
    """What libraries raise about the options that the block gives them becomes a `Mistake`.

    An error in whose traceback another file has a part, the project's or the person's, is one in code and passes.

    kind: of exceptions, if not all.
    """
    try:
        yield
    except MISTAKES:
        raise
    except kind as error:
        _, caller, *raised_in = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        if not all(filename == caller or is_library(filename) for filename in raised_in) or caller in raised_in[-1:]:
            raise
        raise Mistake(sentence(error)) from error


def is_library(filename: str) -> bool:
    """Whether this is the source of an installed package, or of Python itself."""
    return filename.startswith(("<frozen ", STANDARD_LIBRARY)) or "-packages" in filename  # site- or dist-packages


@contextmanager
def explain_machine(run_dir: Path) -> Iterator[None]:
    """Says what to do where the machine has no memory or room for a run, or has killed a process that loads its data.

    Raises a `Mistake` with such a sentence; other errors pass.
    """
    try:
        yield
    except (RuntimeError, OSError, MemoryError, Mistake) as error:
        resume = f", then continue with {resume_command(run_dir)}" if can_resume(run_dir) else ""
        if isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY):
            options = "data.batch_size, data.validation_batch_size or model.gpt.context_length"
            raise Mistake(f"out of memory: lower {options}{resume}") from error
        if isinstance(error, RuntimeError) and "DataLoader worker" in str(error):
            reason = str(error).splitlines()[0].split(". ")[0]
            said = f"a process that loads data has ended ({reason}), often for want of memory: lower data.num_workers"
            raise Mistake(said + resume) from error
        cause = error.__cause__ or error
        if isinstance(cause, OSError) and cause.errno in NO_ROOM and "make room" not in str(error):
            # What writes to an open file names none.
            place = "" if isinstance(error, Mistake) or error.filename else f"{run_dir}: "
            raise Mistake(f"{place}{sentence(error)}: make room{resume}") from error
        raise


def can_resume(run_dir: Path) -> bool:
    return any((run_dir / CHECKPOINTS / name).exists() for name in (LAST, PREVIOUS, BEST))


def resume_command(run_dir: Path) -> str:
    return f"--resume {shlex.quote(str(run_dir))}"


def parse(parser: jsonargparse.ArgumentParser, args: list[str]) -> jsonargparse.Namespace:
    """`parser.parse_args`, for a parser with exit_on_error=False. Raises a Mistake with one sentence for a mistake."""
    try:
        return parser.parse_args(args)
    except RecursionError as error:
        raise Mistake("the config is nested too deeply") from error
    except argparse.ArgumentError as error:
        raise Mistake(explain(error, list(parser.get_defaults().keys()))) from error


def explain(error: argparse.ArgumentError, options: Collection[str]) -> str:
    """jsonargparse's error as one sentence, for an unknown name with the one of `options` that is probably meant."""
    message = error.message
    if words := UNEXPECTED.match(message):
        return f"{words[1]} follows no option: quote several values, as in --data.files 'my/*.txt' or '[a.txt, b.txt]'"
    if unknown := UNRECOGNIZED.match(message):
        return f"there is no option --{unknown[1]}{suggestion(unknown[1], options, '--')}"
    if isinstance(error.__cause__, KeyError) and (parts := REFUSED_KEY.findall(message)):
        key = ".".join(parts)  # group and name within it
        return f"the config has an unknown key {key}{suggestion(key, options)}"
    if bad := BAD_VALUE.match(message):
        key, reasons, value = bad.groups()
        if found := BAD_CLASS.search(reasons):
            return f"{key} cannot have {found[1]}: {found[2]}"
        allowed: list[str] = []
        for kind, words in EXPECTED.findall(reasons):  # a type, or the words of a Literal, separated by commas
            allowed += [kind.replace("NoneType", "null")] if kind else words.split(", ")
        if "list" in allowed or ("tuple" in allowed and "," in value):
            return f"{key} cannot be {value!r}: write it in brackets, [{', '.join(value.strip('[]()').split(','))}]"
        if allowed:
            return f"{key} cannot be {value!r}: expected {listed(allowed, 'or')}"
    remedy = "; name one of configs/, or the config.yaml of a run" if "File does not exist" in message else ""
    return re.sub(r'^Parser key "(.+?)":', r"\1:", message) + remedy


def suggestion(name: str, options: Collection[str], prefix: str = "") -> str:
    """For example "; did you mean --trainer.max_steps?" for "max_steps"; empty if no option is similar.

    A name without its group may stand for several options: then all of them are listed. Initials count: lr is
    learning_rate.
    """

    def likeness(option: str) -> float:
        word, own = name.rpartition(".")[2], option.rpartition(".")[2]
        initials = "".join(part[:1] for part in own.split("_"))
        if word == own or (word == initials and "_" in own):
            return 1.0
        return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in ((name, option), (word, own)))

    likenesses = {option: likeness(option) for option in options}
    best = max(likenesses.values(), default=0.0)
    meant = [prefix + option for option in likenesses if likenesses[option] == best]
    return f"; did you mean {listed(meant, 'or')}?" if best >= 0.8 else ""
