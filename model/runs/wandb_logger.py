"""Weights & Biases: offline unless the person is logged in, and never a reason for a run to fail."""

from __future__ import annotations

import logging
import netrc
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Literal
from urllib.parse import urlsplit

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from model.files import write_atomically
from model.inspection.archive import AttentionArchive

log = logging.getLogger(__name__)

WandbMode = Literal["auto", "online", "offline", "disabled"]
Action = Callable[[ModuleType, Any], None]  # of the module wandb and its run


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
        self.waiting: list[Action] = []

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Does nothing: `wandb.init` gets the run's config."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self._do(lambda wandb, run: run.log(metrics, step=step), starts="val/loss" in metrics)

    def log_attention(self, archive: AttentionArchive) -> None:
        """Shows the newest maps, and the scores of all heads, as pictures."""
        from model.pages.images import mosaic_pixels, score_pixels

        newest = archive.snapshots[-1]
        pixels = {f"attention/{name}/heads": score_pixels(score) for name, score in newest.scores.items()}
        pixels["attention/maps"] = mosaic_pixels(archive.maps(newest.step)["text"])
        self._do(lambda wandb, run: run.log({k: wandb.Image(v) for k, v in pixels.items()}, step=newest.step))

    def log_attention_page(self, archive: AttentionArchive, step: int) -> None:
        """Shows the page of all maps, and keeps their files, which must not change afterwards, as an artifact."""
        from model.pages.captures import Captures
        from model.pages.page import attention_page

        page = attention_page([Captures.of(archive, self.run_dir.name)], self.run_dir.name)

        def show_and_keep(wandb: ModuleType, run: Any) -> None:
            run.log({"attention/page": wandb.Html(page, inject=False, data_is_not_path=True)}, step=step)
            artifact = wandb.Artifact(f"attention-maps-{run.id}", type="attention-maps")
            for path in sorted(archive.folder.iterdir()):
                artifact.add_file(str(path), policy="immutable")  # others would be copied to the home folder
            run.log_artifact(artifact)

        self._do(show_and_keep)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if self.waiting and status == "success":
            self._catch_up()
        if self.run is not None:
            try:
                self.run.finish(exit_code=0 if status == "success" else 1)
            except Exception as error:
                self._give_up(error)
            self.run = None

    @rank_zero_only
    def _do(self, action: Action, starts: bool = False) -> None:
        """Calls `action` now, or when the run starts. If `starts`, it starts now at the latest."""
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
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        log.warning("Weights & Biases failed, and the run continues without it: %s", str(error) or type(error).__name__)
        self.run, self.mode = None, "disabled"

    def _start(self, wandb: ModuleType) -> Any:
        id_file = self.run_dir / "wandb" / "run_id"
        if resumed := id_file.exists():
            run_id = id_file.read_text().strip()
        else:
            run_id = secrets.token_hex(4)
            write_atomically(id_file, run_id.encode())
        if self.mode == "offline":  # wandb reports on itself over the network even then
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
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
    """Replaces "auto": by WANDB_MODE if it is set, else by online if wandb would find a key, else by offline.

    The key is looked for here, because importing wandb to ask it takes seconds.
    """
    if mode != "auto":
        return mode
    if os.environ.get("WANDB_MODE") in ("online", "offline", "disabled"):
        return os.environ["WANDB_MODE"]
    if os.environ.get("WANDB_API_KEY"):
        return "online"
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).netloc
    for path in filter(None, (os.environ.get("NETRC"), "~/.netrc", "~/_netrc")):
        with suppress(OSError, netrc.NetrcParseError):
            if netrc.netrc(Path(path).expanduser()).authenticators(host):
                return "online"
    return "offline"
