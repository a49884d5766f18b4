"""What a run has recorded: its metrics and samples, its report, and the summary at its end."""

import csv
import io
import json
import logging
import lzma
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from model.checks import Missing, Mistake
from model.files import parsing, reading, write_atomically
from model.inspection.recording import Recording
from model.pages.report import report_page
from model.runs.configs import read_config
from model.runs.folder import (
    ATTENTION,
    CHECKPOINTS,
    CONFIG,
    EXPERIMENTS,
    HEAD_SCORES,
    METRICS,
    MODEL_PAGE,
    REPORT,
    SAMPLES,
)

log = logging.getLogger(__name__)
FILES = (REPORT, MODEL_PAGE, CHECKPOINTS, METRICS, SAMPLES, ATTENTION)  # of a run, in the order of interest


def write_report(run: Path, path: Path | None = None) -> Path:
    """Writes the report of a run's folder, by default as report.html in it, and returns its path.

    The run may still be training: the report shows what is there.

    Raises a `Mistake` if the folder has no metrics.csv, or a file in it is damaged.
    """
    path = path or run / REPORT
    name = run.resolve().name
    page = report_page(
        name,
        read_metrics(run / METRICS),
        read_samples(run / SAMPLES),
        _read_text(run / CONFIG),
        Recording.open(run / ATTENTION, name) if (run / HEAD_SCORES).exists() else None,
        read_config(run / CONFIG),
        MODEL_PAGE if (path.parent / MODEL_PAGE).exists() else "",
        read_experiments(run / EXPERIMENTS),
    )
    write_atomically(path, page.encode())
    return path


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


def read_experiments(path: Path) -> dict[str, int]:
    """The step from which on each experiment holds; none without such a file. Raises a `Mistake` if it is damaged."""
    content = _read(path) or b"{}"
    with parsing(path):
        return {str(title): int(step) for title, step in json.loads(content).items()}


def _read_text(path: Path) -> str:
    """The text of a file, "" if there is none. Raises a `Mistake` unless it is UTF-8."""
    content = _read(path)
    with parsing(path):
        return content.decode()


def _read(path: Path) -> bytes:
    with reading(path):
        return path.read_bytes() if path.exists() else b""


def finish(run_dir: Path, validation_text: str | None, open_run: Callable[[Path], Any]) -> str:
    """Writes the pages of a run; returns what it reached, where its files are, and what to type next.

    A page that fails is a warning: the run is not lost. There is no model.html of a model that is too large, or whose
    heads were not recorded.

    validation_text: what the model was validated on, to compare it with a general compressor; None leaves that out.
    open_run: that of `model.glass`, which stands above this room.
    """
    if not run_dir.exists():
        return _reached(run_dir, validation_text)
    model = run_dir / MODEL_PAGE
    model.unlink(missing_ok=True)  # of an earlier step, if the run was resumed
    if is_recorded := (run_dir / HEAD_SCORES).exists():
        with _telling("page with this model"):
            _write_model_page(run_dir, open_run(run_dir))
    with _telling("report of this run", log.warning):
        write_report(run_dir)
    reached = _reached(run_dir, validation_text)
    path = shlex.quote(str(run_dir))
    files = ", ".join(name for name in FILES if (run_dir / name).exists())
    look = f"  python scripts/inspect_attention.py --run {path}         see what it attends to\n" if is_recorded else ""
    type_to_it = f"\n\nto type to it, open {model} in a browser" if model.exists() else ""
    return f"""
{reached}
everything is in {run_dir}/: {files}

  python scripts/generate.py --checkpoint {path}           generate text
{look}  python train.py --resume {path} --trainer.max_steps N    train it further{type_to_it}"""


@contextmanager
def _telling(page: str, tell: Callable[..., None] = log.info) -> Iterator[None]:
    """Logs by `tell` why a page is missing, such as of a model that cannot have one."""
    try:
        yield
    except (ValueError, MemoryError) as error:  # until the pages raise Mistake
        tell("There is no %s: %s", page, error)


def _write_model_page(run_dir: Path, glass: Any) -> None:
    """With the steps that the run has kept, or without them if they would not fit; and when its experiments hold."""
    earlier = [other for other in glass.earlier if other.gpt.config == glass.gpt.config]
    try:
        page, since = glass.page_and_experiments(others=earlier)
    except ValueError:  # likewise
        if not earlier:
            raise
        page, since = glass.page_and_experiments()
    write_atomically(run_dir / EXPERIMENTS, json.dumps(since).encode())
    write_atomically(run_dir / MODEL_PAGE, page.encode())


def _reached(run_dir: Path, validation_text: str | None) -> str:
    """Such as "validation: 1.742 bits per byte after 960 steps; xz -9e needs 1.741 for the same text"."""
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
    if content := (validation_text or "").encode():
        bits = 8 * len(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)) / len(content)
        line += f"; xz -9e needs {bits:.4f} for the same text"
    return line
