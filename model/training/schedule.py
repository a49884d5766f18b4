"""The learning rate schedule, step -> factor: warm-up, a plateau, decay. Pure functions."""

import math
from dataclasses import dataclass
from typing import Literal

from model.mistakes import Mistake, check_choices, check_range


@dataclass
class ScheduleConfig:
    """How the learning rates change over a run: each group's own rate is multiplied by the same factor.

    `decay: linear` with a decay_fraction below 1 is warmup-stable-decay (Hu et al. 2024, arXiv:2404.06395);
    `decay: cosine` with a decay_fraction of 1 is the schedule of GPT-2 and nanoGPT.

    Args:
        warmup_steps: steps over which the factor of the learning rates grows linearly to 1.
        decay: shape of the factor's decay; none: the factor stays at 1.
        decay_fraction: share of all steps, at the end of the run, over which the factor decays. The decay begins after
            the warm-up at the earliest.
        final_factor: value that the factor decays towards, and would reach one step after the last.

    Raises:
        Mistake: if a value is not allowed.
    """

    warmup_steps: int = 0
    decay: Literal["linear", "cosine", "none"] = "linear"
    decay_fraction: float = 1.0
    final_factor: float = 0.0

    def __post_init__(self):
        check_choices(self, "model.schedule.")
        check_range("model.schedule.warmup_steps", self.warmup_steps, 0)
        check_range("model.schedule.decay_fraction", self.decay_fraction, 0, 1)
        check_range("model.schedule.final_factor", self.final_factor, 0, 1)


def learning_rate_factor(step: int, max_steps: int, config: ScheduleConfig) -> float:
    """Returns the factor for update number `step`, counted from 0 to max_steps - 1.

    The factor grows from 1 / warmup_steps to 1, stays at 1, and decays towards final_factor, which it would reach at
    step max_steps.

    Raises:
        Mistake: if the factor decays, but max_steps is -1 (no end).
    """
    warmup = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    if config.decay == "none":
        return warmup
    if max_steps < 0:
        raise Mistake(f"model.schedule.decay {config.decay} needs a last step: set trainer.max_steps, or decay to none")
    decay_steps = min(round(config.decay_fraction * max_steps), max_steps - config.warmup_steps)
    if decay_steps <= 0:
        return warmup
    progress = min(1.0, max(0.0, 1 - (max_steps - step) / decay_steps))
    remaining = (1 + math.cos(math.pi * progress)) / 2 if config.decay == "cosine" else 1 - progress
    return warmup * (config.final_factor + (1 - config.final_factor) * remaining)
