"""Lightning callbacks that time `python train.py` from inside; each writes what it measured to a file, as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from model.training.callbacks import AttentionRecording, Stopwatch
from scripts.benchmarks.limits import synchronize
from scripts.benchmarks.loops import rehearse, validation_loss
from scripts.benchmarks.training import Curve


class LearningCurve(Callback):
    """The exact validation loss over the time that the Trainer has taken, evaluation not counted."""

    def __init__(self, output: str, validation: str, evaluations: int):
        """
        Args:
            output: where the result goes.
            validation: file of the validation text's token ids, int64; the first is context only.
            evaluations: how many, at equal distances.
        """
        self.output, self.validation, self.evaluations = output, validation, evaluations

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.tokens_per_step, warm_up_seconds = warm_up(trainer, module)
        self.text = torch.from_numpy(np.fromfile(self.validation, dtype=np.int64)).to(module.device)
        self.curve = Curve(module.device.type, trainer.max_steps, self.evaluations, warm_up_seconds)

    def on_train_batch_start(self, *_: Any) -> None:
        self.curve.start()

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        gpt = module.gpt
        nats = partial(gpt.loss, reduction="sum")
        self.curve.after(trainer.global_step, lambda: validation_loss(nats, gpt, self.text, gpt.config.context_length))

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        result = {
            **self.curve.result(),
            "validation_tokens": len(self.text) - 1,
            **description(trainer, module, self.tokens_per_step),
        }
        Path(self.output).write_text(json.dumps(result))


class BesideBareLoop(Callback):
    """Times stretches of the Trainer and of a bare loop in turn: the same model, optimizer and data in one process."""

    def __init__(self, output: str, stretch: int, seconds: float, min_pairs: int):
        """
        Args:
            output: where the result goes: seconds a step of each, stretch by stretch.
            stretch: steps; the Trainer's first stretch, and a bare one after it, warm up and do not count.
            seconds: of both together, after which the training stops.
            min_pairs: of stretches, one of each, however long they take.
        """
        self.output, self.stretch, self.enough_seconds, self.min_pairs = output, stretch, seconds, min_pairs

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.device = module.device.type
        self.batches = iter(trainer.datamodule.train_dataloader())
        self.next_stop = self.stretch
        self.started: float | None = None
        self.seconds: dict[str, list[float]] = {"trainer": [], "bare": []}

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        if trainer.global_step < self.next_stop:
            return
        synchronize(self.device)
        now, steps = time.perf_counter(), trainer.global_step - self.next_stop + self.stretch
        bare_seconds = self._bare_steps(trainer, module, steps)
        if self.started is not None:
            self.seconds["trainer"].append((now - self.started) / steps)
            self.seconds["bare"].append(bare_seconds / steps)
            spent = steps * (sum(self.seconds["trainer"]) + sum(self.seconds["bare"]))
            trainer.should_stop = spent >= self.enough_seconds and len(self.seconds["bare"]) >= self.min_pairs
        self.next_stop = trainer.global_step + self.stretch
        self.started = time.perf_counter()

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        result = {
            **self.seconds,
            **description(trainer, module, self.tokens_per_step),
        }
        Path(self.output).write_text(json.dumps(result))

    def _bare_steps(self, trainer: Trainer, module: LightningModule, steps: int) -> float:
        """Seconds of so many steps of a loop that owes Lightning nothing."""
        optimizer, gpt, accumulate = trainer.optimizers[0], module.gpt, trainer.accumulate_grad_batches
        dtype = torch.bfloat16 if precision_in_words(trainer) == "bfloat16" else None
        started = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            for _ in range(accumulate):
                batch = {name: value.to(module.device, non_blocking=True) for name, value in next(self.batches).items()}
                with torch.autocast(self.device, dtype=dtype, enabled=dtype is not None):
                    loss = module.loss(batch["tokens"], batch["targets"], document_ids=batch.get("document_ids"))
                (loss / accumulate).backward()
            if trainer.gradient_clip_val:
                torch.nn.utils.clip_grad_norm_(gpt.parameters(), trainer.gradient_clip_val)
            factor = module.learning_rate_factor()
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor
            optimizer.step()
        synchronize(self.device)
        self.tokens_per_step = batch["tokens"].numel() * accumulate
        return time.perf_counter() - started


class TrainingClock(Callback):
    """Seconds of training, neither compiling nor validation counted, and the bits per byte that it ends at."""

    def __init__(self, output: str):
        """
        Args:
            output: where the result goes.
        """
        self.output = output
        self.clock = Stopwatch()
        self.step_seconds: list[float] = []

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.tokens_per_step, self.warm_up_seconds = warm_up(trainer, module)

    def on_train_batch_start(self, *_: Any) -> None:
        self.clock.start()

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        if trainer.global_step == len(self.step_seconds):  # gradients are still being accumulated
            return
        synchronize(module.device.type)
        self.step_seconds.append(self.clock.lap())

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        result = {
            "seconds": sum(self.step_seconds),
            "warm_up_seconds": self.warm_up_seconds,
            "step_seconds": self.step_seconds,
            "steps": trainer.global_step,
            "bits_per_byte": module.validation_metrics["val/bits_per_byte"],
            "validation_tokens": trainer.datamodule.validation_tokens,
            **description(trainer, module, self.tokens_per_step),
        }
        Path(self.output).write_text(json.dumps(result))


class FitClock(Callback):
    """Seconds of a whole fit, validation and checkpoints included, and those of it that AttentionRecording took."""

    HOOKS = ("on_train_start", "on_train_batch_end", "on_validation_end")

    def __init__(self, output: str):
        """
        Args:
            output: where the result goes.
        """
        self.output = output
        self.recording_seconds = 0.0

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        for callback in trainer.callbacks:
            if isinstance(callback, AttentionRecording):
                for hook in self.HOOKS:
                    setattr(callback, hook, self._timed(getattr(callback, hook)))
        self.started = time.perf_counter()

    def on_fit_end(self, trainer: Trainer, module: LightningModule) -> None:
        result = {
            "seconds": time.perf_counter() - self.started,
            "recording_seconds": self.recording_seconds,
            "steps": trainer.global_step,
            "recordings": len(list(Path(trainer.default_root_dir).glob("attention/step_*.npz"))),
            "parameters": module.gpt.num_parameters(),
            "precision": precision_in_words(trainer),
        }
        Path(self.output).write_text(json.dumps(result))

    def _timed(self, hook: Callable) -> Callable:
        def timed(trainer: Trainer, module: LightningModule, *arguments: Any) -> None:
            synchronize(module.device.type)  # or the hook would wait for the training that is still under way
            started = time.perf_counter()
            hook(trainer, module, *arguments)
            synchronize(module.device.type)
            self.recording_seconds += time.perf_counter() - started

        return timed


def warm_up(trainer: Trainer, module: LightningModule) -> tuple[int, float]:
    """Compiles what will be compiled, in three steps that leave no trace; returns a step's tokens, and the seconds."""
    batch = trainer.strategy.batch_to_device(next(iter(trainer.datamodule.train_dataloader())))

    def step() -> None:
        with trainer.precision_plugin.forward_context():
            loss = module.training_step(batch, 0)
        loss.backward()
        trainer.optimizers[0].step()
        trainer.optimizers[0].zero_grad()

    seconds = rehearse(step, module.gpt, trainer.optimizers[0], module.device.type)
    return batch["tokens"].numel() * trainer.accumulate_grad_batches, seconds


def description(trainer: Trainer, module: LightningModule, tokens_per_step: int) -> dict[str, Any]:
    """What was trained, and how much of it a step is."""
    return {
        "parameters": module.gpt.num_parameters(),
        "tokens_per_step": tokens_per_step,
        "flops_per_token": module.gpt.flops_per_token(),
        "precision": precision_in_words(trainer),
    }


def precision_in_words(trainer: Trainer) -> str:
    """Of the products in training: "bfloat16" or "float32"."""
    return "bfloat16" if "bf16" in str(trainer.precision) else "float32"
