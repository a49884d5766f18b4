"""The options of train.py: the overview of --help, what is filled in, what is refused, and what is saved."""

from __future__ import annotations

import argparse
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from model.checks import check_range
from model.files import write_atomically
from model.runs.folder import (
    CONFIG,
    FolderLock,
    find_checkpoint,
    find_model,
    name_is_taken,
    read_config,
    resume_point,
    run_of,
    with_checksum,
)
from model.training.initial import tokenizer_of

SUBCOMMANDS = ("fit", "validate")
# Groups of options, an outer one before those within.
SECTIONS = (
    *("data", "model", "model.gpt", "model.optimizer", "model.schedule"),
    *("trainer", "attention", "samples", "checkpoints"),
)
# Of the Trainer's options those that take classes, and what the texts of all others look like: no dotted name of a
# class, path, address or YAML.
TAKE_CLASSES = ("trainer.callbacks", "trainer.logger", "trainer.plugins")
PLAIN_TEXT = re.compile(r"[\w:,+ -]*")

OVERVIEW = """\
python train.py [fit | validate] [--config FILE] [--OPTION VALUE]...

Trains a GPT: by default configs/default.yaml, in minutes on two CPU cores. An option here overrides the config's.
Below are the options that people use. --help lists all of them after these, with types and defaults.

the run
  --config FILE                          a file of configs/, or the config.yaml of a run
  --name NAME                            name of its folder under runs/ (default: the config's and the time)
  --resume RUN                           continue this run exactly where it stopped
  --ckpt_path FILE                       start a new run from this checkpoint
  --seed_everything N                    seed of everything random
  --wandb MODE                           auto, online, offline or disabled
  --print_config                         show the complete config and train nothing
how long and on what
  --trainer.max_steps N                  optimizer steps
  --trainer.max_time DD:HH:MM:SS         time after which it stops
  --trainer.val_check_interval N         batches between validations
  --trainer.accumulate_grad_batches N    batches in a step
  --trainer.accelerator NAME, --trainer.devices N, --trainer.strategy NAME, --trainer.precision NAME
the text
  --data.files 'my/*.txt'                your own text
  --data.corpus NAME                     stdlib (Python's standard library), files, hub or repetitions
  --data.dataset OWNER/NAME              a data set of the Hugging Face Hub
  --data.tokenizer NAME                  bpe (with --data.vocab_size N), bytes, gpt2 (of tiktoken's), or a run's
  --data.batch_size N                    sequences in a batch
the model
  --model.gpt.num_layers N, --model.gpt.num_heads N, --model.gpt.embed_dim N, --model.gpt.context_length N
  --model.init_from MODEL                start from a run, a checkpoint, or a model of Hugging Face such as gpt2
  --model.compile MODE                   auto, true, false or reduce-overhead
how it learns
  --model.optimizer.algorithm NAME       muon or adamw
  --model.optimizer.learning_rate X, --model.optimizer.head_learning_rate X, --model.optimizer.matrix_learning_rate X
  --model.schedule.warmup_steps N, --model.schedule.decay NAME

python train.py validate --ckpt_path RUN                    measure a checkpoint (default: the newest run's)
python train.py --resume runs/NAME --trainer.max_steps N    train a run further
python train.py --help | less                               all options, page by page
"""


def expand(args: list[str], default_config: Path) -> tuple[str, list[str]]:
    """The subcommand, and the options with defaults filled in.

    No subcommand means fit. `--resume RUN` puts the run's own config before the other options and its newest undamaged
    checkpoint after them; `validate` does the same with its --ckpt_path. Without --config it is `default_config`.

    Raises:
        FileNotFoundError, ValueError: for a run or checkpoint that is missing or damaged, and for options that
            contradict each other.
    """
    subcommand, args = (args[0], args[1:]) if args and args[0] in SUBCOMMANDS else ("fit", args)
    if args and not args[0].startswith("-"):
        raise ValueError(f"unknown subcommand {args[0]!r}: write fit (or nothing), or validate")
    # The model and the data share this number; configs have it as an option of the model.
    args = [re.sub("^--data.context_length(?==|$)", "--model.gpt.context_length", arg) for arg in args]
    if "--help" in args or "-h" in args:
        return subcommand, args
    for before, arg in pairwise(args):
        if arg in SUBCOMMANDS and (not before.startswith("-") or "=" in before):  # and is not the value of an option
            raise ValueError(f"the subcommand comes first: python train.py {arg} --option ...")
    resume, ckpt_path, args = take_runs(args)
    checkpoint = Path(ckpt_path) if ckpt_path else None
    has_config = any(arg.split("=")[0] in ("--config", "-c") for arg in args)
    config: Path | str = default_config
    if subcommand == "validate":
        if resume is not None:
            raise ValueError(f"validate does not take --resume: write --ckpt_path {resume}")
        checkpoint = find_checkpoint(checkpoint)
        run_dir = run_of(checkpoint)
        if run_dir is not None and (run_dir / CONFIG).exists():
            config = plain_config(run_dir / CONFIG, args)
    elif resume is not None:
        if checkpoint is not None:
            raise ValueError(
                "--resume and --ckpt_path exclude each other: write --resume FILE to resume from a certain checkpoint "
                "of a run, or --ckpt_path FILE to start a new run from it"
            )
        run_dir, checkpoint = resume_point(Path(resume))
        config, has_config = plain_config(run_dir / CONFIG, args), False  # a --config comes after the run's own
        args = [*args, "--resume", str(run_dir)]
    if checkpoint is not None:
        args = [*args, "--ckpt_path", str(checkpoint)]
    args = args if has_config else [f"--config={config}", *args]
    for path in typed_configs(args):
        check_sections(path)
    return subcommand, args


def take_runs(args: list[str]) -> tuple[str | None, str | None, list[str]]:
    """The values of --resume and --ckpt_path, and the other arguments. Raises ValueError if one is given twice."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--resume", action="append", default=[])
    parser.add_argument("--ckpt_path", action="append", default=[])
    try:
        given, others = parser.parse_known_args(args)
    except argparse.ArgumentError as error:  # no value
        raise ValueError(str(error)) from error
    for name, values in vars(given).items():
        if len(values) > 1:
            raise ValueError(f"--{name} is given {len(values)} times: keep one")
    return next(iter(given.resume), None), next(iter(given.ckpt_path), None), others


def plain_config(path: Path, args: list[str]) -> Path | str:
    """What to give to --config for the config of a run: its path, or its options as YAML.

    A run may come from a stranger, and the Trainer's options may be any class, or the name of a file that holds one.
    So it may have plain values only. Of an option that the person gives too, in `args`, theirs is taken.

    Raises ValueError for any other value.
    """
    settings = read_config(path)
    typed = typed_options(args)
    not_plain = [name for name, value in options_in(settings) if not is_plain(name, value, path.parent)]
    for name in not_plain:
        trainer, option = settings.get("trainer"), name.removeprefix("trainer.")
        if name not in typed or not isinstance(trainer, dict) or trainer.pop(option, None) is None:
            raise ValueError(
                f"{path}: {name} may name code, or a file that does: if you mean it, repeat the --config or the "
                "options that the run was started with"
            )
    return yaml.safe_dump(settings) if not_plain else path


def typed_options(args: list[str]) -> set[str]:
    """The full names of the options in `args`, and in the configs that they name."""
    typed = {re.split("[=+]", arg.removeprefix("--"))[0] for arg in args if arg.startswith("--")}
    return typed.union(*([name for name, _ in options_in(read_config(path))] for path in typed_configs(args)))


def options_in(settings: dict[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    """The options of a config with their full names, such as trainer.max_steps."""
    for key, value in settings.items():
        name = f"{section}.{key}".lstrip(".")
        if name in SECTIONS and isinstance(value, dict):
            yield from options_in(value, name)
        else:
            yield name, value


def is_plain(name: str, value: Any, folder: Path) -> bool:
    """Whether a value in a config of `folder` names nothing that the parser would import or open."""
    section, _, option = name.rpartition(".")
    if section not in ("", *SECTIONS) or not option.isidentifier() or name == "config" or option == "class_path":
        return False
    if isinstance(value, list):
        return all(is_plain(name, item, folder) for item in value)
    if isinstance(value, str) and section == "trainer" and option != "default_root_dir":
        is_file = any(os.path.exists(path) for path in (value, folder / value))  # noqa: PTH110 (as Path.is_file)
        return name not in TAKE_CLASSES and not is_file and PLAIN_TEXT.fullmatch(value) is not None
    return name not in SECTIONS and isinstance(value, bool | int | float | str | None)


def typed_configs(args: list[str]) -> list[Path]:
    """The files after --config. What is no file is left to the parser, which has a sentence for it."""
    given = [arg.removeprefix("--config=") for arg in args if arg.startswith("--config=")]
    given += [arg for before, arg in pairwise(args) if before in ("--config", "-c")]
    return [Path(path) for path in given if os.path.isfile(path)]  # noqa: PTH113 (as Path.is_file)


def check_sections(path: Path) -> None:
    """Raises ValueError if a config holds anything but options where it should have a group of them."""
    settings = read_config(path)
    for name in SECTIONS:
        *above, last = name.split(".")
        group = settings.get(above[0], {}) if above else settings
        if not isinstance(group.get(last, {}), dict):
            raise ValueError(f"{path}: {name} must hold options, not {group[last]!r}; leave it out for the defaults")


def named_tokenizer(
    name: str, read_folder: Callable[[Path], Any], checkpoint: str | None = None
) -> str | dict[str, Any]:
    """What `TextDataModule` takes for --data.tokenizer: a name, or the tokenizer of the model that is named.

    Args:
        name: of a tokenizer; or a run, a checkpoint or a folder of Hugging Face's.
        read_folder: as for `tokenizer_of`.
        checkpoint: one whose tokenizer is taken in place of the named model's; None for none.
    """
    is_model = "/" in name or (name not in ("bpe", "bytes") and Path(name).exists())
    return tokenizer_of(checkpoint or find_model(name), read_folder) if is_model else name


class RunFolder(Callback):
    """Creates the run's folder with its config when training begins: a mistake found earlier leaves nothing behind.

    A resumed run has both already. Its config is replaced after every on_train_start hook has accepted the options.
    """

    def __init__(self, config: str, is_new: bool) -> None:
        self.config = config
        self.is_new = is_new
        self.lock = FolderLock()

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        check_options(trainer)
        if not self.is_new and trainer.is_global_zero:
            self.lock.acquire(Path(trainer.default_root_dir))

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        if self.is_new and trainer.is_global_zero:
            run_dir = Path(trainer.default_root_dir)
            try:
                run_dir.mkdir(parents=True)
            except FileExistsError:  # made since this run looked for it
                raise name_is_taken(run_dir) from None
            self.lock.acquire(run_dir)
            self._write_config(trainer)

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        if not self.is_new and trainer.is_global_zero:
            self._write_config(trainer)

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        self.lock.release()

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self.lock.release()

    def _write_config(self, trainer: Trainer) -> None:
        write_atomically(Path(trainer.default_root_dir, CONFIG), with_checksum(self.config))


def check_options(trainer: Trainer) -> None:
    """Raises ValueError for options of Lightning that do nothing or do harm in a run counted in steps."""
    if trainer.max_epochs not in (None, -1) and not trainer.fast_dev_run:
        raise ValueError("trainer.max_epochs: training is counted in steps here, set trainer.max_steps")
    if trainer.limit_train_batches not in (None, 1.0) and not (trainer.overfit_batches or trainer.fast_dev_run):
        raise ValueError("trainer.limit_train_batches: would repeat the same batches, set trainer.max_steps")
    if type(trainer.strategy).__name__ in ("FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy"):
        raise ValueError("trainer.strategy: the optimizer needs unflattened matrices, so write ddp or fsdp")
    interval, accumulate = trainer.val_check_interval, trainer.accumulate_grad_batches
    check_range("trainer.log_every_n_steps", trainer.log_every_n_steps, 1)
    check_range("trainer.gradient_clip_val", trainer.gradient_clip_val, 0)
    check_range("trainer.accumulate_grad_batches", accumulate, 1)
    if accumulate > 1 and not isinstance(interval, int | float):
        raise ValueError("trainer.val_check_interval must be a number of batches where gradients are accumulated")
    if isinstance(interval, int) and interval % accumulate:
        raise ValueError(
            f"trainer.val_check_interval is {interval} batches, which would validate in the middle of a step: "
            f"make it a multiple of trainer.accumulate_grad_batches, {accumulate}"
        )


def quiet() -> None:
    """Hides what Lightning and torch tell every user at every start; errors and this project's warnings still show."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in (
        ".*does not have many workers.*",
        ".*lr_scheduler.step.*",
        ".*IterableDataset.*has `__len__` defined.*",
        ".*isinstance.treespec, LeafSpec.*",
    ):
        warnings.filterwarnings("ignore", message=message)
    logging.basicConfig(format="%(message)s")
