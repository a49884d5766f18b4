"""The training metrics, and the logger that writes all metrics of a step as one row."""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from model.mistakes import Mistake
from model.runs.records import Row, add_rows
from model.runs.run import METRICS
from model.runs.weights_and_biases import WeightsAndBiases
from model.training.hardware import peak_flops


@dataclass
class TrainingMetrics:
    """Sums of loss, tokens and time since the last `take`. The loss stays on its device, so that no step waits."""

    new_tokens: int = 0  # since the last `take`, of all ranks
    loss_sum: Tensor | float = 0.0  # over the new tokens, in nats
    timed_tokens: int = 0  # since `started`
    started: float | None = None

    def start_clock(self) -> None:
        if self.started is None:
            self.timed_tokens, self.started = 0, time.perf_counter()

    def stop_clock(self) -> None:
        """Leaves out what follows, until a batch begins. What was timed before is not used."""
        self.started = None

    def add(self, loss: Tensor, num_tokens: int) -> None:
        """Counts a batch.

        Args:
            loss: this rank's loss, in nats per token.
            num_tokens: the tokens of all ranks.
        """
        self.loss_sum = self.loss_sum + loss * num_tokens
        self.new_tokens += num_tokens
        self.timed_tokens += num_tokens

    def take(self, trainer: Trainer) -> dict[str, float]:
        """Returns the metrics since the last call, and starts new sums. Raises `Diverged` for an infinite or NaN loss.

        Speed is that since the clock was started, which may be later.
        """
        loss = trainer.strategy.reduce(self.loss_sum / self.new_tokens, reduce_op="mean").item()  # waits for the device
        if not math.isfinite(loss):
            raise Diverged("the training loss")
        data, speed = trainer.datamodule, self.timed_tokens / (time.perf_counter() - self.started)
        metrics = {
            "tokens": data.windows_read * data.context_length,  # since the beginning of the run
            "train/loss": loss,
            "lr": trainer.optimizers[0].param_groups[0]["lr"],  # of the first group, the embeddings
            "tokens_per_second": speed,
        }
        if peak := peak_flops(trainer):
            metrics["mfu"] = speed * trainer.lightning_module.gpt.flops_per_token() / peak
        self.loss_sum, self.new_tokens = 0.0, 0
        self.stop_clock()
        return metrics


class Diverged(Mistake):
    """Raised when a loss or a weight has become infinite or NaN. what: the loss or weight."""

    def __init__(self, what: str):
        super().__init__(
            f"{what} has become infinite or NaN: lower the learning rates under model.optimizer, raise "
            "model.schedule.warmup_steps or set trainer.gradient_clip_val; if it is so from the first step on, look in "
            "the network's code, such as for a softmax over no key; all checkpoints are from before that"
        )


def log_metrics(trainer: Trainer, metrics: dict[str, float]) -> None:
    """Adds `metrics` to the current step's row, in every logger."""
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=trainer.global_step)


@dataclass(eq=False)
class RunLogger(Logger):
    """Writes metrics.csv, where all metrics of a step are one row, and passes them on to Weights & Biases.

    A step is the number of updates that the weights have had. The step that Lightning passes to a logger is not that
    number: `self.log` during an update passes the step before, and callbacks at the start of a batch choose one
    themselves. So this takes the step from the trainer.
    """

    run_dir: Path
    wandb: WeightsAndBiases
    trainer: Trainer | None = None  # set before training begins
    rows: list[Row] = field(default_factory=list)  # what the file lacks; a step may have several

    name = version = ""  # so that ModelCheckpoint's save_dir/name/version/checkpoints is the run's checkpoints/

    @property
    def save_dir(self) -> str:
        return str(self.run_dir)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Does nothing, because all options are in the run's config.yaml."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Takes tensors too. Raises an error at the caller's line for a value that would make the file unreadable."""
        numbers = {name: value if type(value) in (int, float) else float(value) for name, value in metrics.items()}
        numbers.pop("epoch", None)  # Lightning adds it, a count of validations
        step = self.trainer.global_step
        self.rows.append(numbers | {"step": step})  # callbacks may log a step of their own
        self.wandb.log(numbers, step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Writes the file. status: "running" at every validation, recording and checkpoint, else how the run ends."""
        if self.rows and self.run_dir.exists():
            add_rows(self.run_dir / METRICS, self.rows)
            self.rows = []
        self.wandb.finish(status)
