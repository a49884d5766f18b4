"""The command line of train.py: which options are refused, what a run starts from, and what is filled in."""

import dataclasses
import logging
import re
import warnings
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder

from data.tokenizers import NoTokenizer, Tokenizer
from model.checkpoint import read_checkpoint
from model.checks import Mistake, check_range, listed
from model.exchange.huggingface import local_folder
from model.runs.configs import plain_config, read_config
from model.runs.mistakes import parse
from model.runs.run import CONFIG, Run, model_of
from model.training.hardware import fast_precision
from model.training.initial import initial_config, place_of

# Strategies that cut matrices in parts, or start processes that are no programs of their own.
REFUSED_STRATEGIES = re.compile("fsdp|deepspeed|modelparallel|spawn|fork|notebook", re.IGNORECASE)
VALIDATION_METRICS = ["val/loss", "val/bits_per_byte"]  # what callbacks can monitor
# The parser insists on these options, since others are linked to them. The values mean "not typed".
UNSET = {"seed_everything": -1, "model.gpt.context_length": 0}


@dataclasses.dataclass
class Options:
    """All options of a run, and what it goes on from or starts from."""

    config: Namespace
    saved: str  # its config.yaml, without what belongs to this call alone: it starts a run like this one
    checkpoint: Path | None  # that it goes on from, None for a new run
    init_tokenizer: dict[str, Any] | None  # of the model that it starts from, None if it has none


def read_options(parser: ArgumentParser, args: list[str], default_config: Path) -> Options:
    """What is typed, with all that it leaves open: config, precision, tokenizer, and the model that a run starts from.

    `--resume RUN` puts the run's own config before the other options. Without --config it is `default_config`.

    Raises a `Mistake` for options that contradict each other, and for runs and models that are missing or damaged.
    """
    for before, arg in pairwise(["", *args]):
        if arg.encode(errors="replace").decode() != arg:
            raise Mistake(f"{arg!a} is not UTF-8, which config.yaml is: rename it, or write a pattern that it fits")
        if before in ("--config", "-c") or arg.startswith("--config="):
            read_config(Path(arg.removeprefix("--config=")))  # which refuses what a parser would take any memory for
    typed, checkpoint, init_tokenizer = typed_options(parser, args), None, None
    if typed.get("resume") is not None:
        for other in ("name", "model.init_from"):
            if typed.get(other) is not None:
                raise Mistake(f"--resume continues a run in its own folder, with its own weights: leave out --{other}")
        run = Run.open(Path(typed["resume"]), CONFIG)
        run_dir, checkpoint = run.folder, run.resumed
        args = [f"--config={plain_config(run_dir / CONFIG, typed)}", *args, f"--resume={run_dir}"]
    elif "config" not in typed:
        args = [f"--config={default_config}", *args]
    config = parse(parser, args)
    if missing := [name for name, _ in parser.get_defaults().items() if name not in config]:
        raise Mistake(f"{missing[0].rpartition('.')[0]} must hold options; leave it out for the defaults")
    check_range("seed_everything", config.seed_everything, 0, 2**32 - 1)  # numpy's limits
    check_trainer(config.trainer)
    if checkpoint is not None and config.trainer.fast_dev_run:
        raise Mistake("trainer.fast_dev_run leaves nothing, so it cannot continue a run: leave out --resume")
    if config.model.init_from is not None and checkpoint is None:
        init_tokenizer = take_over_model(config, typed)
    if config.trainer.precision is None:
        config.trainer.precision = fast_precision(config.trainer.accelerator)
    if is_model(config.data.tokenizer) and "/" not in config.data.tokenizer:
        config.data.tokenizer = f"./{config.data.tokenizer}"  # a model still where its folder is gone
    saved = config.clone()
    saved.name = saved.resume = None
    text = parser.dump(saved, skip_unset=False)
    if checkpoint is not None:
        config.model.init_from = None  # the checkpoint brings all weights
        if is_model(config.data.tokenizer) and "data.tokenizer" not in typed:
            config.data.tokenizer = str(checkpoint)  # whatever has become of the model that it is of
    if is_model(config.data.tokenizer):
        config.data.tokenizer = tokenizer_of(model_of(config.data.tokenizer))
    return Options(config, text, checkpoint, init_tokenizer)


def typed_options(parser: ArgumentParser, args: list[str]) -> dict[str, Any]:
    """The options in `args` and in the configs that they name, by their full names."""
    shown = [arg for arg in args if not arg.startswith("--print_config")]  # when they are complete
    typed = parse(parser, [*(f"--{name}={value}" for name, value in UNSET.items()), *shown], defaults=False)
    return {name: value for name, value in typed.items() if UNSET.get(name, ...) != value}


def take_over_model(config: Namespace, typed: Collection[str]) -> dict[str, Any] | None:
    """Puts the network and the tokenizer of the model that --model.init_from names into the config.

    Returns the model's tokenizer; None for a model without one, of which the person has named the tokenizer.
    """
    source = config.model.init_from = model_of(config.model.init_from)
    names_tokenizer = "data.tokenizer" in typed
    given = [name.removeprefix("model.gpt.") for name in typed if name.startswith("model.gpt.")]
    network = initial_config(source, config.model.gpt, given)
    config.model.gpt.update(Namespace(**dataclasses.asdict(network)))
    config.data.context_length = network.context_length
    if not names_tokenizer:
        config.data.tokenizer = place_of(source)
    try:
        return tokenizer_of(source)
    except NoTokenizer as error:
        if names_tokenizer:
            return None
        raise Mistake(f"{error}: name the one it was trained with by --data.tokenizer") from error


def is_model(name: str) -> bool:
    """Whether --data.tokenizer names a run or model, and not a tokenizer."""
    return "/" in name or (name not in ("bpe", "bytes") and Path(name).exists())


def tokenizer_of(source: str) -> dict[str, Any]:
    """The tokenizer of a checkpoint, or of what `from_huggingface` opens, as plain data. Raises as they do."""
    if Path(source).is_file():
        return read_checkpoint(Path(source), on_disk=True)["tokenizer"]
    return Tokenizer.from_folder(local_folder(source)).to_dict()


def check_trainer(options: Namespace) -> None:
    """Raises a `Mistake` for options of Lightning's Trainer that do harm in a run counted in steps."""
    interval, accumulate = options.val_check_interval, options.accumulate_grad_batches
    check_range("trainer.log_every_n_steps", options.log_every_n_steps, 1)
    check_range("trainer.accumulate_grad_batches", accumulate, 1)
    repeats = str(options.limit_train_batches) not in ("None", "1.0")  # and the number 1, which is one batch
    is_whole = isinstance(interval, int) and interval > 0 and interval % accumulate == 0
    if options.min_epochs or options.min_steps:
        raise Mistake(
            "trainer.min_steps and min_epochs: of text without an end no epoch ends, so no run would stop early"
        )
    if options.max_epochs not in (None, -1) and not options.fast_dev_run:
        raise Mistake("trainer.max_epochs: training is counted in steps here, set trainer.max_steps")
    if repeats and not (options.overfit_batches or options.fast_dev_run):
        raise Mistake("trainer.limit_train_batches: would repeat the same batches, set trainer.max_steps")
    if REFUSED_STRATEGIES.search(str(options.strategy)):
        raise Mistake("trainer.strategy: each device has the whole model and a program of its own, so write ddp")
    if not is_whole and not isinstance(interval, float | None):
        raise Mistake(f"trainer.val_check_interval: {interval} is no number of batches that {accumulate} divides")
    for monitor in (callback.get("init_args.monitor") for callback in as_list(options.callbacks)):
        if monitor not in (None, "step", *VALIDATION_METRICS):
            raise Mistake(f"trainer.callbacks: monitor is {monitor}: write {listed(VALIDATION_METRICS, 'or')}")


def check_callbacks(callbacks: list) -> None:
    """Raises a `Mistake` for callbacks that train steps which are not of the run."""
    for callback in callbacks:
        if isinstance(callback, BatchSizeFinder | LearningRateFinder):
            raise Mistake(
                f"trainer.callbacks: {type(callback).__name__} would train on other batches before the run: try sizes "
                "and rates by runs of a few trainer.max_steps"
            )


def as_list(value: Any) -> list:
    """An option of the Trainer that may be one object, several, or none (None, or a logger's true or false)."""
    if isinstance(value, list):
        return value
    return [] if value is None or isinstance(value, bool) else [value]


def quiet() -> None:
    """Hides what Lightning and torch tell every user at every start; errors and this project's warnings still show."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    said = ("does not have many workers", "lr_scheduler.step", "has `__len__` defined", "isinstance.treespec, LeafSpec")
    warnings.filterwarnings("ignore", message=f".*({'|'.join(said)})")
    logging.basicConfig(format="%(message)s")
