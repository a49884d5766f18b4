"""Checkpoints: whole at every moment, plain data, and enough to go on bit for bit."""

from __future__ import annotations

import dataclasses
import logging
import random
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from model.checkpoint import read_checkpoint
from model.files import atomic_file, flush_folder
from model.gpt import GPTConfig

log = logging.getLogger(__name__)

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint aside and renames it; reads nothing that could run code."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        try:
            with atomic_file(Path(path)) as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:
            # Where a write fails, torch still ends its archive, and then complains only that this has failed.
            cause = error if isinstance(error, OSError) else error.__context__
            if not isinstance(cause, OSError):
                raise
            message = f"cannot be saved ({cause.strerror}): make room"
            if any(Path(path).with_name(name).exists() for name in (LAST, PREVIOUS, BEST)):
                message += ", then go on with --resume"
            raise OSError(cause.errno, message, str(path)) from error

    def load_checkpoint(self, path: str | Path, map_location: Any = None, weights_only: Any = None) -> dict[str, Any]:
        return read_checkpoint(Path(path))  # to the CPU, and plain data only, whatever the arguments ask for


def check_same_model(checkpoint: dict[str, Any], config: GPTConfig, tokenizer: dict[str, Any]) -> None:
    """Raises ValueError unless the checkpoint's weights belong to this model and tokenizer; dropout has no weights."""
    saved, current = checkpoint["gpt_config"], dataclasses.asdict(config)
    for name in sorted(saved.keys() | current.keys()):
        if name != "dropout" and saved.get(name) != current.get(name):
            raise ValueError(
                f"the checkpoint is of another model: its {name} is {saved.get(name)}, here it is {current.get(name)}"
            )
    if checkpoint["tokenizer"] != tokenizer:
        raise ValueError(
            f"the checkpoint is of a model with another tokenizer: {checkpoint['tokenizer']['name']!r} trained on "
            f"other text or of another size than {tokenizer['name']!r} here; use the data it was trained on"
        )


def check_same_optimizer(checkpoint: dict[str, Any], algorithm: str) -> None:
    """Raises ValueError unless the checkpoint's moments are those that `algorithm` goes on with."""
    for state in checkpoint.get("optimizer_states", []):
        saved = "muon" if any(group.get("muon") for group in state["param_groups"]) else "adamw"
        if saved != algorithm:
            raise ValueError(
                f"model.optimizer.algorithm is {algorithm}, but the checkpoint goes on with {saved} only: leave it, or "
                "begin a run without a checkpoint"
            )


class TrainingInterrupted(Exception):
    """Training stopped at a signal, after saving."""

    def __init__(self, signum: int):
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


class Checkpoints(Checkpoint):
    """Saves last.ckpt at every validation, at the end and when asked to stop, and best.ckpt at a lower val/loss.

    The last but one stays as previous.ckpt, so that a damaged last.ckpt costs one interval, not the run.
    Ctrl-C and SIGTERM let the current step end, save, and raise TrainingInterrupted; a second one does not wait.
    """

    def __init__(self, every_n_steps: int | None = None):
        """
        Args:
            every_n_steps: save last.ckpt also at every so many steps.
        """
        self.every_n_steps = every_n_steps
        self.best_loss = float("inf")
        self.saved_step = -1
        self.seen_step = 0
        self.last_is_damaged = False
        self.signum: int | None = None
        self.handlers: dict[int, Any] = {}
        self.resumed_random_state: dict | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"best_loss": self.best_loss}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best_loss = state["best_loss"]

    def on_save_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["gpt_config"] = dataclasses.asdict(module.gpt.config)
        checkpoint["tokenizer"] = trainer.datamodule.tokenizer.to_dict()
        checkpoint["random_states"] = gather_random_states(trainer)

    def on_load_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn != "fit":
            return
        # Lightning would restart its loops in the middle of an epoch, with rules for each place a save can happen.
        # Order and schedule depend on the step alone here, so fresh loops that begin to count at that step suffice.
        checkpoint.pop("loops", None)
        checkpoint["callbacks"].pop("Timer", None)  # trainer.max_time is a limit for each call, not for all together
        epoch_loop = trainer.fit_loop.epoch_loop
        step = checkpoint["global_step"]
        epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.ready = step
        epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = step
        batches = epoch_loop.batch_progress.total
        batches.ready = batches.started = batches.processed = batches.completed = step * trainer.accumulate_grad_batches
        self.seen_step = self.saved_step = step
        self.last_is_damaged = Path(trainer.ckpt_path).name == PREVIOUS
        states = checkpoint["random_states"]
        self.resumed_random_state = states[trainer.global_rank] if trainer.global_rank < len(states) else None

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        # Not earlier: making the loaders' iterators draws numbers too.
        if self.resumed_random_state is not None:
            set_random_state(self.resumed_random_state, module.device)
        elif trainer.global_rank > 0:
            torch.manual_seed(torch.initial_seed() + trainer.global_rank)  # ranks must not share their dropout masks
        if threading.current_thread() is threading.main_thread():
            self.handlers = {
                signum: signal.signal(signum, self._ask_to_stop) for signum in (signal.SIGINT, signal.SIGTERM)
            }

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        step = trainer.global_step
        if step == self.seen_step:  # gradients are still being accumulated
            trainer.should_stop = False  # trainer.max_time, which asks again; half a step could not be gone on from
            return
        self.seen_step = step
        if validation_follows(trainer):
            return  # which saves, and what it finds belongs to this step
        # All ranks must agree; asking them at every step would make each wait for the slowest.
        stops = (trainer.world_size == 1 or step % trainer.log_every_n_steps == 0) and self._is_asked_to_stop(trainer)
        if stops or (self.every_n_steps and step % self.every_n_steps == 0):
            self.save(trainer)
        if stops:
            raise TrainingInterrupted(self.signum or signal.SIGTERM)

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        if trainer.state.fn != "fit":
            return
        loss = module.validation_metrics["val/loss"]
        is_best = loss < self.best_loss
        self.best_loss = min(loss, self.best_loss)
        self.save(trainer, is_best)
        if self._is_asked_to_stop(trainer):
            raise TrainingInterrupted(self.signum or signal.SIGTERM)

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        if self.saved_step != trainer.global_step:
            self.save(trainer)

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self._restore_handlers()

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        self._restore_handlers()

    def save(self, trainer: Trainer, is_best: bool = False) -> None:
        """Writes last.ckpt, keeping the one before, and first best.ckpt if `is_best`.

        In this order, a kill in between leaves a last.ckpt that comes to the same best.ckpt again.
        """
        for logger in trainer.loggers:
            logger.save()  # what the checkpoint is past must be on the disk
        folder = Path(trainer.default_root_dir, "checkpoints")
        last, best = folder / LAST, folder / BEST
        aside = best if is_best else last.with_name(f".{LAST}.new")
        trainer.save_checkpoint(aside)
        if trainer.is_global_zero:
            if is_best:
                aside = last.with_name(f".{LAST}.new")
                with best.open("rb") as source, atomic_file(aside) as copy:
                    shutil.copyfileobj(source, copy)
            if last.exists() and not self.last_is_damaged:
                last.replace(folder / PREVIOUS)
            aside.replace(last)
            flush_folder(folder)
        self.last_is_damaged = False
        self.saved_step = trainer.global_step

    def _ask_to_stop(self, signum: int, frame: Any) -> None:
        if self.signum is not None:
            self._restore_handlers()
            raise SystemExit(128 + signum)
        self.signum = signum
        log.warning("Stopping after this step, to save; once more to stop at once.")

    def _is_asked_to_stop(self, trainer: Trainer) -> bool:
        asked = self.signum is not None
        return asked if trainer.world_size == 1 else trainer.strategy.reduce_boolean_decision(asked, all=False)

    def _restore_handlers(self) -> None:
        for signum, handler in self.handlers.items():
            signal.signal(signum, handler)
        self.handlers = {}


def validation_follows(trainer: Trainer) -> bool:
    """Whether the validation loop runs after the batch that has just ended."""
    return trainer.fit_loop.epoch_loop._should_check_val_fx(trainer.fit_loop._data_fetcher)


def gather_random_states(trainer: Trainer) -> list[dict[str, Any]]:
    """Every rank's random state, in order of rank, on every rank."""
    state = random_state(trainer.strategy.root_device)
    if trainer.world_size == 1:
        return [state]
    states: list[dict[str, Any]] = [{} for _ in range(trainer.world_size)]
    torch.distributed.all_gather_object(states, state)
    return states


def random_state(device: torch.device) -> dict[str, Any]:
    """States of the generators of torch (CPU and `device`), numpy and python, as plain data."""
    _, keys, position, has_gauss, cached_gaussian = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": (keys.tolist(), position, has_gauss, cached_gaussian),
        "python": random.getstate(),
    }


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Inverse of `random_state`."""
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
    keys, *rest = state["numpy"]
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), *rest))
    random.setstate(state["python"])
