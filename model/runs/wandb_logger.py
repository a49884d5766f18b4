"""Weights & Biases: offline unless the person is logged in, and never a reason for a run to fail."""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.utilities import rank_zero_only

from model.inspection.recording import Recording
from model.pages.images import mosaic_pixels, score_pixels
from model.runs.configs import read_config
from model.runs.metrics import StepLogger
from model.runs.run import CONFIG

log = logging.getLogger(__name__)
WandbMode = Literal["auto", "online", "offline", "disabled"]
STEP = "trainer/global_step"


class WandbLogger(StepLogger):
    """Writes into the run's own folder. It starts with the first figure; an error costs one warning."""

    def __init__(self, run_dir: Path, mode: WandbMode = "auto"):
        super().__init__(run_dir)
        self.run: Any = None  # of wandb
        self.mode = os.environ.get("WANDB_MODE", mode) if mode == "auto" else mode

    def write(self, row: dict[str, Any]) -> None:
        figures = {name: value for name, value in row.items() if name != "step"}
        self._attempt(lambda wandb: self.run.log({STEP: row["step"], **figures}))

    def log_attention(self, recording: Recording) -> None:
        """Shows the newest maps, and the scores of all heads, as pictures."""
        self._attempt(lambda wandb: self.log_metrics(pictures(wandb, recording)))

    def log_samples(self, samples: list[dict[str, Any]]) -> None:
        """Shows all samples as a table."""
        rows = [list(sample.values()) for sample in samples]
        columns = list(samples[0]) if samples else []
        self._attempt(lambda wandb: self.log_metrics({"samples": wandb.Table(columns=columns, data=rows)}))

    def finalize(self, status: str) -> None:
        super().finalize(status)
        if self.run is not None:
            self._attempt(lambda wandb: self.run.finish(exit_code=0 if status == "success" else 1))

    @rank_zero_only
    def _attempt(self, action: Callable[[Any], None]) -> None:
        if self.mode == "disabled":
            return
        try:
            import wandb

            if self.run is None:
                self._start(wandb)
            action(wandb)
        except Exception as error:
            log.warning("Weights & Biases failed, and the run continues without it: %s", error or type(error).__name__)
            self.mode, self.run = "disabled", None
            with suppress(Exception):  # a service that is gone would be missed with a traceback when Python ends
                wandb.teardown()

    def _start(self, wandb: Any) -> None:
        if self.mode == "auto":
            self.mode = "online" if wandb.login(prompt=False) else "offline"
        if self.mode == "offline":  # wandb reports on itself over the network even then
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        # A resumed run continues under its id: its folders are named run-TIME-ID, and -1 follows within one second.
        ids = [folder.name.partition("run-")[2].split("-")[1] for folder in self.run_dir.glob("wandb/*run-*-*")]
        about = {"name": self.run_dir.name, "config": read_config(self.run_dir / CONFIG)}
        resume = {"id": min(ids, default=None), "resume": "allow" if self.mode == "online" else None}
        settings = {"console": "off", "silent": True, "init_timeout": 30}
        folder = self.run_dir.resolve()  # wandb's service may have been started from another one
        project = os.environ.get("WANDB_PROJECT", "glassgpt")
        self.run = wandb.init(**about, **resume, project=project, dir=folder, mode=self.mode, settings=settings)
        self.run.define_metric(STEP)
        self.run.define_metric("*", step_metric=STEP, step_sync=True)


def pictures(wandb: Any, recording: Recording) -> dict[str, Any]:
    """The newest maps and scores; each caption says which layer and head is where."""
    newest = recording.snapshots[-1]
    shown = {f"attention/{name}/heads": (score_pixels(score), name) for name, score in newest.scores.items()}
    shown["attention/maps"] = (mosaic_pixels(recording.maps(newest.step)["text"]), "attention maps")
    layers, heads = newest.scores[next(iter(newest.scores))].shape
    places = f"layers 0 to {layers - 1} from top to bottom, heads 0 to {heads - 1} from left to right"
    captions = {name: f"{title} at step {newest.step}: {places}" for name, (_, title) in shown.items()}
    return {name: wandb.Image(pixels, caption=captions[name]) for name, (pixels, _) in shown.items()}
