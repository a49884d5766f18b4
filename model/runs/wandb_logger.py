"""Weights & Biases: offline unless the person is logged in, and never a reason for a run to fail."""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import loggers
from lightning.pytorch.utilities import rank_zero_only

from model.inspection.recording import Recording
from model.pages.images import mosaic_pixels, score_pixels

log = logging.getLogger(__name__)
WandbMode = Literal["auto", "online", "offline", "disabled"]


class WandbLogger(loggers.WandbLogger):
    """Lightning's logger, in the run's own folder. It starts with the first figure; an error costs one warning."""

    def __init__(self, run_dir: Path, mode: WandbMode = "auto", config: dict | None = None):
        # A resumed run continues under its id: its folders are named run-TIME-ID, and -1 follows within one second.
        ids = [folder.name.partition("run-")[2].split("-")[1] for folder in sorted(run_dir.glob("wandb/*run-*-*"))]
        settings = {"console": "off", "silent": True, "init_timeout": 30}
        project = os.environ.get("WANDB_PROJECT", "glassgpt")
        folder = run_dir.resolve()  # wandb's service may have been started from another one
        super().__init__(run_dir.name, folder, next(iter(ids), None), project=project, config=config, settings=settings)
        self.mode = os.environ.get("WANDB_MODE", mode) if mode == "auto" else mode
        self._wandb_init.pop("anonymous", None)  # wandb warns everybody of it, even where it is None

    @property
    def experiment(self) -> Any:
        """None before the first figure: Lightning asks earlier, when a run may still turn out to be a mistake."""
        return super().experiment if "mode" in self._wandb_init and self.mode != "disabled" else None

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self._attempt(lambda: super(WandbLogger, self).log_metrics(metrics, step))

    def log_attention(self, recording: Recording) -> None:
        """Shows the newest maps, and the scores of all heads, as pictures."""

        def show() -> None:
            newest = recording.snapshots[-1]
            for name, score in newest.scores.items():
                self.log_image(f"attention/{name}/heads", [score_pixels(score)], newest.step)
            self.log_image("attention/maps", [mosaic_pixels(recording.maps(newest.step)["text"])], newest.step)

        self._attempt(show)

    def finalize(self, status: str) -> None:
        if self.experiment is not None:
            self._attempt(lambda: self.experiment.finish(exit_code=0 if status == "success" else 1))

    @rank_zero_only
    def _attempt(self, action: Callable[[], None]) -> None:
        if self.mode == "disabled":
            return
        try:
            import wandb

            if self.mode == "auto":
                self.mode = "online" if wandb.login(prompt=False) else "offline"
            if self.mode == "offline":  # wandb reports on itself over the network even then
                os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
            self._wandb_init |= {"mode": self.mode, "resume": "allow" if self.mode == "online" else None}
            action()
        except Exception as error:
            log.warning("Weights & Biases failed, and the run continues without it: %s", error or type(error).__name__)
            self.mode, self._experiment = "disabled", None
            with suppress(Exception):  # a service that is gone would be missed with a traceback when Python ends
                wandb.teardown()
