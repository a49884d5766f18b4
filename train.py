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
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.utilities.exceptions import SIGTERMException

from data.datamodule import TextDataModule
from model.kernels import keep_freed_memory
from model.mistakes import Mistake, exit_status
from model.runs.command_line import Options, as_list, explanation, quiet, read_options
from model.runs.metrics import CSVLogger
from model.runs.monitoring import AttentionMonitor, Samples
from model.runs.progress import Progress, ending, say
from model.runs.results import finish
from model.runs.run import RUNS, Run
from model.runs.saving import AtomicCheckpointIO, Checkpoints
from model.runs.sequence import RunSequence, TrainingInterrupted
from model.runs.starting import RunFolder, new_run_dir
from model.runs.wandb_logger import WandbLogger, WandbMode
from model.training.module import GPTModule

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "default.yaml"
TRAINER_DEFAULTS = {
    "trainer.default_root_dir": str(RUNS),
    "trainer.max_epochs": -1,
    "trainer.check_val_every_n_epoch": None,  # count batches, not epochs
    "trainer.num_sanity_val_steps": 0,
    "trainer.enable_model_summary": False,
    "trainer.use_distributed_sampler": False,  # the data module slices over ranks itself
}


def build_parser() -> ArgumentParser:
    """Every option: this program's own, and a group for each class that has options, from its signature."""
    parser = ArgumentParser(usage=__doc__, exit_on_error=False, allow_abbrev=False, print_config=None)
    add = parser.add_argument
    words = "File of options, in YAML; what is typed counts more, and of several files the last."
    add("-c", "--config", action="append", metavar="PATH", help=words)
    add("--print_config", action="store_true", help="Print all options as a run would save them, and exit.")
    add("--seed_everything", type=int, default=1337, help="Seed of everything random.")
    add("--name", type=str | None, help="Name of the run's folder; null: the config's and the time.")
    add("--resume", type=str | None, help="A run, or a checkpoint in one, to continue; what it has of later goes.")
    add("--wandb", type=WandbMode, default="auto", help="Weights & Biases; auto: online if you are logged in.")
    parser.add_class_arguments(Trainer, "trainer", instantiate=False, fail_untyped=False)
    parser.set_defaults(TRAINER_DEFAULTS)
    parser.add_class_arguments(GPTModule, "model")
    # What it skips is the context length of the model, and the seed of the run.
    parser.add_class_arguments(TextDataModule, "data", instantiate=False, skip={"context_length", "seed"})
    parser.add_class_arguments(Checkpoints, "checkpoints")
    parser.add_class_arguments(AttentionMonitor, "attention")
    parser.add_class_arguments(Samples, "samples")
    return parser


def build_trainer(options: Options, run_dir: Path, parts: Namespace, sequence: RunSequence) -> Trainer:
    """Lightning's Trainer with the options' own callbacks and loggers, and those that a run of this project has.

    parts: the objects that the options describe.
    """
    loggers = [CSVLogger(run_dir), WandbLogger(run_dir, options.config.wandb)]
    # Those of the person come after this project's own, but for the sequence, which Lightning runs last.
    own_callbacks = [RunFolder(options.saved, is_new=options.checkpoint is None), sequence]
    callbacks = [*own_callbacks, *as_list(parts.trainer.callbacks)]
    has_bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
    if parts.trainer.enable_progress_bar is not False and not has_bar:
        callbacks.append(Progress())
    own = {
        "default_root_dir": run_dir,
        "callbacks": callbacks,
        "logger": [*loggers, *as_list(parts.trainer.logger)],
        "plugins": [AtomicCheckpointIO(), *as_list(parts.trainer.plugins)],
    }
    if options.trained:
        own["num_sanity_val_steps"] = -1  # it is measured before its first step, on all of the validation split
    try:
        trainer = Trainer(**vars(parts.trainer) | own)
    except (ValueError, ImportError) as error:  # of strategies and accelerators that are unknown or not installed
        raise Mistake(str(error)) from error
    for logger in loggers:
        logger.trainer = trainer
    if isinstance(parts.trainer.profiler, str):
        trainer.profiler.filename = "profile"  # its table is written into the run's folder
    return trainer


@exit_status("train.py")
def main(args: list[str] | None = None) -> int:
    """Returns the exit status: 0, 2 after a mistake, 128 + the signal that stopped it. Raises an error in code."""
    quiet()
    keep_freed_memory()
    parser = build_parser()
    options = read_options(parser, sys.argv[1:] if args is None else args, DEFAULT_CONFIG)
    config = options.config
    if config.print_config:
        print(options.saved, end="")
        return 0
    run = Run(Path(config.resume) if options.checkpoint else new_run_dir(config))
    seed_everything(config.seed_everything, workers=True)
    try:
        parts = parser.instantiate(config)
        module, sequence = parts.model, RunSequence(parts.attention, parts.samples, parts.checkpoints)
        module.trained = options.trained
        linked = {"context_length": config.model.gpt.context_length, "seed": config.seed_everything}
        data = TextDataModule(**config.data.as_dict(), **linked)
        trainer = build_trainer(options, run.folder, parts, sequence)
        trainer.fit(module, data, ckpt_path=options.checkpoint)
        if trainer.is_global_zero and not trainer.fast_dev_run:
            say("\n".join(filter(None, [finish(run.folder), ending(trainer)])))
    except TrainingInterrupted as stop:
        print(f"{stop}, and saved; {run.how_to_resume}", file=sys.stderr)
        return 128 + stop.signum
    except SIGTERMException:  # Lightning's, for a signal that came before the run listens; its own status would be 0
        return 128 + signal.SIGTERM
    except Exception as error:
        if said := explanation(error, run):
            raise Mistake(said) from error
        if not isinstance(error, Mistake):
            print(f"train.py: an error in code, with its traceback; {run.how_to_resume}", file=sys.stderr)
        raise
    return 0


if __name__ == "__main__":
    # A signal before the first step. Later the run saves first, see model/runs/sequence.py.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, lambda signum, _: sys.exit(128 + signum))
    sys.exit(main())
