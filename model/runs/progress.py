"""What a person sees while training: a bar on a terminal, and a line for each validation."""

from __future__ import annotations

import os
import sys
import time

from lightning.pytorch import Trainer
from tqdm import tqdm

REFRESH_SECONDS = 0.2


class Progress:
    """Steps done, loss, bits per byte, tokens per second and the time left, from the newest figures."""

    def __init__(self, is_enabled: bool = True) -> None:
        self.is_enabled = is_enabled
        self.bar: tqdm | None = None

    def start(self, trainer: Trainer) -> None:
        self.is_enabled = self.is_enabled and trainer.is_global_zero
        self.first_step, self.started, self.refreshed = trainer.global_step, time.monotonic(), 0.0
        if self.is_enabled and sys.stderr.isatty():
            total = trainer.max_steps if trainer.max_steps > 0 else None
            bar_format = "{percentage:3.0f}%|{bar}| {desc}"
            self.bar = tqdm(total=total, dynamic_ncols=True, leave=False, bar_format=bar_format, file=sys.stderr)

    def refresh(self, trainer: Trainer, figures: dict[str, float]) -> None:
        """Moves the bar, if there is one."""
        if self.bar is not None and time.monotonic() - self.refreshed > REFRESH_SECONDS:
            self.refreshed = time.monotonic()
            self.bar.n = trainer.global_step
            self.bar.set_description_str(self.line(trainer, figures))

    def report(self, trainer: Trainer, figures: dict[str, float]) -> None:
        """Writes a line that stays."""
        if self.is_enabled:
            say(self.line(trainer, figures))

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def line(self, trainer: Trainer, figures: dict[str, float]) -> str:
        """Such as "step 300/960  loss 2.345  1.897 bits/byte  51.3k tokens/s  1:02 left"; only what is known."""
        step, max_steps = trainer.global_step, trainer.max_steps
        parts = [f"step {step:>{len(str(max_steps))}}/{max_steps}" if max_steps > 0 else f"step {step}"]
        if "train/loss" in figures:
            parts.append(f"loss {figures['train/loss']:.3f}")
        if "val/bits_per_byte" in figures:
            parts.append(f"{figures['val/bits_per_byte']:.3f} bits/byte")
        if "tokens_per_second" in figures:
            parts.append(f"{figures['tokens_per_second'] / 1000:.1f}k tokens/s")
        if "mfu" in figures:
            parts.append(f"{figures['mfu']:.0%} MFU")
        if step > self.first_step and max_steps > 0:
            seconds = (time.monotonic() - self.started) / (step - self.first_step) * (max_steps - step)
            parts.append(f"{tqdm.format_interval(seconds)} left")
        return "  ".join(parts)


def say(text: str) -> None:
    """Writes to standard output, above a bar. If its reader has gone, such as `head`, later output is dropped."""
    try:
        tqdm.write(text, file=sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
