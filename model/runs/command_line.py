"""The command line of train.py: the overview of --help, what is filled in, and what is refused."""

import dataclasses
import logging
import re
import warnings
from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from data.tokenizers import NoTokenizer
from model.checks import Mistake, check_range
from model.runs.configs import OTHER_TEXT, check_sections, plain_config, typed_configs, typed_options, typed_values
from model.runs.folder import CONFIG, find_checkpoint, find_model, resume_point, run_of
from model.training.hardware import fast_precision
from model.training.initial import initial_config, place_of, tokenizer_of

SUBCOMMANDS = ("fit", "validate")
OVERVIEW = """\
python train.py [fit | validate] [--config FILE] [--OPTION VALUE]...

Trains a GPT: by default configs/default.yaml, in minutes on two CPU cores. An option here overrides the config's.
Below are the options that people use. --help lists all of them after these, with types and defaults.

the run
  --config FILE                          a file of configs/, or the config.yaml of a run
  --name NAME                            name of its folder under runs/ (default: the config's and the time)
  --resume RUN                           continue this run exactly where it stopped
  --ckpt_path RUN                        start a new run from this run's best checkpoint, or this file
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
  --data.corpus NAME                     stdlib (Python's standard library), files, hub, repetitions
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

    Raises a `Mistake` for a run or checkpoint that is missing or damaged, and for options that
    contradict each other.
    """
    subcommand, args = (args[0], args[1:]) if args and args[0] in SUBCOMMANDS else ("fit", args)
    if args and not args[0].startswith("-"):
        raise Mistake(f"unknown subcommand {args[0]!r}: write fit (or nothing), or validate")
    # The model and the data share this number; configs have it as an option of the model.
    args = [re.sub("^--data.context_length(?==|$)", "--model.gpt.context_length", arg) for arg in args]
    if "--help" in args or "-h" in args:
        return subcommand, args
    for before, arg in pairwise(args):
        if arg in SUBCOMMANDS and (not before.startswith("-") or "=" in before):  # and is not the value of an option
            raise Mistake(f"the subcommand comes first: python train.py {arg} --option ...")
    resume, ckpt_path = typed_run("resume", args), typed_run("ckpt_path", args)
    checkpoint = Path(ckpt_path) if ckpt_path else None
    is_typed = any(name in ("config", "c") for name, _ in typed_values(args))
    config: Path | str | None = None if is_typed else default_config
    if subcommand == "validate":
        if resume is not None:
            raise Mistake(f"validate does not take --resume: write --ckpt_path {resume}")
        checkpoint = find_checkpoint(checkpoint)
        run_dir = run_of(checkpoint)
        if config and run_dir is not None and (run_dir / CONFIG).exists():
            config = plain_config(run_dir / CONFIG, args)
    elif resume is not None:
        if checkpoint is not None:
            raise Mistake(
                "--resume and --ckpt_path exclude each other: write --resume FILE to resume from a certain checkpoint "
                "of a run, or --ckpt_path FILE to start a new run from it"
            )
        run_dir, checkpoint = resume_point(Path(resume))
        config = plain_config(run_dir / CONFIG, args)  # before a --config that is typed
        args = [*args, "--resume", str(run_dir)]
    elif checkpoint is not None:
        checkpoint = find_checkpoint(checkpoint)
    args = [f"--config={config}", *args] if config else args
    args = [*args, "--ckpt_path", str(checkpoint)] if checkpoint else args
    for path in typed_configs(args):
        check_sections(path)
    return subcommand, args


def typed_run(name: str, args: list[str]) -> str | None:
    """The value of --resume or --ckpt_path, if it is given. Raises a `Mistake` for several, or none after its name."""
    values = [value for option, value in typed_values(args) if option == name]
    if len(values) > 1:
        raise Mistake(f"--{name} is given {len(values)} times: keep one")
    if values and (not values[0] or values[0].startswith("-")):
        raise Mistake(f"argument --{name}: expected one argument")
    return next(iter(values), None)


def complete(
    config: Namespace, parser: ArgumentParser, args: list[str], read_folder: Callable[[Path], Any]
) -> tuple[str, dict[str, Any] | None]:
    """Fills in what the options leave open: precision and tokenizer, and all of a model that the run starts from.

    `args` is what the person has typed, `read_folder` as for `tokenizer_of`. Returns the run's config.yaml, and the
    tokenizer of the model that the run starts from; None if there is none.
    """
    check_range("seed_everything", config.seed_everything, 0, 2**32 - 1)  # numpy's limits
    given = typed_options(args, in_configs=False)
    start = "resume" if "resume" in given else "ckpt_path"
    if {"model.init_from", start} <= given:
        raise Mistake(f"--model.init_from and --{start} both name the weights to start from: leave one out")
    if {"name", "resume"} <= given:
        raise Mistake("--resume continues a run in its own folder: leave out --name, which is for a new one")
    starts_from_model = config.model.init_from is not None and not config.ckpt_path
    init_tokenizer = take_over_model(config, typed_options(args), read_folder) if starts_from_model else None
    if config.trainer.precision is None:
        config.trainer.precision = fast_precision(config.trainer.accelerator)
    if config.ckpt_path and config.data.tokenizer == "bpe" and "data.tokenizer" not in given and given & OTHER_TEXT:
        config.data.tokenizer = config.ckpt_path  # one trained on other text would not be the checkpoint's
    if is_model(config.data.tokenizer) and "/" not in config.data.tokenizer:
        config.data.tokenizer = f"./{config.data.tokenizer}"  # a model still where its folder is gone
    # Without what belongs to this call alone, the saved config starts a run like this one.
    saved = config.clone()
    saved.name = saved.resume = saved.ckpt_path = None
    text = parser.dump(saved, skip_unset=False)
    if not starts_from_model:
        config.model.init_from = None  # the checkpoint brings all weights
    # A run that continues has the tokenizer itself, whatever has become of the model that it was taken from.
    own = None if "data.tokenizer" in given else config.ckpt_path
    config.data.tokenizer = named_tokenizer(config.data.tokenizer, read_folder, own)
    return text, init_tokenizer


def take_over_model(
    config: Namespace, typed: Collection[str], read_folder: Callable[[Path], Any]
) -> dict[str, Any] | None:
    """Puts the network and the tokenizer of the model that --model.init_from names into the config.

    Returns the model's tokenizer; None for a model without one, of which the person has named the tokenizer.
    """
    source = config.model.init_from = find_model(config.model.init_from)
    given = [name.removeprefix("model.gpt.") for name in typed if name.startswith("model.gpt.")]
    network = initial_config(source, config.model.gpt, given)
    config.model.gpt.update(Namespace(**dataclasses.asdict(network)))
    config.data.context_length = network.context_length
    is_named = "data.tokenizer" in typed
    if not is_named:
        config.data.tokenizer = place_of(source)
    try:
        return tokenizer_of(source, read_folder)
    except NoTokenizer as error:
        if is_named:
            return None
        raise Mistake(f"{error}: name the one it was trained with by --data.tokenizer") from error


def named_tokenizer(name: str, read_folder: Callable[[Path], Any], checkpoint: str | None = None) -> Any:
    """What `TextDataModule` takes for --data.tokenizer: a name, or the tokenizer of the run or model that is named.

    `read_folder` as for `tokenizer_of`. The tokenizer of `checkpoint`, if there is one, is taken for any model's.
    """
    return tokenizer_of(checkpoint or find_model(name), read_folder) if is_model(name) else name


def is_model(name: str) -> bool:
    """Whether --data.tokenizer names a run or model, and not a tokenizer."""
    return "/" in name or (name not in ("bpe", "bytes") and Path(name).exists())


def quiet() -> None:
    """Hides what Lightning and torch tell every user at every start; errors and this project's warnings still show."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    said = ("does not have many workers", "lr_scheduler.step", "has `__len__` defined", "isinstance.treespec, LeafSpec")
    warnings.filterwarnings("ignore", message=f".*({'|'.join(said)})")
    logging.basicConfig(format="%(message)s")
