"""Checkpoints: written atomically, plain data, enough to resume bit for bit.

What --resume does, in this order:

1. `read_options` picks the checkpoint (see `Run.resumed`) and lays the typed options over the run's config.yaml.
2. `AtomicCheckpointIO.load_checkpoint` reads the checkpoint and refuses one that cannot be resumed. The model, the
   data module and `EndOfStep.on_load_checkpoint` restore what they saved in it; `start_loops_at` sets the step.
3. `EndOfStep.on_train_start` calls `rewind`, which deletes what the run recorded after that step, and replaces
   config.yaml.

Nothing in the run's folder changes before 3. It is locked after 1.
"""

import random
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jsonargparse.typing import NonNegativeInt, PositiveInt
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Trainer

from model.checkpoint import read_checkpoint
from model.files import atomic_file, write_atomically
from model.mistakes import Mistake, file_errors, listed
from model.runs.code import open_known
from model.runs.records import as_line, read_lines, read_metrics, write_metrics
from model.runs.run import ATTENTION, BEST, CHECKPOINTS, HEAD_SCORES, LAST, METRICS, SAMPLES, by_step

# What a checkpoint needs to be resumed, besides what every checkpoint has.
RESUMED = ("TextDataModule", "best", "callbacks", "loops", "loss_sum", "lr_schedulers", "optimizer_states")


@dataclass
class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a temporary file and renames it; reads plain data only, which cannot run code.

    other_code: whether to resume a checkpoint that other code than this has trained.
    """

    other_code: bool = False

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        with atomic_file(Path(path)) as file:
            try:
                torch.save(checkpoint, file)
            except RuntimeError as error:  # torch's own may hide the one that came first: a full disk, a signal
                raise error.__context__ or error from None

    def load_checkpoint(self, path: str | Path, map_location: Any = None, weights_only: Any = None) -> dict[str, Any]:
        # Plain data only, and onto the CPU, whatever the arguments say.
        _, checkpoint = open_known(Path(path), other_code="accept" if self.other_code else "refuse")
        if missing := [key for key in RESUMED if key not in checkpoint]:
            raise Mistake(
                f"{path} has no {listed(missing)}: it has the weights only, or is of another version; start a new run "
                "from its weights with --model.init_from"
            )
        del checkpoint["loops"]  # see start_loops_at
        return checkpoint


@dataclass
class Checkpoints:
    """Saves last.ckpt at every validation, at the end and when stopped, and best.ckpt when val/loss is the lowest yet.

    Args:
        every_n_steps: steps from one further save of last.ckpt to the next; null: no further saves.
        keep_steps: also save these steps in files of their own, such as step_00000500.ckpt, to see later how the model
            changed. 0 is the model before training.
    """

    every_n_steps: PositiveInt | None = None
    keep_steps: list[NonNegativeInt] = field(default_factory=list)

    def save(self, trainer: Trainer, is_best: bool = False) -> None:
        """Writes best.ckpt if `is_best`, the step's own file if it is one of keep_steps, and last.ckpt.

        last.ckpt comes last: a run killed in between resumes from the older last.ckpt and writes the same files again.
        """
        run_dir, step = Path(trainer.default_root_dir), trainer.global_step
        files = [run_dir / BEST] if is_best else []
        if step in self.keep_steps:
            files.append(run_dir / CHECKPOINTS / f"step_{step:08d}.ckpt")
        first, *others = [*files, run_dir / LAST]
        trainer.save_checkpoint(first)
        if trainer.is_global_zero:
            for other in others:
                copy(first, other)


def copy(source: Path, target: Path) -> None:
    """Copies a file in pieces: a checkpoint may be larger than the memory that is left."""
    with source.open("rb") as content, atomic_file(target) as file:
        shutil.copyfileobj(content, file)


def rewind(run_dir: Path, resumed: Path, step: int) -> bool:
    """Deletes what a run recorded after `step`, the step of the checkpoint `resumed`, which becomes last.ckpt.

    It becomes best.ckpt too if its val/loss is the lowest yet and best.ckpt is gone. Returns whether there is one.

    Raises a `Mistake` for a damaged metrics.csv, samples.jsonl or scores.jsonl, before it changes anything.
    """
    metrics, best, last = run_dir / METRICS, run_dir / BEST, run_dir / LAST
    rows = [row for row in read_metrics(metrics) if row["step"] <= step]
    losses = {row["step"]: row["val/loss"] for row in rows if "val/loss" in row}
    records = {path: read_lines(path) for path in (run_dir / SAMPLES, run_dir / HEAD_SCORES)}
    later = []
    for pattern in (f"{CHECKPOINTS}/step_*.ckpt", f"{ATTENTION}/step_*.npz"):
        later += [path for at, path in by_step(run_dir.glob(pattern)).items() if at > step]
    with suppress(Mistake):  # best.ckpt is missing, or damaged: then its step is unknown, and it stays
        if read_checkpoint(best, on_disk=True)["global_step"] > step:
            later.append(best)
    # Checkpoints first: a run that is killed in between resumes from this step and deletes the rest then.
    if resumed.resolve() != last.resolve():
        copy(resumed, last)
    for path in later:
        with file_errors(path):
            path.unlink(missing_ok=True)
    if not best.exists() and step in losses and losses[step] == min(losses.values()):
        copy(resumed, best)
    if metrics.exists():
        write_metrics(metrics, rows)
    for path, found in records.items():
        if path.exists():
            write_atomically(path, "".join(as_line(record) for record in found if record["step"] <= step).encode())
    return best.exists()


def start_loops_at(step: int, trainer: Trainer, checkpoint: dict[str, Any]) -> None:
    """Makes the Trainer's loops count from `step`, instead of restoring the loops of the checkpoint.

    Lightning would resume in the middle of an epoch, with a rule for every place where a checkpoint can be saved. Here
    the order of the batches and the schedule depend on the step alone, so fresh loops that count from it suffice: the
    loader of the first epoch has the batches that are left of it.
    """
    checkpoint["callbacks"].pop("Timer", None)  # trainer.max_time limits each call of train.py, not their sum
    loop, batches = trainer.fit_loop.epoch_loop, step * trainer.accumulate_grad_batches
    trainer.fit_loop.epoch_progress.current.completed = batches // trainer.limit_train_batches
    state = loop.state_dict()
    state["state_dict"]["_batches_that_stepped"] = step
    state["automatic_optimization.optim_progress"]["optimizer"]["step"]["total"] = {"ready": step, "completed": step}
    loop.load_state_dict(state)
    loop.restarting = False  # it begins a new epoch


def seed_step(seed: int, trainer: Trainer) -> None:
    """Seeds the random generators of torch (CPU and GPU), numpy and Python for what is drawn until the step ends.

    They depend on the run's seed, the step and the rank alone, as the order of the batches does. So a resumed run draws
    the same numbers, and a checkpoint needs no state of a generator. Every rank has its own dropout masks.
    """
    device = trainer.strategy.root_device
    sequence = np.random.SeedSequence([seed, trainer.global_step, trainer.global_rank])
    own = int(sequence.generate_state(1)[0])
    torch.default_generator.manual_seed(own)  # torch.manual_seed would take a quarter of a millisecond
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(own)
    np.random.seed(own)
    random.seed(own)
