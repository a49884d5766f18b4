"""Trains a GPT: configuration -> module and data -> Trainer.

python train.py                                             configs/default.yaml
python train.py --config configs/shakespeare_char.yaml --trainer.max_steps 500 --model.gpt.num_layers 2
python train.py --resume runs/NAME                          goes on where that run stopped
python train.py validate --ckpt_path runs/NAME/checkpoints/best.ckpt
python train.py --help                                      every option
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from argparse import ArgumentError
from pathlib import Path
from typing import Any, Literal

if __name__ == "__main__":  # the imports take seconds, may catch an exception, and leave nothing to tidy up
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))

import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.cli import ArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from data.module import TextDataModule
from model.kernels import keep_freed_memory
from model.runs.attention import AttentionRecording
from model.runs.checkpoints import AtomicCheckpointIO, Checkpoints
from model.runs.metrics import CSVLogger
from model.runs.progress import say
from model.runs.samples import Samples
from model.runs.sequence import RunSequence
from model.runs.stopping import TrainingInterrupted
from model.runs.wandb_logger import WandbLogger
from model.training.command_line import expand, quiet, sentence
from model.training.hardware import fast_precision
from model.training.module import GPTModule
from model.training.runs import XZ_BYTES, RunFolder, farewell, leave_report, new_run_dir
from model.training.sharding import FullyShardedStrategy

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "default.yaml"
TRAINER_DEFAULTS = {
    "default_root_dir": "runs",
    "max_epochs": -1,
    "check_val_every_n_epoch": None,  # count batches, not epochs
    "num_sanity_val_steps": 0,
    "enable_model_summary": False,
    "use_distributed_sampler": False,  # the data module slices over ranks itself
}
MISTAKES = (ValueError, TypeError, OSError, FloatingPointError, MisconfigurationException)


class TrainingCLI(LightningCLI):
    """Lightning's command line with this project's options, callbacks and loggers."""

    def add_default_arguments_to_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("--seed_everything", type=int, default=1337, help="Seed of everything that is random.")
        parser.add_argument(
            "--name", type=str | None, help="Name of the run's folder; null: the config's and the time."
        )
        parser.add_argument("--resume", type=str | None, help="A run's folder, or a checkpoint in one, to go on from.")
        parser.add_argument(
            "--ckpt_path", type=str | None, help="Checkpoint to validate (null: the newest run's), or to branch off."
        )
        wandb_help = "Weights & Biases; auto: online if you are logged in, else offline."
        parser.add_argument(
            "--wandb", type=Literal["auto", "online", "offline", "disabled"], default="auto", help=wandb_help
        )

    def add_arguments_to_parser(self, parser: ArgumentParser) -> None:
        parser.add_class_arguments(Checkpoints, "checkpoints")
        parser.add_class_arguments(AttentionRecording, "attention")
        parser.add_class_arguments(Samples, "samples")
        parser.link_arguments("model.gpt.context_length", "data.context_length")
        parser.link_arguments("seed_everything", "data.seed")

    def parse_arguments(self, parser: ArgumentParser, args: list[str]) -> None:
        try:
            self.config = parser.parse_args(args)
        except ArgumentError as error:
            raise ValueError(sentence(error, [action.dest for action in parser._actions])) from error
        if not 0 <= self.config.seed_everything < 2**32:  # numpy's
            raise ValueError(f"--seed_everything must be 0 to {2**32 - 1}, not {self.config.seed_everything}")

    def before_instantiate_classes(self) -> None:
        trainer = self.config.trainer
        if trainer.precision is None:
            trainer.precision = fast_precision(trainer.accelerator)

    def instantiate_trainer(self) -> Trainer:
        config = self.config
        runs_dir = Path(config.trainer.default_root_dir)
        run_dir = Path(config.resume) if config.resume else new_run_dir(runs_dir, config.name, str(config.config[-1]))
        # Without what belongs to this call alone, the saved config starts a run like this one.
        saved = config.clone()
        saved.name = saved.resume = saved.ckpt_path = None
        saved = self.parser.dump(saved, skip_unset=False)
        parts = self.config_init
        shows_progress = config.trainer.enable_progress_bar is not False
        sequence = RunSequence(parts.attention, parts.samples, parts.checkpoints, shows_progress)
        callbacks = [RunFolder(saved, is_new=config.resume is None), sequence]
        loggers = [CSVLogger(run_dir / "metrics.csv"), WandbLogger(run_dir, config.wandb, yaml.safe_load(saved))]
        plugins = [AtomicCheckpointIO()]
        own = parts.trainer  # what the config names itself comes after ours
        trainer = super().instantiate_trainer(
            default_root_dir=run_dir,
            callbacks=callbacks + as_list(own.callbacks),
            logger=loggers + as_list(None if isinstance(own.logger, bool) else own.logger),
            plugins=plugins + as_list(own.plugins),
            enable_progress_bar=False,  # the sequence has its own
            strategy=FullyShardedStrategy() if own.strategy == "fsdp" else own.strategy,
        )
        if own.profiler is not None:  # Lightning would log its table, which nobody would see
            trainer.profiler.filename = trainer.profiler.filename or "profile"
        return trainer


def as_list(value: Any) -> list:
    return value if isinstance(value, list) else [] if value is None else [value]


def fit(cli: TrainingCLI) -> None:
    trainer, data, run_dir = cli.trainer, cli.datamodule, cli.trainer.default_root_dir
    trainer.fit(cli.model, data, ckpt_path=cli.config.ckpt_path)
    if trainer.is_global_zero and not trainer.fast_dev_run:
        leave_report(Path(run_dir))
        text = data.validation_text(XZ_BYTES) if data.validation_bytes <= XZ_BYTES else None
        say(farewell(Path(run_dir), text))


def validate(cli: TrainingCLI) -> None:
    cli.trainer.validate(cli.model, cli.datamodule, ckpt_path=cli.config.ckpt_path, verbose=False)
    if cli.trainer.is_global_zero:
        figures = "  ".join(f"{name} {value}" for name, value in cli.model.validation_metrics.items())
        say(f"{cli.config.ckpt_path}  {figures}")


def main(args: list[str] | None = None) -> int:
    """Returns the exit status: 0, 2 after a person's mistake, 128 + the signal that stopped the training."""
    quiet()
    keep_freed_memory()
    cli = None
    try:
        subcommand, args = expand(sys.argv[1:] if args is None else args, DEFAULT_CONFIG)
        cli = TrainingCLI(
            GPTModule,
            TextDataModule,
            args=args,
            run=False,
            save_config_callback=None,
            trainer_defaults=TRAINER_DEFAULTS,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            parser_kwargs={"exit_on_error": False, "allow_abbrev": False, "description": __doc__},
        )
        {"fit": fit, "validate": validate}[subcommand](cli)
        return 0
    except TrainingInterrupted as stop:
        run_dir = shlex.quote(str(cli.trainer.default_root_dir))
        print(f"{stop}, and saved; to go on: python train.py --resume {run_dir}", file=sys.stderr)
        return 128 + stop.signum
    except MISTAKES as error:
        if os.environ.get("GLASSGPT_DEBUG"):
            raise
        print(f"train.py: {sentence(error)}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    # Ctrl-C before a training; within one it saves first (model/runs/stopping.py).
    signal.signal(signal.SIGINT, lambda *_: sys.exit(128 + signal.SIGINT))
    sys.exit(main())
