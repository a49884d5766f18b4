"""What the terminal shows of a run: its first and last lines, Lightning's bar, and a line for each recording."""

import math
import shlex
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from tqdm import tqdm

from model.runs.run import REPORT, Run
from model.runs.terminal import output_is_closed, say
from model.training.hardware import device_name
from model.training.schedule import learning_rate_factor

LEARNED = 0.1  # nats below ln V; to know only which tokens are frequent gives more


class Progress(TQDMProgressBar):
    """Lightning's bar, over the steps of the run."""

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        super().on_train_start()
        self.train_progress_bar.total = trainer.max_steps if trainer.max_steps > 0 else None
        self.train_progress_bar.initial = trainer.global_step

    def on_train_epoch_start(self, *_: Any) -> None:
        """Does nothing, where Lightning begins a new bar after each validation."""

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, _: int) -> None:
        super().on_train_batch_end(trainer, module, outputs, batch, trainer.global_step - 1)


def tell(trainer: Trainer, text: str) -> None:
    """Prints above the bar, on the first rank.

    Discards all output once the reader of standard output, such as `head`, has closed it.
    """
    if trainer.is_global_zero:
        try:
            with tqdm.external_write_mode(sys.stdout):
                say(text)
        except BrokenPipeError:
            output_is_closed()


def first_lines(trainer: Trainer) -> str:
    """Returns what a run prints first: the model's size, device and precision; the corpus; the page's path. Such as

    runs/first: 4,720,000 parameters, on 1 x AMD EPYC 7B13, 2 threads, precision bf16-mixed
    stdlib: 5,012,345 tokens to train on and 543,210 to validate, from a vocabulary of 4,096 (bpe)
    watch: runs/first/report.html
    """
    gpt, data, device = trainer.lightning_module.gpt, trainer.datamodule, trainer.strategy.root_device
    train, validation, tokenizer = data.tokenized.train, data.tokenized.validation, data.tokenizer
    return (
        f"{trainer.default_root_dir}: {gpt.num_parameters():,} parameters, on {trainer.world_size} x "
        f"{device_name(device)}, {torch.get_num_threads()} threads, precision {trainer.precision}\n"
        f"{data.corpus.name}: {train.num_tokens:,} tokens to train on and {validation.num_tokens:,} to validate, "
        f"from a vocabulary of {tokenizer.vocab_size:,} ({tokenizer.name})\n"
        f"watch: {Path(trainer.default_root_dir, REPORT)}"
    )


def progress_line(trainer: Trainer, *, is_validated: bool) -> str:
    """Returns such as "step 300 of 960: train/loss 2.345, tokens_per_second 51,340, val/bits_per_byte 1.897"."""
    steps = f"{trainer.global_step} of {trainer.max_steps}" if trainer.max_steps > 0 else f"{trainer.global_step}"
    metrics = []
    validated = trainer.lightning_module.validation_metrics if is_validated else {}
    figures = trainer.progress_bar_metrics | validated
    for name, value in figures.items():
        digits = ",.0f" if value >= 1000 else ".4g"
        metrics.append(f"{name} {value:{digits}}")
    return f"step {steps}: {', '.join(metrics)}"


def last_lines(trainer: Trainer) -> str:
    """Returns what a run prints last: its result, where its files are, what to type next, and what a user should know.

    That is what more steps do to a learning rate that has decayed, why the run ended before trainer.max_steps, and that
    its last validation loss is that of guessing, ln V. Or only that nothing was trained, because the run has reached
    its end already, or that lies before.
    """
    step, module = trainer.global_step, trainer.lightning_module
    if trainer.fit_loop.total_batch_idx < 0:
        limits = f"trainer.max_steps {trainer.max_steps} or trainer.max_time"
        return f"nothing was trained: the run is at step {step}, and {limits} leaves no step"
    run = Run(Path(trainer.default_root_dir))
    folder = shlex.quote(str(run.folder))
    reached = module.validation_metrics
    lines = [
        f"\nvalidation: {reached['val/bits_per_byte']:.4f} bits per byte after {step} steps" if reached else "",
        f"everything is in {run.folder}/\n",
        f"  python scripts/generate.py --checkpoint {folder}           generate text",
        f"  {run.resume_command} --trainer.max_steps N    train it further\n",
        f"to see what it learned, open {run.folder / REPORT} in a browser",
    ]
    factor, longer = (
        learning_rate_factor(step - 1, last, module.schedule_config)
        for last in (trainer.max_steps, 2 * trainer.max_steps)
    )
    if factor < longer:
        lines.append(f"with more than {trainer.max_steps} steps the learning rate rises again: the schedule ends later")
    if step != trainer.max_steps:
        reason = stopped_early(trainer) or "trainer.max_time is over, or a callback stopped it"
        lines.append(f"ended after step {step}: {reason}")
    loss = reached.get("val/loss", -math.inf)
    guessing = math.log(module.gpt.config.vocab_size)
    if loss >= guessing - LEARNED:
        lines.append(f"it has learned nothing: its validation loss is {loss:.3f}, and that of guessing {guessing:.3f}")
    return "\n".join(lines)


def stopped_early(trainer: Trainer) -> str:
    """Returns why EarlyStopping has ended the run, "" if it has not."""
    reasons = [callback.stopping_reason_message for callback in trainer.early_stopping_callbacks]
    return " ".join(filter(None, reasons))
