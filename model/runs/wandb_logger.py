"""Weights & Biases: offline unless the person is logged in, and never a reason for a run to fail."""

from __future__ import annotations

import logging
import netrc
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from model.files import write_atomically

log = logging.getLogger(__name__)

WandbMode = Literal["auto", "online", "offline", "disabled"]


class WandbLogger(Logger):
    """Logs to Weights & Biases, in the run's own folder.

    Importing and starting it takes seconds. Online it starts with the first figure. Offline it starts with the first
    validation, and what is logged before is kept until then: the first step does not wait for it, and a run that
    fails early leaves no files of it. (Lightning's own logger would start it before the data is ready.) An error
    costs one warning, and the run continues without it.
    """

    name = None
    version = None

    def __init__(self, run_dir: Path, mode: WandbMode = "auto", config: dict | None = None):
        super().__init__()
        self.run_dir = Path(run_dir)
        self.mode = wandb_mode(mode)
        self.config = config
        self.run: Any = None
        self.waiting: list[Callable[[ModuleType, Any], None]] = []

    @property
    def save_dir(self) -> str:
        return str(self.run_dir)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Does nothing: `wandb.init` gets the run's config."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self._do(lambda wandb, run: run.log(metrics, step=step), starts="val/loss" in metrics)

    def log_images(self, images: dict[str, np.ndarray], step: int) -> None:
        """Shows pictures by name, uint8 (height, width, 3), at `step`."""
        self._do(lambda wandb, run: run.log({name: wandb.Image(pixels) for name, pixels in images.items()}, step=step))

    def log_page(self, name: str, page: str, step: int) -> None:
        """Shows an HTML document."""
        self._do(lambda wandb, run: run.log({name: wandb.Html(page, inject=False, data_is_not_path=True)}, step=step))

    def log_folder(self, kind: str, folder: Path) -> None:
        """Keeps the files of a folder as an artifact of this kind. They must not change afterwards."""

        def keep(wandb: ModuleType, run: Any) -> None:
            artifact = wandb.Artifact(f"{kind}-{run.id}", type=kind)
            for path in sorted(folder.iterdir()):
                artifact.add_file(str(path), policy="immutable")  # others would be copied to the home folder
            run.log_artifact(artifact)

        self._do(keep)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if self.waiting and status == "success":
            self._catch_up()
        if self.run is not None:
            self.run.finish(exit_code=0 if status == "success" else 1)
            self.run = None

    @rank_zero_only
    def _do(self, action: Callable[[ModuleType, Any], None], starts: bool = False) -> None:
        """Calls `action(wandb, run)` now, or when the run starts. If `starts`, it starts at the latest now."""
        if self.mode == "disabled":
            return
        self.waiting.append(action)
        if starts or self.run is not None or self.mode == "online":
            self._catch_up()

    def _catch_up(self) -> None:
        waiting, self.waiting = self.waiting, []
        try:
            import wandb

            if self.run is None:
                self.run = self._start(wandb)
            for action in waiting:
                action(wandb, self.run)
        except Exception as error:
            log.warning("Weights & Biases failed, and the run continues without it: %s", error)
            self.run, self.mode = None, "disabled"

    def _start(self, wandb: ModuleType) -> Any:
        id_file = self.run_dir / "wandb" / "run_id"
        if resumed := id_file.exists():
            run_id = id_file.read_text().strip()
        else:
            run_id = secrets.token_hex(4)
            write_atomically(id_file, run_id.encode())
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT", "glassgpt"),
            name=self.run_dir.name,
            id=run_id,
            dir=self.run_dir.resolve(),  # its service may have been started from another folder
            mode=self.mode,
            resume="allow" if resumed and self.mode == "online" else None,
            config=self.config,
            settings=wandb.Settings(console="off", silent=True, init_timeout=30),
        )


def wandb_loggers(trainer: Trainer) -> list[WandbLogger]:
    """The trainer's loggers that are not disabled."""
    return [logger for logger in trainer.loggers if isinstance(logger, WandbLogger) and logger.mode != "disabled"]


def wandb_mode(mode: WandbMode) -> str:
    """Replaces "auto": by WANDB_MODE if it is set, else by online where there are credentials, else by offline."""
    if mode != "auto":
        return mode
    if os.environ.get("WANDB_MODE") in ("online", "offline", "disabled"):
        return os.environ["WANDB_MODE"]
    return "online" if has_wandb_credentials() else "offline"


def has_wandb_credentials() -> bool:
    """Whether Weights & Biases would find a key without asking for one. (Asking wandb itself takes a slow import.)"""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).netloc
    for path in [os.environ.get("NETRC"), "~/.netrc", "~/_netrc"]:
        try:
            if path and netrc.netrc(Path(path).expanduser()).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False
