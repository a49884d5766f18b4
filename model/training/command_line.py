"""From what a person types to what Lightning's command line reads, and from its errors to a sentence."""

from __future__ import annotations

import argparse
import difflib
import logging
import re
import warnings
from collections.abc import Iterable
from pathlib import Path

from model.checkpoint import find_checkpoint
from model.training.runs import resume_point

SUBCOMMANDS = ("fit", "validate")


def expand(args: list[str], default_config: Path) -> tuple[str, list[str]]:
    """The subcommand, and the options with everything filled in that may be left out.

    No subcommand means fit. `--resume RUN` puts the run's own config before the other options and its newest whole
    checkpoint behind them; so does `validate`, with its --ckpt_path. Without any --config it is `default_config`.

    Raises:
        FileNotFoundError, ValueError: for a run or checkpoint that is not there, or damaged, and for options that
            contradict each other.
    """
    subcommand, args = (args[0], args[1:]) if args and args[0] in SUBCOMMANDS else ("fit", args)
    # One number that the model and the data share; the model's name for it is the one that configs have.
    args = [re.sub("^--data.context_length(?==|$)", "--model.gpt.context_length", arg) for arg in args]
    if args and not args[0].startswith("-"):
        raise ValueError(f"unknown subcommand {args[0]!r}: write fit (or nothing), or validate")
    config = [] if has_option(args, "config") else ["--config", str(default_config)]
    if "--help" in args or "-h" in args:
        return subcommand, args
    resume, args = take_option(args, "resume")
    if subcommand == "validate":
        if resume is not None:
            raise ValueError(f"validate does not take --resume: write --ckpt_path {resume}")
        given, args = take_option(args, "ckpt_path")
        checkpoint = find_checkpoint(Path(given) if given else None)
        run_config = checkpoint.parent.parent / "config.yaml"
        if config and run_config.exists():
            config = ["--config", str(run_config)]
        return subcommand, [*config, *args, "--ckpt_path", str(checkpoint)]
    if resume is None:
        return subcommand, [*config, *args]
    if has_option(args, "ckpt_path"):
        raise ValueError(
            "--resume and --ckpt_path exclude each other: write --resume FILE to go on from a certain checkpoint of a "
            "run, or --ckpt_path FILE to begin a new run from it"
        )
    run_dir, checkpoint = resume_point(Path(resume))
    return subcommand, [
        "--config",
        str(run_dir / "config.yaml"),
        *args,
        "--resume",
        str(run_dir),
        "--ckpt_path",
        str(checkpoint),
    ]


def has_option(args: list[str], name: str) -> bool:
    names = {f"--{name}", "-c"} if name == "config" else {f"--{name}"}
    return any(arg.split("=")[0] in names for arg in args)


def take_option(args: list[str], name: str) -> tuple[str | None, list[str]]:
    """The value of `--name VALUE` or `--name=VALUE` (None without it), and the other arguments.

    Raises ValueError if it has no value, or is given twice.
    """
    places = [i for i, arg in enumerate(args) if arg.split("=")[0] == f"--{name}"]
    if not places:
        return None, args
    if len(places) > 1:
        raise ValueError(f"--{name} is given {len(places)} times: keep one")
    [i] = places
    if "=" in args[i]:
        return args[i].split("=", 1)[1], args[:i] + args[i + 1 :]
    if i + 1 == len(args):
        raise ValueError(f"--{name} needs a value")
    return args[i + 1], args[:i] + args[i + 2 :]


def sentence(error: BaseException, options: Iterable[str] = ()) -> str:
    """What is wrong, on one line; for an unknown option also the one of `options` most like it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    message = error.message if isinstance(error, argparse.ArgumentError) else str(error)
    if unknown := re.match(r"unrecognized arguments: --([^\s=]+)", message):
        return f"there is no option --{unknown[1]}{suggestion(unknown[1], options)}"
    if late := re.match(rf"unrecognized arguments: ({'|'.join(SUBCOMMANDS)})\b", message):
        return f"the subcommand comes first: python train.py {late[1]} --option ..."
    if unknown := re.match(r"Group '(.+)' does not accept option '(.+)'", message):
        key = f"{unknown[1]}.{unknown[2]}"
        return f"the config has an unknown key {key}{suggestion(key, options)}"
    if unknown := re.match(r"Option '(.+)' is not accepted", message):
        return f"the config has an unknown key {unknown[1]}{suggestion(unknown[1], options)}"
    key = re.match(r'Parser key "(.+?)":\s+', message)
    value = re.search(r"(?:Got|Given) value: (.*)\Z", message, re.DOTALL)
    if key and value:
        expected = dict.fromkeys(
            re.findall(r"Expected an? (?:<class '(\w+)'>|(.+?))(?:\. Got value.*)?$", message, re.MULTILINE)
        )
        kinds = [("null" if name == "NoneType" else name) or other.removeprefix("typing.") for name, other in expected]
        return f"{key[1]} cannot be {value[1]!r}: expected {' or '.join(kinds)}"
    if key:
        message = f"{key[1]}: {message[key.end() :]}"
    return " ".join(message.split())


def suggestion(key: str, options: Iterable[str]) -> str:
    options = list(options)
    leaves = [option for option in options if not any(other.startswith(f"{option}.") for other in options)]
    similar = difflib.get_close_matches(key, leaves, n=1, cutoff=0.8)
    return f"; did you mean {similar[0]}?" if similar else ""


def quiet() -> None:
    """Keeps what Lightning and torch tell every user at every start from a newcomer's terminal; errors still show."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in (
        ".*does not have many workers.*",
        ".*tensorboardX.*",
        ".*lr_scheduler.step.*",
        ".*exists and is not empty.*",
        ".*IterableDataset.*has `__len__` defined.*",
        ".*isinstance.treespec, LeafSpec.*",
    ):
        warnings.filterwarnings("ignore", message=message)
    logging.basicConfig(format="%(message)s")
