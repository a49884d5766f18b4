"""What a run has recorded: its metrics and samples, its report, and the summary at its end."""

import csv
import io
import json
import logging
import shlex
import time
from pathlib import Path

from model.files import content_of, write_atomically
from model.inspection.recording import Recording
from model.mistakes import Mistake, parsing
from model.pages.learning import learning
from model.pages.page import run_page
from model.pages.weights import Models
from model.runs.configs import read_config
from model.runs.run import (
    ATTENTION,
    CONFIG,
    HEAD_SCORES,
    METRICS,
    REPORT,
    SAMPLES,
    Run,
)

log = logging.getLogger(__name__)


def write_report(run_dir: Path, state: str, recording: Recording | None = None) -> None:
    """Writes the page of a run's folder, report.html in it, as `report_html`; but a page that fails is a warning.

    state: "running", "interrupted" or "ended". A browser in which the page is open takes the newer one.
    """
    path = run_dir / REPORT
    gap = time.time() - path.stat().st_mtime if path.exists() else 0.0
    try:
        write_atomically(path, report_html(run_dir, state, gap, recording).encode())
    except Exception as error:
        is_in_code = not isinstance(error, (Mistake, MemoryError))
        log.warning("There is no page of this run: %s", error, exc_info=is_in_code)


def report_html(run_dir: Path, state: str | None = None, gap: float = 0.0, recording: Recording | None = None) -> str:
    """The page of what there is in a run's folder. The run may still be training.

    Args:
        state, gap: see `run_page`. "running" or "interrupted" leave out the weights: else the page of a run whose heads
            were recorded holds those of the best step and of all that it has kept.
        recording: that of the folder, where it is open already: a page then packs only the steps that are new.

    Raises a `Mistake` if a file of the run is damaged.
    """
    name = run_dir.resolve().name
    if recording is None and (run_dir / HEAD_SCORES).exists():
        recording = Recording.open(run_dir / ATTENTION, name)
    settings, config = read_config(run_dir / CONFIG), content_of(run_dir / CONFIG).decode()
    told = learning(read_metrics(run_dir / METRICS), read_samples(run_dir / SAMPLES), config, settings)
    models: Models = ()
    tokenizer = None
    if recording and state in (None, "ended") and Run(run_dir).checkpoint:
        from model.glass import open_run  # imports what only these pages need

        glass = open_run(run_dir)
        opened = {step: glass.at(step) for step in glass.steps if step != glass.step} | {glass.step or 0: glass}
        models = [(step, one.gpt) for step, one in sorted(opened.items()) if one.gpt.config == glass.gpt.config]
        tokenizer = glass.tokenizer
    return run_page(name, recording, learning=told, models=models, tokenizer=tokenizer, state=state, gap=gap)


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of a metrics.csv by step, each with the columns in which it has a number; none if there is no such file.

    A row cut short by a kill is left out. Raises a `Mistake` for what is not a table of numbers.
    """
    text = _whole_lines(path)

    def number(figure: str) -> float:  # int for digits alone, so that what is read and written again stays as it was
        return int(figure) if figure.isdecimal() else float(figure)

    with parsing(path):
        reader = csv.DictReader(io.StringIO(text))
        rows: dict[int, dict[str, float]] = {}
        for row in reader:
            figures = {name: number(value) for name, value in row.items() if value}
            step = figures["step"] = int(figures["step"])
            rows[step] = rows.get(step, {}) | figures  # earlier versions wrote several for a step
        return [rows[step] for step in sorted(rows)]


def read_samples(path: Path) -> list[dict]:
    """Step, prompt and text of every sample; none if there is no such file. Raises a `Mistake` for a damaged one."""
    text = _whole_lines(path)
    with parsing(path):
        samples = []
        for line in text.split("\n")[:-1]:
            sample = json.loads(line)
            samples.append({"step": int(sample["step"]), "prompt": str(sample["prompt"]), "text": str(sample["text"])})
        return samples


def _whole_lines(path: Path) -> str:
    """The text of a file, without a last line that was cut short. Raises a `Mistake` unless it is UTF-8."""
    content = content_of(path)
    with parsing(path):
        return content[: content.rfind(b"\n") + 1].decode()


def finish(run_dir: Path) -> str:
    """Writes the page of a run; returns what it reached, where its files are, and what to type next."""
    if not run_dir.exists():
        return "nothing was trained: trainer.max_steps or trainer.max_time leave no step"
    write_report(run_dir, "ended")
    return f"""
{_reached(run_dir)}
everything is in {run_dir}/

  python scripts/generate.py --checkpoint {shlex.quote(str(run_dir))}           generate text
  {Run(run_dir).resume_command} --trainer.max_steps N    train it further

to see what it learned, and to type to it, open {run_dir / REPORT} in a browser"""


def _reached(run_dir: Path) -> str:
    """Such as "validation: 1.742 bits per byte after 960 steps"."""
    column = "val/bits_per_byte"
    rows = [row for row in read_metrics(run_dir / METRICS) if column in row]
    if not rows:
        return "not validated"
    last = rows[-1]
    best = min(rows, key=lambda row: row[column])
    line = f"validation: {last[column]:.4f} bits per byte after {last['step']} steps"
    return line if best is last else f"{line}, best {best[column]:.4f} after {best['step']}"
