"""The command line of train.py: the overview of --help, what a run starts from, and what is filled in."""

import dataclasses
import logging
import warnings
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from data.tokenizers import NoTokenizer, Tokenizer
from model.checkpoint import read_checkpoint
from model.checks import Mistake
from model.exchange.huggingface import local_folder
from model.runs.configs import plain_config, read_config
from model.runs.folder import CONFIG, find_model, resume_point
from model.runs.mistakes import parse
from model.training.hardware import fast_precision
from model.training.initial import initial_config, place_of

OVERVIEW = """\
python train.py [--config FILE] [--OPTION VALUE]...

Trains a GPT: by default configs/default.yaml, in minutes on two CPU cores. An option here overrides the config's.
Below are the options that people use. --help lists all of them after these, with types and defaults.

the run
  --config FILE                          a file of configs/, or the config.yaml of a run
  --name NAME                            name of its folder under runs/ (default: the config's and the time)
  --resume RUN                           continue this run exactly where it stopped
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

python train.py --resume runs/NAME --trainer.max_steps N    train a run further
python train.py --help | less                               all options, page by page
"""


# The parser insists on these options, since others are linked to them. The values mean "not typed".
UNSET = {"seed_everything": -1, "model.gpt.context_length": 0}


@dataclasses.dataclass
class Options:
    """All options of a run, and what it goes on from or starts from.

    saved: its config.yaml, without what belongs to this call alone: it starts a run like this one.
    checkpoint: that it goes on from, None for a new run.
    init_tokenizer: of the model that it starts from, None if it has none.
    """

    config: Namespace
    saved: str
    checkpoint: Path | None
    init_tokenizer: dict[str, Any] | None


def read_options(parser: ArgumentParser, args: list[str], default_config: Path) -> Options:
    """What is typed, with all that it leaves open: config, precision, tokenizer, and the model that a run starts from.

    `--resume RUN` puts the run's own config before the other options. Without --config it is `default_config`.

    Raises a `Mistake` for options that contradict each other, and for runs and models that are missing or damaged.
    """
    for before, arg in pairwise(["", *args]):
        if before in ("--config", "-c") or arg.startswith("--config="):
            read_config(Path(arg.removeprefix("--config=")))  # which refuses what a parser would take any memory for
    typed, checkpoint, init_tokenizer = typed_options(parser, args), None, None
    if (resume := typed.pop("resume", None)) is not None:
        if "model.init_from" in typed:
            raise Mistake("--model.init_from and --resume both name the weights to start from: leave one out")
        if "name" in typed:
            raise Mistake("--resume continues a run in its own folder: leave out --name, which is for a new one")
        run_dir, checkpoint = resume_point(Path(resume))
        args = [f"--config={plain_config(run_dir / CONFIG, typed)}", *args, f"--resume={run_dir}"]
    elif "config" not in typed:
        args = [f"--config={default_config}", *args]
    config = parse(parser, args)
    if missing := [name for name, _ in parser.get_defaults().items() if name not in config]:
        raise Mistake(f"{missing[0].rpartition('.')[0]} must hold options; leave it out for the defaults")
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
    if checkpoint is not None and is_model(config.data.tokenizer) and "data.tokenizer" not in typed:
        config.data.tokenizer = tokenizer_of(str(checkpoint))  # whatever has become of the model that it is of
    else:
        config.data.tokenizer = named_tokenizer(config.data.tokenizer)
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
    source = config.model.init_from = find_model(config.model.init_from)
    given = [name.removeprefix("model.gpt.") for name in typed if name.startswith("model.gpt.")]
    network = initial_config(source, config.model.gpt, given)
    config.model.gpt.update(Namespace(**dataclasses.asdict(network)))
    config.data.context_length = network.context_length
    is_named = "data.tokenizer" in typed
    if not is_named:
        config.data.tokenizer = place_of(source)
    try:
        return tokenizer_of(source)
    except NoTokenizer as error:
        if is_named:
            return None
        raise Mistake(f"{error}: name the one it was trained with by --data.tokenizer") from error


def named_tokenizer(name: str) -> str | dict[str, Any]:
    """What `TextDataModule` takes for --data.tokenizer: a name, or the tokenizer of the run or model that is named."""
    return tokenizer_of(find_model(name)) if is_model(name) else name


def is_model(name: str) -> bool:
    """Whether --data.tokenizer names a run or model, and not a tokenizer."""
    return "/" in name or (name not in ("bpe", "bytes") and Path(name).exists())


def tokenizer_of(source: str) -> dict[str, Any]:
    """The tokenizer of a checkpoint, or of what `from_huggingface` opens, as plain data. Raises as they do."""
    if Path(source).is_file():
        return read_checkpoint(Path(source), on_disk=True)["tokenizer"]
    return Tokenizer.from_folder(local_folder(source)).to_dict()


def quiet() -> None:
    """Hides what Lightning and torch tell every user at every start; errors and this project's warnings still show."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    said = ("does not have many workers", "lr_scheduler.step", "has `__len__` defined", "isinstance.treespec, LeafSpec")
    warnings.filterwarnings("ignore", message=f".*({'|'.join(said)})")
    logging.basicConfig(format="%(message)s")
