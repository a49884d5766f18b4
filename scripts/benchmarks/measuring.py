"""What a contender's process measures, and the callback of Lightning that measures within `python train.py`."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from model.gpt import in_eval_mode

WARM_UP = 3  # steps, in which PyTorch may compile
Row = dict[str, Any]


def leave_result(folder: str, figures: Row) -> None:
    """What a contender's process calls at its end: a time, and what describes the work."""
    Path(folder, "result.json").write_text(json.dumps(figures))


def synchronized_time(device: str) -> float:
    """The clock, in seconds, once the device has finished its work."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def describe(network: nn.Module, precision: str) -> dict[str, Any]:
    """The network, in which precision of matrix products, and on which machine. Shared weights count once."""
    parameters = list(network.parameters())
    name = torch.cuda.get_device_name() if parameters[0].is_cuda else processor_name()
    system, threads = platform.platform(terse=True), torch.get_num_threads()
    machine = {"device": name, "cores": os.cpu_count(), "threads": threads, "system": system}
    precision = "bfloat16" if precision.startswith("b") else "float32"  # "bf16-mixed" is the Trainer's name for it
    return {"parameters": sum(p.numel() for p in parameters), "precision": precision, "machine": machine}


def processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    name = re.search(r"^model name\s*: (.*)", cpuinfo.read_text() if cpuinfo.exists() else "", re.MULTILINE)
    return name[1] if name else platform.processor() or platform.machine()


class Curve:
    """The validation loss over the time of training."""

    def __init__(self, device: str, steps: int, evaluations: int):
        self.device = device
        self.due = {steps * number // evaluations for number in range(1, evaluations + 1)}
        self.points: list[dict[str, float]] = []
        self.step, self.seconds = 0, 0.0

    def after(self, step: int, evaluate: Callable[[], Row]) -> None:
        """To be called after every step; evaluates if that is due, with the clock stopped."""
        if step == self.step:  # gradients are still being accumulated
            return
        self.step = step
        if step in self.due:
            self.seconds += synchronized_time(self.device) - self.started
            seconds = self.seconds * step / (step - WARM_UP)
            self.points.append({"step": step, "seconds": seconds, **evaluate()})
        if step in self.due or step == WARM_UP:
            self.started = synchronized_time(self.device)


@torch.no_grad()
def mean_nats(model: nn.Module, losses: Iterable[tuple[Tensor, Tensor]]) -> Row:
    """The mean `loss` in float32 and eval mode, and the number of `targets`; `losses` yields a batch's sums of both."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    with in_eval_mode(model):
        nats, targets = zip(*((nats.item(), targets.item()) for nats, targets in losses), strict=True)
    torch.set_float32_matmul_precision(precision)
    return {"loss": sum(nats) / sum(targets), "targets": sum(targets)}


class LearningCurve(Callback):
    """Evaluates while `python train.py` trains. The ends of documents do not count: nanoGPT's text has none."""

    def __init__(self, output: str, evaluations: int):
        self.output, self.evaluations = output, evaluations

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.curve = Curve(module.device.type, trainer.max_steps, self.evaluations)

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        def losses() -> Iterator[tuple[Tensor, Tensor]]:
            for batch in map(trainer.strategy.batch_to_device, trainer.datamodule.val_dataloader()):
                ends = batch["targets"] == trainer.datamodule.tokenizer.end_of_text
                batch["targets"] = batch["targets"].masked_fill(ends, -100)
                yield module.gpt.loss(**batch, reduction="sum"), (batch["targets"] >= 0).sum()

        self.curve.after(trainer.global_step, lambda: mean_nats(module.gpt, losses()))

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        learned = {"curve": self.curve.points, "validation_bytes": trainer.datamodule.validation_bytes}
        leave_result(self.output, {**learned, **describe(module.gpt, trainer.precision)})
