"""Trains a GPT: configuration -> module and data -> Trainer.

python train.py                                             configs/default.yaml
python train.py --config configs/shakespeare_char.yaml --trainer.max_steps 500 --model.gpt.num_layers 2
python train.py --data.files 'my/*.txt' --name mine         your own text
python train.py --model.init_from runs/NAME                 starts from that run's weights; or a checkpoint's, or gpt2
python train.py --resume runs/NAME                          continues that run where it stopped
python train.py --help                                      every option
"""

import signal
import sys
import traceback
from pathlib import Path

from model.checks import Mistake  # first: model/ says how threads wait, which torch reads when it is loaded

# isort: split
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import ArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException

from data.datamodule import TextDataModule
from model.kernels import keep_freed_memory
from model.runs.command_line import as_list, check_callbacks, quiet, read_options
from model.runs.metrics import CSVLogger
from model.runs.mistakes import exit_status, explain_machine
from model.runs.monitoring import AttentionMonitor, Samples
from model.runs.progress import Progress, ending, say
from model.runs.results import finish
from model.runs.run import RUNS, Run
from model.runs.saving import AtomicCheckpointIO, Checkpoints
from model.runs.sequence import RunSequence, TrainingInterrupted
from model.runs.starting import RunFolder, new_run_dir
from model.runs.wandb_logger import WandbLogger, WandbMode
from model.training.module import GPTModule, check_resumed

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
        add("--resume", type=str | None, help="A run, or a checkpoint in one, to continue; what it has of later goes.")
        add("--wandb", type=WandbMode, default="auto", help="Weights & Biases; auto: online if you are logged in.")

    def add_arguments_to_parser(self, parser: ArgumentParser) -> None:
        parser.add_class_arguments(Checkpoints, "checkpoints")
        parser.add_class_arguments(AttentionMonitor, "attention")
        parser.add_class_arguments(Samples, "samples")
        parser.link_arguments("model.gpt.context_length", "data.context_length")
        parser.link_arguments("seed_everything", "data.seed")

    def parse_arguments(self, parser: ArgumentParser, args: list[str]) -> None:
        self.options = read_options(parser, args, DEFAULT_CONFIG)
        self.config = self.options.config

    def instantiate_trainer(self) -> Trainer:
        config, parts, saved, is_new = self.config, self.config_init, self.options.saved, self.config.resume is None
        run_dir = new_run_dir(config) if is_new else Path(config.resume)
        parts.model.init_tokenizer = self.options.init_tokenizer
        self.sequence = RunSequence(parts.attention, parts.samples, parts.checkpoints)
        own_loggers = [CSVLogger(run_dir), WandbLogger(run_dir, config.wandb)]
        callbacks = [RunFolder(saved, is_new), self.sequence, *as_list(parts.trainer.callbacks)]
        check_callbacks(callbacks)
        has_bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
        if config.trainer.enable_progress_bar is not False and not has_bar:
            callbacks.append(Progress())
        try:
            # Those of the config come after this project's own, but for the sequence, which Lightning runs last.
            trainer = super().instantiate_trainer(
                default_root_dir=run_dir,
                callbacks=callbacks,
                logger=[*own_loggers, *as_list(parts.trainer.logger)],
                plugins=[AtomicCheckpointIO(), *as_list(parts.trainer.plugins)],
                # A trained model is measured before its first step, on all of the validation split.
                num_sanity_val_steps=-1 if config.model.init_from else config.trainer.num_sanity_val_steps,
            )
        except (ValueError, ImportError) as error:  # of strategies and accelerators that are unknown or not installed
            raise Mistake(str(error)) from error
        for logger in own_loggers:
            logger.trainer = trainer
        if isinstance(parts.trainer.profiler, str):
            trainer.profiler.filename = "profile"  # its table is written into the run's folder
        return trainer


@exit_status("train.py")
def main(args: list[str] | None = None) -> int:
    """Returns the exit status: 0, 1 after an error in code, 2 after a mistake, 128 + the signal that stopped it."""
    quiet()
    keep_freed_memory()
    try:
        cli = TrainingCLI(
            GPTModule,
            TextDataModule,
            args=sys.argv[1:] if args is None else args,
            run=False,
            save_config_callback=None,
            trainer_defaults=TRAINER_DEFAULTS,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            parser_kwargs={"exit_on_error": False, "allow_abbrev": False, "usage": __doc__, "description": None},
        )
    except Mistake:
        raise
    except Exception as error:
        # jsonargparse wraps what a class of the options raises. Lightning's own is of options that do not go together.
        cause = error.__cause__ or error
        if isinstance(cause, MisconfigurationException):
            raise Mistake(str(cause)) from error
        raise cause from None
    trainer, checkpoint, run_dir = cli.trainer, cli.options.checkpoint, Path(cli.trainer.default_root_dir)
    if checkpoint is not None:
        check_resumed(checkpoint, cli.model.gpt_config)
    try:
        with explain_machine(run_dir):
            trainer.fit(cli.model, cli.datamodule, ckpt_path=checkpoint)
        cli.sequence.doing = "writing the page"
        if trainer.is_global_zero and not trainer.fast_dev_run:
            say("\n".join(filter(None, [finish(run_dir), ending(trainer)])))
    except TrainingInterrupted as stop:
        print(f"{stop}, and saved; {Run(run_dir).how_to_resume}", file=sys.stderr)
        return 128 + stop.signum
    except SIGTERMException:  # Lightning's, for a signal that came before the run listens; its own status would be 0
        return 128 + signal.SIGTERM
    except MisconfigurationException as error:
        raise Mistake(str(error)) from error
    except Mistake:
        raise
    except Exception:
        traceback.print_exc()
        print(f"train.py: this was {cli.sequence.doing}; {Run(run_dir).how_to_resume}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    # A signal before the first step. Later the run saves first, see model/runs/sequence.py.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, lambda signum, _: sys.exit(128 + signum))
    sys.exit(main())
