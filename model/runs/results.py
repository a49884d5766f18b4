"""What a run has recorded: its metrics and samples, its report, and the summary at its end."""

import csv
import io
import json
import logging
import shlex
import time
import traceback
from pathlib import Path
from typing import Any

from model.checks import Missing, Mistake
from model.files import parsing, reading, write_atomically
from model.inspection.recording import Recording
from model.pages.learning import learning
from model.pages.page import run_page
from model.runs.configs import read_config
from model.runs.folder import ATTENTION, CHECKPOINTS, CONFIG, HEAD_SCORES, METRICS, REPORT, SAMPLES, resume_command
from model.runs.mistakes import MISTAKES

log = logging.getLogger(__name__)
FILES = (REPORT, CHECKPOINTS, METRICS, SAMPLES, ATTENTION)  # of a run, in the order of interest


def write_page(run_dir: Path, state: str, recording: Recording | None = None, glass: Any = None) -> None:
    """Writes the page of a run's folder, report.html in it, aside and then renames it: see `run_page_html`.

    state: "running", "interrupted" or "ended". A browser in which the page is open takes the newer one.
    """
    path = run_dir / REPORT
    gap = time.time() - path.stat().st_mtime if path.exists() else 0.0
    write_atomically(path, run_page_html(run_dir, state, gap, recording, glass).encode())


def show_page(run_dir: Path, *options: Any, **more: Any) -> None:
    """As `write_page`; but a page that fails is a warning: the run is not lost."""
    try:
        write_page(run_dir, *options, **more)
    except (*MISTAKES, MemoryError) as error:
        log.warning("There is no page of this run: %s", error)
    except Exception:
        log.warning("%sThis was writing the page, without which the run goes on.", traceback.format_exc())


def run_page_html(
    run_dir: Path,
    state: str | None = None,
    gap: float = 0.0,
    recording: Recording | None = None,
    glass: Any = None,
) -> str:
    """The page of what there is in a run's folder. The run may still be training.

    Args:
        state, gap: see `run_page`.
        recording: that of the folder, where it is open already: a page then packs only the steps that are new.
        glass: the run opened by `model.glass`. The page holds its model, and those of the steps that the run has kept.

    Raises a `Mistake` if a file of the run is damaged.
    """
    name = run_dir.resolve().name
    if recording is None and (run_dir / HEAD_SCORES).exists():
        recording = Recording.open(run_dir / ATTENTION, name)
    rows = read_metrics(run_dir / METRICS) if (run_dir / METRICS).exists() else []
    told = learning(rows, read_samples(run_dir / SAMPLES), _read_text(run_dir / CONFIG), read_config(run_dir / CONFIG))
    opened = [] if glass is None else [one for one in (*glass.earlier, glass) if one.gpt.config == glass.gpt.config]
    models = [(one.step or 0, one.gpt) for one in opened]
    tokenizer = glass and glass.tokenizer
    return run_page(name, recording, learning=told, models=models, tokenizer=tokenizer, state=state, gap=gap)


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of a metrics.csv, each with the columns in which it has a number. A row cut short by a kill is left out.

    Raises a `Mistake` if there is no such file, or it is not a table of numbers.
    """
    if not path.exists():
        raise Missing(f"there is no {path}: nothing has been trained there yet")
    text = _read_text(path)
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))

    def number(figure: str) -> float:  # int for digits alone, so that what is read and written again stays as it was
        return int(figure) if figure.isdecimal() else float(figure)

    try:
        rows = [{name: number(value) for name, value in row.items() if value} for row in reader]
        return [row | {"step": int(row["step"])} for row in rows]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, csv.Error) as error:
        raise Mistake(f"{path}, line {reader.line_num} is damaged ({type(error).__name__} {error})") from None


def read_samples(path: Path) -> list[dict]:
    """Step, prompt and text of every sample; none if there is no such file. Raises a `Mistake` for a damaged one."""
    lines = _read(path).splitlines(keepends=True)
    with parsing(path):
        samples = [json.loads(line) for line in lines if line.endswith(b"\n")]
        return [{"step": int(one["step"]), "prompt": str(one["prompt"]), "text": str(one["text"])} for one in samples]


def _read_text(path: Path) -> str:
    """The text of a file, "" if there is none. Raises a `Mistake` unless it is UTF-8."""
    content = _read(path)
    with parsing(path):
        return content.decode()


def _read(path: Path) -> bytes:
    with reading(path):
        return path.read_bytes() if path.exists() else b""


def finish(run_dir: Path) -> str:
    """Writes the page of a run; returns what it reached, where its files are, and what to type next.

    There is no model in the page of a run whose heads were not recorded.
    """
    from model.glass import open_run  # imports what only the pages need

    if not run_dir.exists():
        return _reached(run_dir)
    show_page(run_dir, "ended", glass=open_run(run_dir) if (run_dir / HEAD_SCORES).exists() else None)
    reached, page = _reached(run_dir), run_dir / REPORT
    path = shlex.quote(str(run_dir))
    files = ", ".join(name for name in FILES if (run_dir / name).exists())
    look = f"\n\nto see what it learned, and to type to it, open {page} in a browser" if page.exists() else ""
    return f"""
{reached}
everything is in {run_dir}/: {files}

  python scripts/generate.py --checkpoint {path}           generate text
  {resume_command(run_dir)} --trainer.max_steps N    train it further{look}"""


def _reached(run_dir: Path) -> str:
    """Such as "validation: 1.742 bits per byte after 960 steps"."""
    if not (run_dir / METRICS).exists():
        return "nothing was trained: trainer.max_steps (a checkpoint's steps count) or trainer.max_time leave no step"
    column = "val/bits_per_byte"
    rows = [row for row in read_metrics(run_dir / METRICS) if column in row]
    if not rows:
        return "not validated"
    last = rows[-1]
    best = min(rows, key=lambda row: row[column])
    line = f"validation: {last[column]:.4f} bits per byte after {last['step']} steps"
    if best is not last:
        line += f", best {best[column]:.4f} after {best['step']}"
    return line
