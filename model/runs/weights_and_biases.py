"""Logs to Weights & Biases: offline unless the user is logged in, and never a reason for a run to fail."""

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from model.runs.code import read_code
from model.runs.configs import read_config
from model.runs.run import CONFIG

log = logging.getLogger(__name__)
WandbMode = Literal["auto", "online", "offline", "disabled"]
STEP = "trainer/global_step"  # the name that Lightning's own logger gives it


class WeightsAndBiases:
    """Logs a run to Weights & Biases, whose files lie in the run's folder. After an error it warns once and stays off.

    Weights & Biases is started when the first metric is logged.
    """

    def __init__(self, run_dir: Path, mode: WandbMode = "auto"):
        self.run_dir = run_dir
        self.run: Any = None  # wandb's run, None until it is started
        self.mode: Any = os.environ.get("WANDB_MODE", mode) if mode == "auto" else mode

    def log(self, metrics: dict[str, float]) -> None:
        """Logs metrics, the "step" among them."""
        if self.mode != "disabled":
            try:
                if self.run is None:
                    self.start()
                self.run.log({STEP if name == "step" else name: value for name, value in metrics.items()})
            except Exception as error:
                self.fail(error)

    def finish(self, status: str) -> None:
        """Ends with the run. status: "running" if it goes on, "success" if it has ended well."""
        if self.run is not None and status != "running":
            try:
                self.run.finish(exit_code=0 if status == "success" else 1)
            except Exception as error:
                self.fail(error)

    def fail(self, error: Exception) -> None:
        """Turns this off, with a warning."""
        log.warning("Weights & Biases failed, and the run continues without it: %s", error or type(error).__name__)
        self.mode, self.run = "disabled", None
        with suppress(Exception):  # else Python would end with a traceback if wandb's service is gone
            import wandb

            wandb.teardown()

    def start(self) -> None:
        import wandb

        if self.mode == "auto":
            self.mode = "online" if wandb.login(prompt=False) else "offline"
        if self.mode == "offline":  # wandb sends reports of its own errors even when it is offline
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        first, *_ = entries = read_code(self.run_dir)
        code = [{name: value for name, value in entry.items() if name != "difference"} for entry in entries]
        self.run = wandb.init(
            name=self.run_dir.name,
            config=read_config(self.run_dir / CONFIG) | {"code": code},
            project=os.environ.get("WANDB_PROJECT", "glassgpt"),
            dir=self.run_dir.resolve(),  # absolute: wandb's service may have another working folder
            id=first["id"],
            resume="allow" if self.mode == "online" else None,
            mode=self.mode,
            settings={"console": "off", "silent": True, "init_timeout": 30},
        )
        self.run.define_metric(STEP)
        self.run.define_metric("*", step_metric=STEP, step_sync=True)
