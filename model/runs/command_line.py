"""The command line of train.py: what options say, which are refused, and what a run starts from."""

import dataclasses
import logging
import re
import warnings
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from model.checkpoint import read_checkpoint
from model.glass import Glass, open_run
from model.gpt import GPTConfig
from model.mistakes import Missing, Mistake, check_range, is_out_of_memory
from model.runs.configs import layered, parse, plain_config, read_config
from model.runs.run import CONFIG, Run
from model.training.hardware import fast_precision

# Strategies that cut matrices in parts, or start processes that are no programs of their own.
REFUSED_STRATEGIES = re.compile("fsdp|deepspeed|modelparallel|spawn|fork|notebook", re.IGNORECASE)
OF_EPOCHS = ("min_steps", "min_epochs", "max_epochs", "limit_train_batches")
REFUSED_CALLBACKS = {
    "BatchSizeFinder": "would train on other batches before the run: try sizes by runs of a few trainer.max_steps",
    "LearningRateFinder": "would train on other batches before the run: try rates by runs of a few trainer.max_steps",
    "GradientAccumulationScheduler": "counts epochs, and no epoch ends: set trainer.accumulate_grad_batches",
}
OF_THIS_CALL = ("config", "print_config", "name", "resume")  # options that no other run should have
FREE_TO_CHOOSE = ("context_length", "dropout")  # where a run starts from a trained model


@dataclasses.dataclass
class Options:
    """All options of a run, and what it goes on from or starts from."""

    config: Namespace
    saved: str  # its config.yaml, without what belongs to this call alone: it starts a run like this one
    checkpoint: Path | None  # that it goes on from, None for a new run
    trained: Glass | None  # the model that it starts from, if any


def read_options(parser: ArgumentParser, args: list[str], default_config: Path) -> Options:
    """What is typed, over the files of --config, over a resumed run's config or `default_config`, over the defaults.

    With what a person leaves open filled in: precision, tokenizer, and the network of a model that a run starts from.

    Raises a `Mistake` for options that contradict each other, and for runs and models that are missing or damaged.
    """
    for arg in args:
        if arg.encode(errors="replace").decode() != arg:
            raise Mistake(f"{arg!a} is not UTF-8, which config.yaml is: rename it, or write a pattern that it fits")
    typed, given = parse(parser, args), Namespace()
    for file in typed.get("config") or []:
        given.update(parse_file(parser, Path(file)))
    given.update(typed)
    beneath, checkpoint, trained = Namespace(), None, None
    if given.get("resume") is not None:
        for other in ("name", "model.init_from"):
            if given.get(other) is not None:
                raise Mistake(f"--resume continues a run in its own folder, with its own weights: leave out --{other}")
        run = Run.open(Path(given.resume), CONFIG)
        given.resume, checkpoint = str(run.folder), run.resumed
        beneath = parse(parser, plain_config(run.folder / CONFIG, given.keys()), f"{run.folder / CONFIG}: ")
    elif "config" not in given:
        given.config = [str(default_config)]
        beneath = parse_file(parser, default_config)
    config = layered(parser, beneath, given)
    check_range("seed_everything", config.seed_everything, 0, 2**32 - 1)  # numpy's limits
    check_trainer(config.trainer)
    if checkpoint and config.trainer.fast_dev_run:
        raise Mistake("trainer.fast_dev_run leaves nothing, so it cannot continue a run: leave out --resume")
    if config.model.init_from is not None and not checkpoint:
        trained = trained_model(config, given)
    if config.trainer.precision is None:
        config.trainer.precision = fast_precision(config.trainer.accelerator)
    saved = config.clone()
    for option in OF_THIS_CALL:
        saved.pop(option)
    text = parser.dump(saved, skip_unset=False)
    named = config.data.tokenizer
    if named is None or "/" in named:  # it is that of a model
        if checkpoint and "data.tokenizer" not in given:  # whatever has become of the model
            config.data.tokenizer = read_checkpoint(checkpoint, on_disk=True)["tokenizer"]
        elif owner := open_run(named) if named else trained:
            config.data.tokenizer = owner.tokenizer.to_dict()
    return Options(config, text, checkpoint, trained)


def parse_file(parser: ArgumentParser, path: Path) -> Namespace:
    """The options in a file of --config. Raises a `Mistake` if there is no such file, or it holds something else."""
    if not path.is_file():
        raise Missing(f"there is no config {path}: those of this project are in configs/")
    read_config(path)  # which refuses what a parser would take any memory for
    options = parse(parser, path.read_text(encoding="utf-8"), f"{path}: ")
    if "config" in options:
        raise Mistake(f"{path} names another config: name both by --config")
    return options


def trained_model(config: Namespace, given: Namespace) -> Glass:
    """The model that --model.init_from names. Puts its network and its tokenizer into `config`.

    Raises a `Mistake` if a person has `given` what the model does not have, or a context longer than its positions.
    """
    chosen, glass = config.model.gpt, open_run(config.model.init_from)
    network = dataclasses.asdict(glass.gpt.config)
    for name, own in network.items():
        if f"model.gpt.{name}" not in given:
            continue
        value = chosen[name]
        is_open = value is None and GPTConfig.__dataclass_fields__[name].default is None
        if name in FREE_TO_CHOOSE:
            network[name] = value
        elif value != own and not is_open:
            raise Mistake(
                f"model.gpt.{name} is {value}, but the model of --model.init_from has {own}: leave it out, as "
                "configs/finetune_gpt2.yaml does"
            )
    if network["position"] == "learned" and network["context_length"] > glass.gpt.config.context_length:
        raise Mistake(
            f"model.gpt.context_length is {network['context_length']}, but the model of --model.init_from has learned "
            f"only {glass.gpt.config.context_length} positions: write that or less"
        )
    chosen.update(Namespace(**network))
    if "data.tokenizer" not in given:
        config.data.tokenizer = None
    return glass


def check_trainer(options: Namespace) -> None:
    """Raises a `Mistake` for options of Lightning's Trainer that do harm in a run counted in steps."""
    interval, accumulate = options.val_check_interval, options.accumulate_grad_batches
    check_range("trainer.log_every_n_steps", options.log_every_n_steps, 1)
    check_range("trainer.accumulate_grad_batches", accumulate, 1)
    for name in OF_EPOCHS:
        if str(options[name]) not in ("None", "-1", "1.0"):  # limit_train_batches of 1 is one batch, of 1.0 all
            raise Mistake(f"trainer.{name}: text is read without an end, so no epoch ends: set trainer.max_steps")
    if REFUSED_STRATEGIES.search(str(options.strategy)):
        raise Mistake("trainer.strategy: each device has the whole model and a program of its own, so write ddp")
    is_whole = isinstance(interval, int) and interval > 0 and interval % accumulate == 0
    if interval is not None and not is_whole:
        raise Mistake(f"trainer.val_check_interval: {interval} is no number of batches that {accumulate} divides")
    for callback in as_list(options.callbacks):
        name = callback.class_path.rpartition(".")[2]
        if name in REFUSED_CALLBACKS:
            raise Mistake(f"trainer.callbacks: {name} {REFUSED_CALLBACKS[name]}")


def as_list(value: Any) -> list:
    """An option of the Trainer that may be one object, several, or none (None, or a logger's true or false)."""
    if isinstance(value, list):
        return value
    return [] if value is None or isinstance(value, bool) else [value]


def explanation(error: Exception, run: Run) -> str | None:
    """The sentence for an error that options or the machine have made, and not the code."""
    cause = error.__cause__ or error  # jsonargparse wraps what a class of the options raises
    if isinstance(cause, MisconfigurationException):  # Lightning's, for options that do not go together
        return str(cause)
    if is_out_of_memory(error):
        said = "out of memory: lower data.batch_size, data.validation_batch_size or model.gpt.context_length"
    elif isinstance(error, ConnectionResetError) or "DataLoader worker (pid" in str(error):  # of one that is gone
        said = "a process that loads data has ended, often for want of memory: lower data.num_workers"
    else:
        return None
    return f"{said}; {run.how_to_resume}"


def quiet() -> None:
    """Hides what Lightning and torch tell every user at every start; errors and this project's warnings still show."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    said = ("does not have many workers", "lr_scheduler.step", "has `__len__` defined", "isinstance.treespec, LeafSpec")
    warnings.filterwarnings("ignore", message=f".*({'|'.join(said)})")
    logging.basicConfig(format="%(message)s")
