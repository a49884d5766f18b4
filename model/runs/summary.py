"""The end of a run: its report, what it reached, and what to type next."""

from __future__ import annotations

import logging
import lzma
import shlex
from pathlib import Path

from lightning.pytorch import Trainer

from model.runs.folder import METRICS
from model.runs.progress import say
from model.runs.records import read_metrics, write_report

log = logging.getLogger(__name__)

XZ_BYTES = 10_000_000  # xz compresses this much in a few seconds; a longer validation text is not compressed


def finish(trainer: Trainer) -> None:
    """Writes report.html and says what the run reached. A report that fails is a warning: the run is not lost."""
    if not trainer.is_global_zero or trainer.fast_dev_run:
        return
    run_dir, data = Path(trainer.default_root_dir), trainer.datamodule
    try:
        write_report(run_dir)
    except (OSError, ValueError) as error:
        log.warning("There is no report of this run: %s", error)
    say(farewell(run_dir, data.validation_text(XZ_BYTES) if data.validation_bytes <= XZ_BYTES else None))


def farewell(run_dir: Path, validation_text: str | None) -> str:
    """What the run reached, where its files are, and what to type next.

    Args:
        validation_text: all of it, to compare the model with a general compressor; None leaves that out.
    """
    path = shlex.quote(str(run_dir))
    lines = [
        "",
        reached(run_dir, validation_text),
        f"everything is in {run_dir}/: report.html, checkpoints, metrics.csv, samples.jsonl, attention maps",
        "",
        f"  python scripts/generate.py --checkpoint {path}           generate text",
        f"  python scripts/inspect_attention.py --run {path}         see what it attends to",
        f"  python train.py --resume {path} --trainer.max_steps N    train it further",
    ]
    return "\n".join(lines)


def reached(run_dir: Path, validation_text: str | None) -> str:
    """Such as "validation: 1.742 bits per byte after 960 steps; xz -9e needs 1.741 for the same text"."""
    if not (run_dir / METRICS).exists():
        return "nothing was trained: trainer.max_steps or trainer.max_time leave no time for a step"
    column = "val/bits_per_byte"
    rows = [row for row in read_metrics(run_dir / METRICS) if column in row]
    if not rows:
        return "not validated"
    last, best = rows[-1], min(rows, key=lambda row: row[column])
    line = f"validation: {last[column]:.4f} bits per byte after {last['step']} steps"
    if best is not last:
        line += f", best {best[column]:.4f} after {best['step']}"
    if content := (validation_text or "").encode():
        bits = 8 * len(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)) / len(content)
        line += f"; xz -9e needs {bits:.4f} for the same text"
    return line
