"""What a training is judged by: steps a second, the loss over time, the weights. Runs in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model.checkpoint import read_checkpoint
from scripts.benchmarks.limits import synchronize
from scripts.benchmarks.loops import Loop, build_loop, flops_per_token, num_parameters, rehearse, validation_loss
from scripts.benchmarks.workload import Size


def throughput(contender: str, size: dict[str, int], seconds: float, options: dict[str, Any]) -> dict[str, Any]:
    """Seconds a step, after three to warm up, on random tokens: what a step costs does not depend on the text."""
    size = Size.from_dict(size)
    tokens = np.random.default_rng(0).integers(size.vocab, size=100 * size.tokens_per_step)
    started = time.perf_counter()
    loop = build_loop(contender, tokens, size, options)
    rehearse(loop.step, loop.model, loop.optimizer, loop.device)
    cold_seconds = time.perf_counter() - started
    # On a GPU a clock at each step would stop it from running ahead, as it may between two lines of a log.
    stride = 10 if loop.device == "cuda" else 1
    steps, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds or steps < 3:
        for _ in range(stride):
            loop.step()
        synchronize(loop.device)
        steps += stride
    return {"seconds": elapsed / steps, "cold_seconds": cold_seconds, "steps": steps, **_describe(loop)}


def learning_curve(
    contender: str, size: dict[str, int], train: str, validation: str, evaluations: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Trains for options["steps"] and evaluates at so many equal distances, with the clock stopped.

    Args:
        train, validation: files of token ids, int64; the first of `validation` is context only.
    """
    size = Size.from_dict(size)
    text = torch.from_numpy(np.fromfile(validation, dtype=np.int64)).to(options["device"])
    loop = build_loop(contender, np.fromfile(train, dtype=np.int64), size, options)
    warm_up_seconds = rehearse(loop.step, loop.model, loop.optimizer, loop.device)
    loop.step_number = 0
    curve = Curve(loop.device, loop.steps, evaluations, warm_up_seconds)
    curve.start()
    for step in range(1, loop.steps + 1):
        loop.step()
        curve.after(step, lambda: validation_loss(loop.nats, loop.model, text, size.context))
    return {**curve.result(), "validation_tokens": len(text) - 1, **_describe(loop)}


class Curve:
    """The loss over the time that training has taken, without the time that finding it out took."""

    def __init__(self, device: str, steps: int, evaluations: int, warm_up_seconds: float):
        self.device, self.steps, self.warm_up_seconds = device, steps, warm_up_seconds
        self.due = [steps * number // evaluations for number in range(1, evaluations + 1)]
        self.points: list[dict[str, float]] = []
        self.seconds = 0.0
        self.started: float | None = None

    def start(self) -> None:
        """Lets the clock run, if it does not yet."""
        if self.started is None:
            synchronize(self.device)
            self.started = time.perf_counter()

    def after(self, step: int, evaluate: Callable[[], float]) -> None:
        """Evaluates after `step` if it is due, with the clock stopped."""
        if not self.due or step < self.due[0]:
            return
        synchronize(self.device)
        self.seconds += time.perf_counter() - self.started
        while self.due and self.due[0] <= step:
            self.due.pop(0)
        self.points.append({"step": step, "seconds": self.seconds, "loss": evaluate()})
        self.started = None
        self.start()

    def result(self) -> dict[str, Any]:
        seconds = self.points[-1]["seconds"]
        return {"curve": self.points, "seconds": seconds, "warm_up_seconds": self.warm_up_seconds, "steps": self.steps}


def _describe(loop: Loop) -> dict[str, Any]:
    return {
        "parameters": num_parameters(loop.model),
        "tokens_per_step": loop.size.tokens_per_step,
        "flops_per_token": flops_per_token(loop.model, loop.size),
        "precision": loop.precision,
    }


def same_weights(paths: list[str]) -> dict[str, bool]:
    """Whether the weights in all checkpoints are equal, bit for bit."""
    first, *others = [read_checkpoint(Path(path))["state_dict"] for path in paths]
    equal = [
        other.keys() == first.keys() and all(torch.equal(other[name], first[name]) for name in first)
        for other in others
    ]
    return {"same": all(equal)}
