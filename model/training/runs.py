"""A run's folder: how it is named, made, found again, and what is said about it at the end."""

from __future__ import annotations

import csv
import logging
import lzma
import shlex
import time
from pathlib import Path

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from model.checkpoint import verify_checkpoint
from model.files import write_atomically
from model.runs.records import write_report
from model.runs.checkpoints import BEST, LAST, PREVIOUS

log = logging.getLogger(__name__)

# So much, xz packs in a few seconds; more would keep a person waiting at the end of a run.
XZ_BYTES = 10_000_000


class RunFolder(Callback):
    """Makes the folder, with the config in it, when training begins: a mistake found before leaves nothing behind.

    A resumed run has both, and its config only changes with the first step: a mistake found before must not stay.
    """

    def __init__(self, config: str, is_new: bool) -> None:
        self.config = config
        self.is_new = is_new

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        check_options(trainer)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        if self.is_new and trainer.is_global_zero:
            Path(trainer.default_root_dir).mkdir(parents=True)
            self._write_config(trainer)

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        if not self.is_new and trainer.is_global_zero:  # everyone's on_train_start has found nothing wrong
            self._write_config(trainer)

    def _write_config(self, trainer: Trainer) -> None:
        write_atomically(Path(trainer.default_root_dir, "config.yaml"), self.config.encode())


def check_options(trainer: Trainer) -> None:
    """Raises ValueError for options of Lightning's that would do nothing, or harm, where batches go on without end."""
    if trainer.max_epochs not in (None, -1) and not trainer.fast_dev_run:
        raise ValueError("trainer.max_epochs: training is counted in steps here, set trainer.max_steps")
    if trainer.limit_train_batches not in (None, 1.0) and not (trainer.overfit_batches or trainer.fast_dev_run):
        raise ValueError("trainer.limit_train_batches: would begin the same batches anew, set trainer.max_steps")
    if type(trainer.strategy).__name__ in ("FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy"):
        raise ValueError("trainer.strategy: the optimizer needs matrices that know their shape, so write ddp or fsdp")
    for name in ("log_every_n_steps", "accumulate_grad_batches"):
        if getattr(trainer, name) < 1:
            raise ValueError(f"trainer.{name} must be at least 1, not {getattr(trainer, name)}")
    interval, accumulate = trainer.val_check_interval, trainer.accumulate_grad_batches
    if isinstance(interval, int) and interval % accumulate:
        raise ValueError(
            f"trainer.val_check_interval is {interval} batches, which would validate in the middle of a step: "
            f"make it a multiple of trainer.accumulate_grad_batches, {accumulate}"
        )


def new_run_dir(runs_dir: Path, name: str | None, config: str) -> Path:
    """The folder for a new run, not made yet: `name`, or else the config's name and the time.

    Raises:
        FileExistsError: if a run has this name.
        ValueError: if the name is no name for a folder.
    """
    if name is None:
        stem = name = f"{Path(config).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        number = 1
        while (runs_dir / name).exists():  # two runs within a second
            number += 1
            name = f"{stem}-{number}"
    elif name in ("", ".", "..") or Path(name).name != name:
        raise ValueError(f"--name must be a name for a folder under {runs_dir}/, not {name!r}")
    if (runs_dir / name).exists():
        raise FileExistsError(
            f"{runs_dir / name} exists: go on with --resume {runs_dir / name}, or take another --name"
        )
    return runs_dir / name


def check_config(path: Path) -> None:
    """Raises ValueError where a run's config.yaml is not what the run has written."""
    try:
        sections = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError):
        sections = None
    if not isinstance(sections, dict) or not {"model", "data", "trainer"} <= sections.keys():
        raise ValueError(f"{path} is damaged: put the options back that the run was begun with")


def resume_point(path: Path) -> tuple[Path, Path]:
    """The run folder, and the newest whole checkpoint in it, for what a person gave to --resume.

    Args:
        path: a run folder or a checkpoint in one.

    Raises:
        FileNotFoundError: if there is no such run or no checkpoint in it.
        ValueError: if the config is damaged, or the checkpoint, and no older one is whole.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no {path} to resume: give a folder under runs/, or a checkpoint in one")
    run_dir = path if path.is_dir() else path.parent.parent
    if not (run_dir / "config.yaml").is_file():
        raise FileNotFoundError(f"{run_dir} is no run folder: it has no config.yaml")
    check_config(run_dir / "config.yaml")
    if path.is_file():
        verify_checkpoint(path)
        return run_dir, path
    checkpoints = [run_dir / "checkpoints" / name for name in (LAST, PREVIOUS, BEST)]
    damage = None
    for checkpoint in checkpoints:
        if not checkpoint.exists():
            continue
        try:
            verify_checkpoint(checkpoint)
        except ValueError as error:
            damage = error
            log.warning("%s", error)
            continue
        if damage:
            log.warning("Going on from the one before, %s.", checkpoint)
        return run_dir, checkpoint
    raise damage or FileNotFoundError(f"{run_dir} has no checkpoint to resume from")


def leave_report(run_dir: Path) -> None:
    """Writes report.html into a run's folder; what stands in its way costs a warning, never the run."""
    try:
        write_report(run_dir)
    except (OSError, ValueError) as error:
        log.warning("There is no report of this run: %s", error)


def farewell(run_dir: Path, validation_text: str | None) -> str:
    """What the run has reached, where that is, and what to type next.

    Args:
        validation_text: all of it, to set a general compressor's figure beside the model's; None for none.
    """
    path = shlex.quote(str(run_dir))
    lines = [
        "",
        reached(run_dir, validation_text),
        f"everything is in {run_dir}/: report.html, checkpoints, metrics.csv, samples.jsonl, attention maps",
        "",
        f"  python scripts/generate.py --checkpoint {path}           let it write",
        f"  python scripts/inspect_attention.py --run {path}         see what it attends to",
        f"  python train.py --resume {path} --trainer.max_steps N    train it further",
    ]
    return "\n".join(lines)


def reached(run_dir: Path, validation_text: str | None) -> str:
    """Such as "validation: 1.742 bits per byte after 960 steps; xz -9e needs 1.741 for the same text"."""
    if not (run_dir / "metrics.csv").exists():
        return "nothing was trained: trainer.max_steps or trainer.max_time leave no time for a step"
    with (run_dir / "metrics.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["val/bits_per_byte"]]
    if not rows:
        return "not validated"
    last, best = rows[-1], min(rows, key=lambda row: float(row["val/bits_per_byte"]))
    line = f"validation: {float(last['val/bits_per_byte']):.4f} bits per byte after {last['step']} steps"
    if best is not last:
        line += f", best {float(best['val/bits_per_byte']):.4f} after {best['step']}"
    if content := (validation_text or "").encode():
        bits = 8 * len(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)) / len(content)
        line += f"; xz -9e needs {bits:.4f} for the same text"
    return line
