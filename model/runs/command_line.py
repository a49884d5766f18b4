"""The command line of train.py: reads all options, fills in those that are unset, and refuses invalid ones.

A wrong option is found in one of these places, in this order, and before anything in a run's folder is changed:

    configs.parse            unknown names, wrong types
    read_options             options that contradict each other, or the model of --model.init_from
    trainer_options          options, strategies and callbacks of Lightning's Trainer that do not work in a run
    constructors             invalid values: each config class, and TextDataModule, checks its own when it is built
    train.build_trainer      strategies and accelerators that this machine lacks
    hooks before training    what depends on text or devices, such as in GPTModule.configure_model

Each raises a `Mistake`, which passes through train.py to `exit_status` (model/runs/terminal.py). There its sentence is
printed on standard error, and the program ends with status 2. If Lightning raises its own exception, train.py makes it
a `Mistake` with the help of `explanation`.
"""

import dataclasses
import logging
import os
import re
import warnings
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from model.checkpoint import read_checkpoint
from model.glass import Glass, open_run
from model.gpt import GPTConfig
from model.mistakes import Missing, Mistake, check, check_range, is_out_of_memory
from model.runs.code import read_code, shown_command
from model.runs.configs import defaults_of, layered, merged, parse, plain_config, read_config
from model.runs.run import CONFIG, ENDED, RUNS, Run
from model.runs.trainer_options import as_list, check_trainer
from model.training.hardware import fast_precision

# Not in config.yaml, because they belong to this call: a run that is started from the file has others.
NOT_SAVED = ("config", "print_config", "name", "resume", "resume_or_start", "other_code")
# Options that name files. A resumed run may be a stranger's, so a warning names the files that lie OUTSIDE, before they
# are read.
PATHS = ("data.files", "data.validation_files", "data.dataset", "data.cache_dir")
OUTSIDE = re.compile(r"[/\\~]|[A-Za-z]:|.*\.\.")  # paths that lead out of the current folder
MAY_DIFFER = ("context_length", "dropout")  # options of the network that --model.init_from does not fix


log = logging.getLogger(__name__)


@dataclasses.dataclass
class Options:
    """All options of a run, and the run or the model from which it starts."""

    config: Namespace
    command: str  # what was typed, for code.json
    saved: str  # the run's config.yaml: `config` without NOT_SAVED
    run: Run | None  # the run to resume; None for a new one
    trained: Glass | None  # the model of --model.init_from, if a new run starts from one
    tokenizer: str | dict[str, Any] | None  # for TextDataModule: a name, or the tokenizer of a model as a dict


def read_options(parser: ArgumentParser, args: list[str], default_config: Path) -> Options:
    """Reads all options. The value of an option comes from the first of these that sets it:

    1. what is typed;
    2. the files of --config, the last one first;
    3. the config of the run to resume; or `default_config`, if there is neither --resume nor --config;
    4. the default.

    Then fills in what the machine or a model decides: trainer.precision if it is unset, and the network of
    --model.init_from.

    Raises a `Mistake` for options that contradict each other, and for runs and models that are missing or damaged.
    """
    chosen = chosen_options(parser, args)
    run = run_to_resume(chosen)
    base = base_options(parser, chosen, run, default_config)
    config = layered(parser, base, chosen)
    if run and config.model.optimizer.algorithm != base.model.optimizer.algorithm:
        trained_with = base.model.optimizer.algorithm
        raise Mistake(f"{run.folder} needs --model.optimizer.algorithm {trained_with}: write that, or start a new run")
    check_range("seed_everything", config.seed_everything, 0, 2**32 - 1)  # numpy's limits
    check_trainer(config.trainer)
    trained, found = None, Namespace()
    if config.model.init_from is not None and not run:
        trained = open_run(
            config.model.init_from,
            other_code="accept" if config.other_code else "refuse",
            tokenizer=chosen.get("data.tokenizer"),  # of a Hugging Face model that comes without one
        )
        check(trained.gpt.is_finite(), "model.init_from", "a model that has not diverged", config.model.init_from)
        found = options_of_model(trained, chosen)
    if config.trainer.precision is None:
        found["trainer.precision"] = fast_precision(config.trainer.accelerator)
    config = layered(parser, config, found)
    saved = config.clone()
    for option in NOT_SAVED:
        saved.pop(option)
    text = parser.dump(saved, skip_unset=False)
    return Options(
        config,
        shown_command(args),
        text,
        run,
        trained,
        tokenizer_of(config.data.tokenizer, chosen, run, trained),
    )


def chosen_options(parser: ArgumentParser, args: list[str]) -> Namespace:
    """Returns the options that the user sets, by typing them or in files of --config."""
    typed = parse(parser, args)
    files = [parse_file(parser, Path(file)) for file in typed.get("config") or []]
    return merged(*files, typed)


def parse_file(parser: ArgumentParser, path: Path) -> Namespace:
    """Parses a file of --config. Raises a `Mistake` if it is missing, or is not a file of options."""
    if not path.is_file():
        raise Missing(f"there is no config {path}: the project's own configs are in configs/")
    read_config(path)  # refuses aliases, with which the parser could fill the memory
    options = parse(parser, path.read_text(encoding="utf-8"), f"{path}: ")
    if "config" in options:
        raise Mistake(f"{path} has the option config: pass both files with --config instead")
    return options


def run_to_resume(chosen: Namespace) -> Run | None:
    """Opens the run of --resume, or of --resume_or_start if it has begun and not ended; None for a new run.

    Raises a `Mistake` for options that exclude each other.
    """
    if chosen.get("resume_or_start"):
        if chosen.get("name") is None or chosen.get("resume") is not None:
            raise Mistake("--resume_or_start resumes or starts the run of --name: write --name, and leave out --resume")
        run = Run(Path(os.path.expanduser(chosen.get("trainer.default_root_dir") or RUNS), chosen.name))
        return Run.open(run.folder, CONFIG) if run.checkpoint and run.state not in ENDED else None
    if chosen.get("resume") is None:
        return None
    for other in ("name", "model.init_from"):
        if chosen.get(other) is not None:
            raise Mistake(f"--resume continues a run in its own folder, with its own weights: leave out --{other}")
    run = Run.open(Path(chosen.resume), CONFIG)
    read_code(run.folder)  # here, so that a damaged file is refused before any text is read
    read_checkpoint(run.resumed, on_disk=True)
    return run


def base_options(parser: ArgumentParser, chosen: Namespace, run: Run | None, default_config: Path) -> Namespace:
    """Returns the options over which the `chosen` ones are laid: the run's, or `default_config` if none is chosen."""
    if run:
        path = run.folder / CONFIG
        known = {*defaults_of(parser).keys()} - {*NOT_SAVED}
        base = parse(parser, plain_config(path, {*chosen.keys()}, known), f"{path}: ")
        for name in PATHS:
            outside = [file for file in as_list(base.get(name)) if OUTSIDE.match(file)]
            if outside and name not in chosen:
                log.warning("%s names what lies outside the current folder: %s %s", path, name, " ".join(outside))
        return base
    if "config" in chosen:
        return Namespace()
    base = parse_file(parser, default_config)
    base.config = [str(default_config)]
    return base


def options_of_model(glass: Glass, chosen: Namespace) -> Namespace:
    """Returns the options that the model of --model.init_from decides: its network; and data.tokenizer null, its own.

    Raises a `Mistake` if the user has `chosen` another value than the model's, or more positions than it has learned.
    """
    values = dataclasses.asdict(glass.gpt.config)
    for name, trained in values.items():
        if f"model.gpt.{name}" not in chosen:
            continue
        value = chosen.model.gpt[name]
        is_unset = value is None and GPTConfig.__dataclass_fields__[name].default is None
        if name in MAY_DIFFER:
            values[name] = value
        elif value != trained and not is_unset:
            raise Mistake(
                f"model.gpt.{name} is {value}, but the model of --model.init_from has {trained}: leave the option out, "
                "as configs/finetune_gpt2.yaml does"
            )
    if values["position"] == "learned" and values["context_length"] > glass.gpt.config.context_length:
        raise Mistake(
            f"model.gpt.context_length is {values['context_length']}, but the model of --model.init_from has learned "
            f"only {glass.gpt.config.context_length} positions: set it to that or less"
        )
    found = Namespace({f"model.gpt.{name}": value for name, value in values.items()})
    if "data.tokenizer" not in chosen:
        found["data.tokenizer"] = None
    return found


def tokenizer_of(
    name: str | None, chosen: Namespace, run: Run | None, trained: Glass | None
) -> str | dict[str, Any] | None:
    """Returns the tokenizer that the option data.tokenizer stands for: its `name`, or that of a model as a dict."""
    if name is not None and "/" not in name:
        return name
    if run and "data.tokenizer" not in chosen:  # the model may be gone, so take the tokenizer from the checkpoint
        return read_checkpoint(run.resumed, on_disk=True)["tokenizer"]
    owner = open_run(name, other_code="accept") if name else trained
    return owner.tokenizer.to_dict() if owner else None


def explanation(error: Exception, run: Run) -> str | None:
    """Returns a sentence for an error in another library that options or the machine caused; None for any other error.

    train.py raises the sentence as a `Mistake`. It shows all other errors, but for those that are a `Mistake` already,
    with their traceback, because they are errors in code.
    """
    cause: BaseException = error
    while cause.__cause__:  # jsonargparse wraps what the constructor of an option's class raises, perhaps twice
        cause = cause.__cause__
    # Lightning: options that do not go together, or a package that is not installed. Python names the module that an
    # import lacks, Lightning does not.
    is_missing = isinstance(cause, ModuleNotFoundError) and cause.name is None
    # EarlyStopping raises a RuntimeError for a metric that is not logged, such as val_loss instead of val/loss.
    lacks_metric = "Early stopping conditioned on metric" in str(cause)
    if is_missing or lacks_metric or isinstance(cause, MisconfigurationException):
        return str(cause)
    if is_out_of_memory(error):
        message = "out of memory: lower data.batch_size, data.validation_batch_size or model.gpt.context_length"
        return f"{message}; {run.how_to_resume}"
    return None


def quiet() -> None:
    """Hides what Lightning and torch print at every start. Errors and this project's warnings still show."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # The first, because an epoch is what lies between two validations.
    for hidden in ("is smaller than the logging interval", "`isinstance.treespec, LeafSpec"):
        warnings.filterwarnings("ignore", message=f".*{hidden}")
