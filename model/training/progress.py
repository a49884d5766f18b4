"""What a person sees while waiting: a bar on a terminal, and everywhere a line for each validation."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from tqdm import tqdm

from model.training.callbacks import Metrics

REFRESH_SECONDS = 0.2


class Progress(ProgressBar):
    """Steps done, loss, bits per byte, tokens a second and time left, from what `metrics` has last measured."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__()
        self.metrics = metrics
        self.enabled = True
        self.bar: tqdm | None = None

    def enable(self) -> None:
        self.enabled = True

    def disable(self) -> None:
        self.enabled = False

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.first_step, self.started, self.refreshed = trainer.global_step, time.monotonic(), 0.0
        if self.enabled and trainer.is_global_zero and sys.stderr.isatty():
            total = trainer.max_steps if trainer.max_steps > 0 else None
            self.bar = tqdm(
                total=total,
                dynamic_ncols=True,
                leave=False,
                bar_format="{percentage:3.0f}%|{bar}| {desc}",
                file=sys.stderr,
            )

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if self.bar is not None and time.monotonic() - self.refreshed > REFRESH_SECONDS:
            self.refreshed = time.monotonic()
            self.bar.n = trainer.global_step
            self.bar.set_description_str(self.line(trainer))

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        if self.enabled and trainer.is_global_zero and trainer.state.fn == "fit":
            say(self.line(trainer))

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        self.close()

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        self.close()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def line(self, trainer: Trainer) -> str:
        """Such as "step 300/960  loss 2.345  1.897 bits/byte  51.3k tokens/s  1:02 left"; only what is known."""
        step, max_steps, latest = trainer.global_step, trainer.max_steps, self.metrics.latest
        parts = [f"step {step:>{len(str(max_steps))}}/{max_steps}" if max_steps > 0 else f"step {step}"]
        if "train/loss" in latest:
            parts.append(f"loss {latest['train/loss']:.3f}")
        if "val/bits_per_byte" in latest:
            parts.append(f"{latest['val/bits_per_byte']:.3f} bits/byte")
        if "tokens_per_second" in latest:
            parts.append(f"{latest['tokens_per_second'] / 1000:.1f}k tokens/s")
        if "mfu" in latest:
            parts.append(f"{latest['mfu']:.0%} MFU")
        if step > self.first_step and max_steps > 0:
            seconds = (time.monotonic() - self.started) / (step - self.first_step) * (max_steps - step)
            parts.append(f"{tqdm.format_interval(seconds)} left")
        return "  ".join(parts)


def say(text: str) -> None:
    """Writes to standard output, above a bar; a reader that is gone, such as `head`, has seen enough."""
    try:
        tqdm.write(text, file=sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
