"""Training metrics, and metrics.csv."""

import csv
import io
import math
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from model.files import append, write_atomically
from model.mistakes import Mistake
from model.runs.results import read_metrics
from model.runs.run import METRICS
from model.training.hardware import peak_flops

# Every run has these, in this order; what else is logged (head scores) comes after them.
COLUMNS = ("step", "tokens", "train/loss", "val/loss", "val/bits_per_byte", "lr", "tokens_per_second", "mfu")


class TrainingMetrics:
    """Adds up the loss, on its device so that no step waits for it, the tokens and the time until a row is read."""

    def __init__(self) -> None:
        self.loss_sum: Tensor | float = 0.0  # over the batches since the last row
        self.num_batches = 0
        self.tokens = 0  # of the whole run, over all ranks
        self.timed_tokens = 0  # in `seconds`
        self.seconds = 0.0
        self.clock_started: float | None = None

    def start_clock(self) -> None:
        self.clock_started = self.clock_started or time.perf_counter()

    def stop_clock(self) -> None:
        if self.clock_started is not None:
            float(self.loss_sum)  # waits for the device, which may be steps behind
            self.seconds += time.perf_counter() - self.clock_started
            self.clock_started = None

    def add(self, loss: Tensor, num_tokens: int) -> None:
        """Counts a batch: its loss, which Lightning has divided by accumulate_grad_batches, and all ranks' tokens."""
        self.loss_sum = self.loss_sum + loss
        self.num_batches += 1
        self.tokens += num_tokens
        self.timed_tokens += num_tokens

    def row(self, trainer: Trainer) -> dict[str, float]:
        """The figures since the last call. Raises a `Mistake` if the loss has diverged."""
        loss = self.loss_sum * trainer.accumulate_grad_batches / self.num_batches
        loss = trainer.strategy.reduce(loss, reduce_op="mean").item()
        check_finite(loss, "the training loss")
        row = {
            "tokens": self.tokens,
            "train/loss": loss,
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
        }
        self.stop_clock()
        if self.seconds:
            row["tokens_per_second"] = self.timed_tokens / self.seconds
            if peak := peak_flops(trainer):
                row["mfu"] = row["tokens_per_second"] * trainer.lightning_module.gpt.flops_per_token() / peak
        self.loss_sum, self.num_batches, self.timed_tokens, self.seconds = 0.0, 0, 0, 0.0
        return row


def check_finite(figure: float, name: str) -> None:
    """Raises a `Mistake` if training has diverged: the figure is infinite or NaN."""
    if not math.isfinite(figure):
        raise Mistake(
            f"{name} has become {figure}: lower the learning rates under model.optimizer, lengthen "
            "model.schedule.warmup_steps or set trainer.gradient_clip_val; what was saved is from before"
        )


def log_metrics(trainer: Trainer, metrics: dict[str, float]) -> None:
    """Adds `metrics` to the current step's row of every logger."""
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=trainer.global_step)


def write_rows(trainer: Trainer) -> None:
    """Writes the current step's row, as far as it is, into metrics.csv."""
    for logger in trainer.loggers:
        if isinstance(logger, CSVLogger) and trainer.is_global_zero:
            logger.finalize("running")


class StepLogger(Logger):
    """Gathers all figures of a step in one row. Its step is the number of updates that the weights have had.

    Lightning's own figure for a step differs: `self.log` in an update has that of the update before, a callback at the
    start of a batch its own. So the trainer is asked, and what is logged at a step stands in that step's row.
    """

    name = version = ""  # Lightning's ModelCheckpoint saves in save_dir/name/version/checkpoints

    def __init__(self, run_dir: Path):
        super().__init__()
        self.run_dir = run_dir
        self.trainer: Trainer | None = None  # set before the run begins
        self.row: dict[str, Any] = {}

    @property
    def save_dir(self) -> str:
        return str(self.run_dir)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Does nothing: they are in the run's config.yaml."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        step = self.trainer.global_step
        if self.row and self.row["step"] != step:
            self.write(self.row)
            self.row = {}
        # Lightning adds the epoch, which is always 0 here. Every logger gets this dict, so it stays as it is.
        figures = {name: value for name, value in metrics.items() if name != "epoch"}
        self.row = {"step": step, **self.row, **figures}

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if self.row:
            self.write(self.row)

    def write(self, row: dict[str, Any]) -> None:
        """Takes a row that is whole, or that may still get more figures: then it is written again."""
        raise NotImplementedError


class CSVLogger(StepLogger):
    """metrics.csv. A row is appended, unless a column is new or the step has a row already: then all are written."""

    def __init__(self, run_dir: Path):
        super().__init__(run_dir)
        self.path = run_dir / METRICS
        self.columns: list[str] = []
        self.written: dict[str, Any] = {}  # the last row

    def write(self, row: dict[str, Any]) -> None:
        if row == self.written:
            return
        if row["step"] != self.written.get("step") and row.keys() <= set(self.columns):
            append(self.path, csv_lines(self.columns, [row]))
        else:
            rows = {one["step"]: one for one in read_metrics(self.path)}
            rows[row["step"]] = rows.get(row["step"], {}) | row
            self.columns = write_metrics(self.path, list(rows.values()))
        self.written = row


def write_metrics(path: Path, rows: list[dict[str, Any]]) -> list[str]:
    """Replaces a metrics.csv. Returns its columns."""
    columns = list(dict.fromkeys([*COLUMNS, *(column for row in rows for column in row)]))
    header = dict(zip(columns, columns, strict=True))
    write_atomically(path, csv_lines(columns, [header, *rows]).encode())
    return columns


def csv_lines(columns: list[str], rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    return text.getvalue()
