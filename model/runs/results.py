"""The page of a run, report.html."""

import logging
import time
from pathlib import Path

from model.files import content_of, write_atomically
from model.inspection.recording import Models, Recording
from model.mistakes import Mistake
from model.pages.learning import learning
from model.pages.page import run_page
from model.runs.code import read_code
from model.runs.configs import read_config
from model.runs.records import read_lines, read_metrics
from model.runs.run import ATTENTION, CONFIG, HEAD_SCORES, METRICS, REPORT, SAMPLES, Run

log = logging.getLogger(__name__)


def write_report(run_dir: Path, state: str, recording: Recording | None = None) -> None:
    """Writes the page of `report_html` into a run's folder. An error there becomes a warning and does not end the run.

    state: "running", "interrupted" or "ended". A browser that shows the previous page loads the new one by itself.
    """
    try:
        write_atomically(run_dir / REPORT, report_html(run_dir, state, recording).encode())
    except Exception as error:
        log.warning("The page of this run could not be written: %s", error, exc_info=not isinstance(error, Mistake))


def report_html(run_dir: Path, state: str | None = None, recording: Recording | None = None) -> str:
    """Returns the page of a run as HTML, made from the files that its folder has. The run may still be training.

    The page holds the weights of the best checkpoint and of all kept steps, if attention was recorded and the state is
    neither "running" nor "interrupted".

    Args:
        state: see `run_page`.
        recording: the folder's recording if it is open; then only the steps added since its last page are packed.

    Raises a `Mistake` if a file of the run is damaged.
    """
    name, previous = run_dir.resolve().name, run_dir / REPORT
    if recording is None and (run_dir / HEAD_SCORES).exists():
        recording = Recording.open(run_dir / ATTENTION, name)
    data = learning(
        read_metrics(run_dir / METRICS),
        read_lines(run_dir / SAMPLES),
        content_of(run_dir / CONFIG).decode(),
        read_config(run_dir / CONFIG),
    )
    for entry in read_code(run_dir):
        if entry["since"]:
            data["story"] += f" Code at step {entry['step']}: {entry['since']}."
    models: Models = ()
    tokenizer = None
    if recording and state in (None, "ended") and Run(run_dir).checkpoint:
        from model.glass import open_run  # here, because it imports what only these pages need

        glass = open_run(run_dir)
        models = [(step, glass.at(step).gpt) for step in sorted({*glass.steps, glass.step or 0})]
        tokenizer = glass.tokenizer
    return run_page(
        name,
        recording,
        learning=data,
        models=models,
        tokenizer=tokenizer,
        state=state,
        gap=time.time() - previous.stat().st_mtime if previous.exists() else 0.0,
    )
