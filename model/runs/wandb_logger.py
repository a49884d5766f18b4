"""Logs to Weights & Biases: offline unless the user is logged in, and never a reason for a run to fail."""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.utilities import rank_zero_only

from model.inspection.recording import Recording
from model.pages.images import mosaic_pixels
from model.runs.code import read_code
from model.runs.configs import read_config
from model.runs.metrics import StepLogger
from model.runs.results import read_samples
from model.runs.run import CONFIG, SAMPLES

log = logging.getLogger(__name__)
WandbMode = Literal["auto", "online", "offline", "disabled"]
STEP = "trainer/global_step"  # the name that Lightning's own logger gives it


class WandbLogger(StepLogger):
    """Logs to Weights & Biases, whose files lie in the run's folder. After an error it warns once and stays off.

    Weights & Biases is started when the first metric is logged.
    """

    def __init__(self, run_dir: Path, mode: WandbMode = "auto"):
        super().__init__(run_dir)
        self.run: Any = None  # wandb's run, None until it is started
        self.mode = os.environ.get("WANDB_MODE", mode) if mode == "auto" else mode

    def write(self, row: dict[str, Any]) -> None:
        metrics = {name: value for name, value in row.items() if name != "step"}
        self._attempt(lambda wandb: self.run.log({STEP: row["step"], **metrics}))

    def log_records(self, recording: Recording | None) -> None:
        """Logs the newest maps of a recording as one picture, and all samples of the run as a table."""
        if recording:
            step = recording.steps[-1]
            picture = mosaic_pixels(recording.maps(step)["text"])
            caption = f"attention maps at step {step}: layers from top to bottom, heads from left to right"
            self._attempt(lambda wandb: self.log_metrics({"attention/maps": wandb.Image(picture, caption=caption)}))
        if samples := read_samples(self.run_dir / SAMPLES):
            rows = [[*sample.values()] for sample in samples]
            self._attempt(lambda wandb: self.log_metrics({"samples": wandb.Table(columns=[*samples[0]], data=rows)}))

    def finalize(self, status: str) -> None:
        super().finalize(status)
        if self.run is not None:
            self._attempt(lambda wandb: self.run.finish(exit_code=0 if status == "success" else 1))

    @rank_zero_only
    def _attempt(self, action: Callable[[Any], None]) -> None:
        """Calls `action` with the module wandb, after starting a run. Any error turns this logger off."""
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
            with suppress(Exception):  # else Python would end with a traceback if wandb's service is gone
                wandb.teardown()

    def _start(self, wandb: Any) -> None:
        if self.mode == "auto":
            self.mode = "online" if wandb.login(prompt=False) else "offline"
        if self.mode == "offline":  # wandb sends reports of its own errors even when it is offline
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        # A resumed run keeps the id in the names of its folders: run-TIME-ID, or run-TIME-ID-1 for a second folder of
        # the same second.
        ids = [folder.name.partition("run-")[2].split("-")[1] for folder in self.run_dir.glob("wandb/*run-*-*")]
        entries = read_code(self.run_dir)
        code = [{name: value for name, value in entry.items() if name != "difference"} for entry in entries]
        self.run = wandb.init(
            name=self.run_dir.name,
            config=read_config(self.run_dir / CONFIG) | {"code": code},
            project=os.environ.get("WANDB_PROJECT", "glassgpt"),
            dir=self.run_dir.resolve(),  # absolute: wandb's service may have another working folder
            id=min(ids, default=None),
            resume="allow" if self.mode == "online" else None,
            mode=self.mode,
            settings={"console": "off", "silent": True, "init_timeout": 30},
        )
        self.run.define_metric(STEP)
        self.run.define_metric("*", step_metric=STEP, step_sync=True)
