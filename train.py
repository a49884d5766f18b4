"""Trains a GPT: python train.py [OPTIONS]

python train.py                                             trains the model of configs/default.yaml
python train.py --config configs/shakespeare_char.yaml --trainer.max_steps 500 --model.gpt.num_layers 2
python train.py --data.files 'my/*.txt' --name mine         trains on your own text, in runs/mine
python train.py --model.init_from runs/NAME                 starts from the weights of a run, a checkpoint or gpt2
python train.py --resume runs/NAME                          resumes a run where it stopped
python train.py --help                                      lists every option
"""

import functools
import signal
import sys
from pathlib import Path
from traceback import extract_tb

from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ProgressBar

from data.datamodule import TextDataModule
from model.kernels import keep_freed_memory
from model.mistakes import Mistake
from model.runs.command_line import Options, explanation, quiet, read_options
from model.runs.end_of_step import EndOfStep
from model.runs.metrics import RunLogger
from model.runs.progress import Progress, last_lines, tell
from model.runs.recorder import Recorder, Samples
from model.runs.run import RUNS, Run
from model.runs.saving import AtomicCheckpointIO, Checkpoints
from model.runs.starting import new_run_dir, training_in
from model.runs.stop_signals import STOP_SIGNALS, TrainingInterrupted
from model.runs.terminal import exit_status, gets_sentence, say
from model.runs.trainer_options import OTHERS, as_list, trainer_arguments, working_callbacks
from model.runs.weights_and_biases import WandbMode, WeightsAndBiases
from model.training.module import GPTModule

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "default.yaml"


@functools.cache
def build_parser() -> ArgumentParser:
    """Defines every option: first those of train.py itself, then one group for each class, from its signature."""
    parser = ArgumentParser(usage=__doc__, exit_on_error=False, allow_abbrev=False, print_config=None)
    add = parser.add_argument
    add(
        "-c",
        "--config",
        action="append",
        metavar="PATH",
        help="YAML file of options, may be repeated. Later files override earlier ones; typed options override files. "
        "Without it, configs/default.yaml is read. The defaults below are for options that no file sets.",
    )
    add("--print_config", action="store_true", help="Print all options as YAML, as the run would save them, then exit.")
    add("--seed_everything", type=int, default=1337, help="Seed of all random number generators.")
    add("--name", type=str | None, help="Name of the run's folder; null: the config's name and the time.")
    add(
        "--resume",
        type=str | None,
        help="Run or checkpoint to resume. Whatever the run recorded after that checkpoint is deleted.",
    )
    add(
        "--resume_or_start",
        action="store_true",
        help="Resume the run of --name, or start it if it has no checkpoint yet, so that a queue can repeat a job.",
    )
    add(
        "--other_code",
        action="store_true",
        help="Resume a run, or start from a model, whose losses differ with this code: the change of code is meant.",
    )
    add(
        "--code_difference",
        type=bool,
        default=True,
        help="Whether the run's code.json also holds the lines of code that differ from the commit.",
    )
    add("--wandb", type=WandbMode, default="auto", help="Weights & Biases; auto: online if logged in, else offline.")
    parser.add_class_arguments(Trainer, "trainer", instantiate=False, fail_untyped=False, skip=set(OTHERS))
    parser.set_defaults({"trainer.default_root_dir": str(RUNS)})
    parser.add_class_arguments(GPTModule, "model")
    # context_length and seed are not options here: they come from --model.gpt.context_length and --seed_everything.
    parser.add_class_arguments(TextDataModule, "data", instantiate=False, skip={"context_length", "seed"})
    parser.add_class_arguments(Checkpoints, "checkpoints")
    parser.add_class_arguments(Recorder, "recording")
    parser.add_class_arguments(Samples, "samples")
    return parser


def build_trainer(options: Options, run_dir: Path, built: Namespace, end_of_step: EndOfStep) -> Trainer:
    """Builds Lightning's Trainer with this project's callbacks, logger and plugins, and with the user's.

    built: the options, with an object in place of each option or group that describes one.
    """
    logger = RunLogger(run_dir, WeightsAndBiases(run_dir, options.config.wandb))
    # The user's callbacks run before EndOfStep: Lightning runs Checkpoint callbacks last.
    callbacks = [end_of_step, *working_callbacks(built.trainer.callbacks)]
    has_bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
    is_terminal = sys.stdout is not None and sys.stdout.isatty()  # in a file, a bar would be a line for every batch
    if built.trainer.enable_progress_bar is not False and is_terminal and not has_bar:
        callbacks.append(Progress())
        has_bar = True
    overrides = {
        "default_root_dir": run_dir,
        "callbacks": callbacks,
        "enable_progress_bar": has_bar,
        "logger": [logger, *as_list(built.trainer.logger)],
        "plugins": [AtomicCheckpointIO(options.config.other_code)],
        "num_sanity_val_steps": -1 if options.trained else 0,  # validates the model of init_from before step 1
    }
    try:
        trainer = Trainer(**trainer_arguments(built.trainer) | overrides)
    except (ValueError, TypeError, ImportError, RuntimeError) as error:
        if "lightning" not in Path(extract_tb(error.__traceback__)[-1].filename).parts:
            raise
        raise Mistake(str(error)) from error  # no such device, strategy or accelerator; two callbacks of a kind
    logger.trainer = trainer
    if isinstance(built.trainer.profiler, str):
        trainer.profiler.filename = "profile"  # its table goes into the run's folder, not to the terminal
    return trainer


@exit_status
def main(args: list[str] | None = None) -> int:
    """Trains, and returns the exit status: 0, or 128 + the number of the signal that stopped the run.

    Raises a `Mistake` also for errors that `explanation` explains; `exit_status` prints it and returns 2. Every other
    error is a bug in the code, and passes with its traceback.
    """
    sys.path.append("")  # the user's own modules lie in the current folder
    quiet()
    keep_freed_memory()
    parser = build_parser()
    options = read_options(parser, sys.argv[1:] if args is None else args, DEFAULT_CONFIG)
    config = options.config
    if config.print_config:
        say(options.saved.rstrip())
        return 0
    run = options.run or Run(new_run_dir(config))
    try:
        with training_in(run.folder):
            train(parser, options, run)
    except TrainingInterrupted as stop:
        (received,) = stop.args
        say(f"stopped by {received.name}, and saved; {run.how_to_resume}", sys.stderr)
        return 128 + received
    except Exception as error:
        if message := explanation(error, run):
            raise Mistake(message) from error
        if not gets_sentence(error):
            say(f"train.py: an error in the code, with this traceback; {run.how_to_resume}", sys.stderr)
        raise
    return 0


def train(parser: ArgumentParser, options: Options, run: Run) -> None:
    """Builds model, data and Trainer, and trains."""
    config = options.config
    seed_everything(config.seed_everything)
    built = parser.instantiate(config)
    module, end_of_step = built.model, EndOfStep(options, built.recording, built.samples, built.checkpoints)
    module.trained = options.trained
    data = TextDataModule(
        **config.data.as_dict() | {"tokenizer": options.tokenizer},
        context_length=config.model.gpt.context_length,
        seed=config.seed_everything,
    )
    trainer = build_trainer(options, run.folder, built, end_of_step)
    try:
        trainer.fit(module, data, ckpt_path=options.run and options.run.resumed)
    finally:
        end_of_step.signals.remove()
    tell(trainer, last_lines(trainer))


if __name__ == "__main__":
    # Until training begins, a signal exits at once. Then EndOfStep handles it: the run is saved first. Lightning finds
    # these handlers, so it does not let Slurm requeue the job, whose command would not resume the run.
    for signum in STOP_SIGNALS:
        signal.signal(signum, lambda received, _: sys.exit(128 + received))
    sys.exit(main())
