"""Step -> factor on the learning rates: warm-up, a plateau, decay. Pure functions."""

import math
from dataclasses import dataclass


@dataclass
class ScheduleConfig:
    """How the learning rates move over a run; every parameter group's own rate is multiplied by the same factor.

    A plateau and then `decay: linear` is warm-up-stable-decay (Hu et al. 2024, arXiv:2404.06395); `decay: cosine`
    with a decay_fraction of 1 is GPT-2's and nanoGPT's.

    Args:
        warmup_steps: steps over which the factor grows linearly to 1.
        decay: "linear", "cosine" or "none".
        decay_fraction: share of all steps, at the end, over which it falls; what the warm-up takes is not shared.
        final_factor: what it would fall to one step after the last.
    """

    warmup_steps: int = 0
    decay: str = "linear"
    decay_fraction: float = 1.0
    final_factor: float = 0.0

    def __post_init__(self):
        if self.warmup_steps < 0:
            raise ValueError(f"schedule.warmup_steps must not be negative, not {self.warmup_steps}")
        if self.decay not in ("linear", "cosine", "none"):
            raise ValueError(f"schedule.decay must be 'linear', 'cosine' or 'none', not {self.decay!r}")
        for name in ("decay_fraction", "final_factor"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"schedule.{name} must be in [0, 1], not {getattr(self, name)}")


def learning_rate_factor(step: int, max_steps: int, config: ScheduleConfig) -> float:
    """The factor for the update that `step` others (0 ... max_steps - 1) came before.

    Raises:
        ValueError: if the rates must decay towards an end that max_steps (-1: none) does not give.
    """
    return warmup_factor(step, config.warmup_steps) * decay_factor(step, max_steps, config)


def warmup_factor(step: int, warmup_steps: int) -> float:
    """1 / warmup_steps for the first update, 1 from the last one of the warm-up on."""
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0


def decay_factor(step: int, max_steps: int, config: ScheduleConfig) -> float:
    """1 up to the beginning of the decay, then down to final_factor, reached at step max_steps."""
    if config.decay == "none":
        return 1.0
    if max_steps < 0:
        raise ValueError(f"schedule.decay '{config.decay}' needs an end: set trainer.max_steps, or decay to 'none'")
    decay_steps = min(round(config.decay_fraction * max_steps), max_steps - config.warmup_steps)
    if decay_steps <= 0:
        return 1.0
    progress = min(1.0, max(0.0, 1 - (max_steps - step) / decay_steps))
    remaining = (1 + math.cos(math.pi * progress)) / 2 if config.decay == "cosine" else 1 - progress
    return config.final_factor + (1 - config.final_factor) * remaining
