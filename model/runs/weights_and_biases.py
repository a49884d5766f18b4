"""Logs to Weights & Biases: offline unless the user is logged in, and never a reason for a run to fail."""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.loggers import WandbLogger
from torch import Tensor

from model.pages.images import mosaic_pixels
from model.runs.code import read_code
from model.runs.configs import read_config
from model.runs.run import CONFIG

log = logging.getLogger(__name__)
WandbMode = Literal["auto", "online", "offline", "disabled"]


class WeightsAndBiases:
    """Logs a run to Weights & Biases, whose files lie in the run's folder. After an error it warns once and stays off.

    Weights & Biases is started when the first metric is logged.
    """

    def __init__(self, run_dir: Path, mode: WandbMode = "auto"):
        self.run_dir = run_dir
        self.logger: WandbLogger | None = None
        self.mode: Any = os.environ.get("WANDB_MODE", mode) if mode == "auto" else mode

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._attempt(lambda logger: logger.log_metrics(metrics, step))

    def log_maps(self, maps: Tensor, step: int) -> None:
        """Logs maps (L, H, T, T) as one picture, a row of heads for each layer."""
        self._attempt(lambda logger: logger.log_image("attention/maps", [mosaic_pixels(maps)], step))

    def finish(self, status: str) -> None:
        """Ends with the run. status: "running" if it goes on, "success" if it has ended well."""
        if self.logger is not None and status != "running":
            self._attempt(lambda logger: logger.experiment.finish(exit_code=0 if status == "success" else 1))

    def _attempt(self, action: Callable[[WandbLogger], None]) -> None:
        """Calls `action` with Lightning's logger, which it starts first. Any error turns this off, with a warning."""
        if self.mode == "disabled":
            return
        try:
            self.logger = self.logger or self.start()
            action(self.logger)
        except Exception as error:
            log.warning("Weights & Biases failed, and the run continues without it: %s", error or type(error).__name__)
            self.mode, self.logger = "disabled", None
            with suppress(Exception):  # else Python would end with a traceback if wandb's service is gone
                import wandb

                wandb.teardown()

    def start(self) -> WandbLogger:
        import wandb

        # Before Lightning calls wandb.init: else a warning of wandb's about its options is printed.
        wandb.setup(wandb.Settings(console="off", silent=True, init_timeout=30))
        if self.mode == "auto":
            self.mode = "online" if wandb.login(prompt=False) else "offline"
        if self.mode == "offline":  # wandb sends reports of its own errors even when it is offline
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        first, *_ = entries = read_code(self.run_dir)
        code = [{name: value for name, value in entry.items() if name != "difference"} for entry in entries]
        return WandbLogger(
            name=self.run_dir.name,
            save_dir=self.run_dir.resolve(),  # absolute: wandb's service may have another working folder
            version=first["id"],
            project=os.environ.get("WANDB_PROJECT", "glassgpt"),
            mode=self.mode,
            config=read_config(self.run_dir / CONFIG) | {"code": code},
        )
