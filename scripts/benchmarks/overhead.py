"""What the Trainer costs beside a bare loop, and what recording attention costs beside training without.

Stretches of the Trainer and of a bare loop alternate in one process, on the same model, optimizer and data, with maps,
samples and validation off. The recording is timed in a whole `python train.py`, with validation and checkpoints, beside
one without it, which must end in the same weights. With the defaults 4 minutes on 2 CPU cores.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from model.runs import attention
from scripts.benchmarks.contenders import Command, Row, alternate, compare, fit, leave_result
from scripts.benchmarks.machine import synchronized_time
from scripts.benchmarks.time_to_loss import NO_VALIDATION, describe
from scripts.parser import at_least

ROUNDS = 1
CONFIG = "configs/default.yaml"
BARE = ("--attention.enabled=false", "--samples.max_new_tokens=0", "--trainer.max_steps=1000000000", *NO_VALIDATION)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", default=CONFIG, metavar="YAML", help=f"what is trained (default: {CONFIG})")
    add("--seconds", type=at_least(0, float), default=45.0, help="of stretches in each round (default: 45)")
    add("--stretch", type=at_least(1), default=10, help="steps in a stretch (default: 10)")
    add("--steps", type=at_least(1), default=60, help="of training with and without recording (default: 60)")
    add("train_options", nargs="*", metavar="-- OPTION", help="for train.py, after a --; paths from the repository")


def run(options: argparse.Namespace, notes: list[str]) -> list[Row]:
    def command(callback: str, *last: str, **arguments: Any) -> Command:
        train_options = [*options.train_options, *last]
        return fit(f"overhead.{callback}", options.config, options.device, train_options, **arguments)

    steps = f"--trainer.max_steps={options.steps}"
    commands = {
        "trainer": command("BesideBareLoop", *BARE, stretch=options.stretch, seconds=options.seconds),
        "with maps": command("FitClock", steps, "--attention.enabled=true"),
        "without maps": command("FitClock", steps, "--attention.enabled=false"),
    }
    results = alternate(commands, options.rounds)
    pairs = [pair for result in results.pop("trainer") for pair in result["pairs"]]
    stretches = {name: [pair[name] for pair in pairs] for name in pairs[0]}
    name = Path(options.config).stem
    rows = [{"work": f"training step, {name}", **row} for row in compare(stretches, "trainer")]
    if results["with maps"][0]["weights"] != results["without maps"][0]["weights"]:
        notes.append("the weights of the two trainings differ: recording, or a device that is not deterministic")
    notes.append("maps: the time inside the recorder, as a share of the rest of the training.")
    return rows + [{"work": f"{options.steps} steps, {name}", **row} for row in compare(results, "with maps")]


class BesideBareLoop(Callback):
    """Times stretches of the Trainer and of a bare loop in turn.

    Args:
        stretch: steps; the first of each warms up and does not count.
        seconds: of all stretches together, after which training stops; three pairs are the least.
    """

    def __init__(self, output: str, stretch: int, seconds: float):
        self.output, self.stretch, self.enough_seconds = output, stretch, seconds
        self.pairs: list[tuple[float, float]] = []  # seconds of the Trainer's stretch and of the bare one after it
        self.started: float | None = None

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.batches = iter(trainer.datamodule.train_dataloader())
        self.next_stop = self.stretch

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        if trainer.global_step < self.next_stop:
            return
        now = synchronized_time(module.device.type)
        self.bare_steps(trainer, module)
        finished = synchronized_time(module.device.type)
        if self.started is not None:
            self.pairs.append((now - self.started, finished - now))
        if len(self.pairs) >= 3 and sum(map(sum, self.pairs)) >= self.enough_seconds:
            trainer.should_stop = True
        self.next_stop, self.started = trainer.global_step + self.stretch, finished

    def bare_steps(self, trainer: Trainer, module: LightningModule) -> None:
        """One stretch without Lightning's loop."""
        optimizer, accumulate = trainer.optimizers[0], trainer.accumulate_grad_batches
        rates = [group["lr"] for group in optimizer.param_groups]
        for _ in range(self.stretch):
            optimizer.zero_grad(set_to_none=True)
            for _ in range(accumulate):
                batch = {name: part.to(module.device, non_blocking=True) for name, part in next(self.batches).items()}
                with trainer.precision_plugin.forward_context():
                    loss = module.training_step(batch, 0)
                (loss / accumulate).backward()
            if trainer.gradient_clip_val:
                torch.nn.utils.clip_grad_norm_(module.parameters(), trainer.gradient_clip_val)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            optimizer.step()
        self.tokens = batch["tokens"].numel() * accumulate

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        work = {"tokens": self.tokens, "flops": self.tokens * module.gpt.flops_per_token(), **describe(trainer, module)}
        rows = [[{"milliseconds_per_step": 1000 * time / self.stretch, **work} for time in pair] for pair in self.pairs]
        leave_result(self.output, {"pairs": [dict(zip(("trainer", "bare loop"), pair, strict=True)) for pair in rows]})


class FitClock(Callback):
    """Times a whole fit, and the recording of attention maps in it."""

    def __init__(self, output: str):
        self.output, self.recordings, self.recording_seconds = output, 0, 0.0

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        record, device = attention.record_maps, module.device.type

        def timed(*arguments: Any, **options: Any) -> Any:
            started = synchronized_time(device)  # without the training that a GPU still has to do
            result = record(*arguments, **options)
            self.recording_seconds += synchronized_time(device) - started
            self.recordings += 1
            return result

        attention.record_maps = timed
        self.started = time.perf_counter()

    def on_fit_end(self, trainer: Trainer, module: LightningModule) -> None:
        seconds, digest = time.perf_counter() - self.started, hashlib.sha256()
        for weight in module.gpt.state_dict().values():
            digest.update(weight.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        share = self.recording_seconds / (seconds - self.recording_seconds)
        recording = {"recordings": self.recordings, "recording_share": share, "weights": digest.hexdigest()}
        leave_result(self.output, {"seconds": seconds, **recording, **describe(trainer, module)})
