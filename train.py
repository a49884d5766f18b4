"""Trains a GPT: configuration -> module and data -> Trainer.

python train.py                                             configs/default.yaml
python train.py --config configs/shakespeare_char.yaml --trainer.max_steps 500 --model.gpt.num_layers 2
python train.py --resume runs/NAME                          continues that run where it stopped
python train.py validate --ckpt_path runs/NAME/checkpoints/best.ckpt
python train.py --help                                      every option
"""

import gc
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # Ctrl-C during the imports, which take seconds; nothing needs cleaning up
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    gc.disable()  # imports leave next to nothing to collect

import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.cli import ArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException

from data.datamodule import TextDataModule
from data.tokenizers import Tokenizer
from model.checks import Mistake
from model.kernels import keep_freed_memory
from model.runs.command_line import OVERVIEW, complete, expand, quiet
from model.runs.folder import METRICS, RUNS
from model.runs.metrics import CSVLogger
from model.runs.mistakes import (
    MISTAKES,
    can_resume,
    checking_options,
    exit_status,
    explain_machine,
    parse,
    resume_command,
)
from model.runs.progress import say
from model.runs.recording import AttentionRecording, Samples
from model.runs.results import finish
from model.runs.saving import AtomicCheckpointIO, Checkpoints, restoring
from model.runs.sequence import RunSequence, TrainingInterrupted
from model.runs.starting import RunFolder, check_options, new_run_dir
from model.runs.wandb_logger import WandbLogger, WandbMode
from model.training.module import GPTModule, check_start

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "default.yaml"
TRAINER_DEFAULTS = {
    "default_root_dir": str(RUNS),
    "max_epochs": -1,
    "check_val_every_n_epoch": None,  # count batches, not epochs
    "num_sanity_val_steps": 0,
    "enable_model_summary": False,
    "use_distributed_sampler": False,  # the data module slices over ranks itself
}


class TrainingCLI(LightningCLI):
    """Lightning's command line with this project's options, callbacks and loggers."""

    def add_default_arguments_to_parser(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("--seed_everything", type=int, default=1337, help="Seed of everything random.")
        add("--name", type=str | None, help="Name of the run's folder; null: the config's and the time.")
        add(
            "--resume",
            type=str | None,
            help="A run's folder, or a checkpoint in one, to continue; what it has of later steps is dropped.",
        )
        add("--ckpt_path", type=str | None, help="Checkpoint to validate (null: the newest run's), or to start from.")
        add("--wandb", type=WandbMode, default="auto", help="Weights & Biases; auto: online if you are logged in.")

    def add_arguments_to_parser(self, parser: ArgumentParser) -> None:
        parser.add_class_arguments(Checkpoints, "checkpoints")
        parser.add_class_arguments(AttentionRecording, "attention")
        parser.add_class_arguments(Samples, "samples")
        parser.link_arguments("model.gpt.context_length", "data.context_length")
        parser.link_arguments("seed_everything", "data.seed")

    def parse_arguments(self, parser: ArgumentParser, args: list[str]) -> None:
        self.config = parse(parser, args)
        typed = [arg for arg in args if arg != f"--config={DEFAULT_CONFIG}"]
        self.saved, self.init_tokenizer = complete(self.config, parser, typed, Tokenizer.from_folder)

    def instantiate_trainer(self) -> Trainer:
        config, parts = self.config, self.config_init
        chosen, is_new = parts.trainer, config.resume is None
        runs_dir = Path(config.trainer.default_root_dir)
        # A new folder is called after the last --config.
        run_dir = new_run_dir(runs_dir, config.name, str(config.config[-1])) if is_new else Path(config.resume)
        parts.model.init_tokenizer = self.init_tokenizer
        if str(chosen.strategy).startswith("fsdp"):
            raise Mistake("trainer.strategy: the optimizer needs whole matrices on each device: write ddp")
        shows_progress = config.trainer.enable_progress_bar is not False
        sequence = RunSequence(parts.attention, parts.samples, parts.checkpoints, is_new, shows_progress)
        own_loggers = [CSVLogger(run_dir / METRICS), WandbLogger(run_dir, config.wandb, yaml.safe_load(self.saved))]
        # Those of the config come after this project's own, but for the sequence, which Lightning runs last.
        trainer = super().instantiate_trainer(
            default_root_dir=run_dir,
            callbacks=[RunFolder(self.saved, is_new), sequence, *as_list(chosen.callbacks)],
            logger=[*own_loggers, *as_list(chosen.logger)],
            plugins=[AtomicCheckpointIO(), *as_list(chosen.plugins)],
            enable_progress_bar=False,  # the sequence has its own
            # A trained model is measured before its first step, on all of the validation split.
            num_sanity_val_steps=-1 if config.model.init_from else config.trainer.num_sanity_val_steps,
        )
        if isinstance(chosen.profiler, str):  # its table is written into the run's folder
            trainer.profiler.dirpath, trainer.profiler.filename = run_dir, "profile"
        check_options(trainer)
        return trainer


def as_list(value: Any) -> list:
    """An option of the Trainer that may be one object, several, or none (None, or a logger's true or false)."""
    if value is None or isinstance(value, bool):
        return []
    return value if isinstance(value, list) else [value]


def fit(trainer: Trainer, model: GPTModule, data: TextDataModule, ckpt_path: str | None) -> int:
    run_dir = Path(trainer.default_root_dir)
    try:
        with restoring(trainer), explain_machine(run_dir), checking_options(MisconfigurationException):
            trainer.fit(model, data, ckpt_path=ckpt_path)
    except TrainingInterrupted as stop:
        print(f"{stop}, and saved; to continue: python train.py {resume_command(run_dir)}", file=sys.stderr)
        return 128 + stop.signum
    except SIGTERMException:  # Lightning's, for a signal that came before the run listens; its own status would be 0
        return 128 + signal.SIGTERM
    except MISTAKES:
        raise
    except Exception as error:
        traceback.print_exc()
        print(f"train.py: {what_was_running(trainer, error)}", file=sys.stderr)
        return 1
    if trainer.is_global_zero and not trainer.fast_dev_run:
        from model.glass import open_run  # imports what only the pages need

        say(finish(run_dir, open_run))
    return 0


def what_was_running(trainer: Trainer, error: Exception) -> str:
    """What a person wants to know after the traceback of an error in code."""
    sequence = next(callback for callback in trainer.callbacks if isinstance(callback, RunSequence))
    said = f"this was {sequence.doing}"
    if "set_detect_anomaly" in str(error):  # autograd's, whose traceback ends in the backward pass
        said += "; --trainer.detect_anomaly true also shows the line of the forward pass"
    run_dir = Path(trainer.default_root_dir)
    if can_resume(run_dir):
        return f"{said}; to go on from the last checkpoint: python train.py {resume_command(run_dir)}"
    return f"{said}; there is no checkpoint yet"


def validate(trainer: Trainer, model: GPTModule, data: TextDataModule, ckpt_path: str | None) -> int:
    with restoring(trainer):
        trainer.validate(model, data, ckpt_path=ckpt_path, verbose=False)
    if trainer.is_global_zero:
        say("  ".join([ckpt_path, *(f"{name} {value}" for name, value in model.validation_metrics.items())]))
    return 0


@exit_status("train.py")
def main(args: list[str] | None = None) -> int:
    """Returns the exit status: 0, 2 after a person's mistake, 128 + the signal that stopped the training."""
    quiet()
    keep_freed_memory()
    subcommand, args = expand(sys.argv[1:] if args is None else args, DEFAULT_CONFIG)
    with checking_options():
        cli = TrainingCLI(
            GPTModule,
            TextDataModule,
            args=args,
            run=False,
            save_config_callback=None,
            trainer_defaults=TRAINER_DEFAULTS,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            parser_kwargs={"exit_on_error": False, "allow_abbrev": False, "usage": OVERVIEW, "description": None},
        )
    if cli.config.ckpt_path:
        check_start(Path(cli.config.ckpt_path), cli.model.gpt_config)
    run = {"fit": fit, "validate": validate}[subcommand]
    return run(cli.trainer, cli.model, cli.datamodule, cli.config.ckpt_path)


if __name__ == "__main__":
    gc.freeze()  # what was imported stays, so that nothing looks at all of it again, above all when the program ends
    gc.enable()
    # A signal before the first step. Later the run saves first, see model/runs/sequence.py.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, lambda signum, _: sys.exit(128 + signum))
    sys.exit(main())
