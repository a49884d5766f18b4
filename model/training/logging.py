"""Where figures go: `metrics.csv` always, Weights & Biases when it can."""

from __future__ import annotations

import csv
import io
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
from model.runs.records import read_metrics

log = logging.getLogger(__name__)

WandbMode = Literal["auto", "online", "offline", "disabled"]

# Every run has these, in this order; what else is logged (head scores) comes after them.
COLUMNS = ("step", "tokens", "train/loss", "val/loss", "val/bits_per_byte", "lr", "tokens_per_second", "mfu")


def log_metrics(trainer: Trainer, metrics: dict[str, float]) -> None:
    """Adds `metrics` to the current step's row of every logger."""
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=trainer.global_step)


class CSVLogger(Logger):
    """One row a step. What is logged for the same step in several calls lands in one row, written when it is over.

    A new column makes the file be written anew; otherwise rows are only appended.
    """

    def __init__(self, path: Path):
        super().__init__()
        self.path = Path(path)
        self.columns = list(COLUMNS)
        self.has_header = False
        self.row: dict[str, Any] = {}

    name = None
    version = None

    @property
    def save_dir(self) -> str:
        return str(self.path.parent)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The run's config.yaml has them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if self.row and self.row["step"] != step:
            self.save()
        self.row = {"step": step, **self.row, **metrics}

    @rank_zero_only
    def save(self) -> None:
        """Ends the row of the current step and writes it."""
        if not self.row:
            return
        new_columns = [column for column in self.row if column not in self.columns]
        if new_columns or not self.has_header:
            self.columns += new_columns
            self._rewrite([*self.read(), self.row])
        else:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                file.write(self._format([self.row]))
        self.row = {}

    def read(self) -> list[dict[str, str]]:
        """The rows written so far; a last one that a kill cut short is left out."""
        if not self.path.exists():
            return []
        with self.path.open(newline="", encoding="utf-8") as file:
            whole = "".join(line for line in file if line.endswith("\n"))
        return [row for row in csv.DictReader(io.StringIO(whole)) if None not in row.values()]

    @rank_zero_only
    def rewind(self, step: int) -> None:
        """Drops the rows after `step`: a resumed run writes them again. Raises ValueError for a damaged file."""
        if self.path.exists():
            read_metrics(self.path)  # says which line is damaged
        rows = [row for row in self.read() if int(row["step"]) <= step]
        self.columns = list(rows[0] if rows else COLUMNS)
        self.row = {}
        if self.path.exists():
            self._rewrite(rows)

    def finalize(self, status: str) -> None:
        self.save()

    def _rewrite(self, rows: list[dict]) -> None:
        header = dict(zip(self.columns, self.columns, strict=True))
        write_atomically(self.path, self._format([header, *rows]).encode())
        self.has_header = True

    def _format(self, rows: list[dict]) -> str:
        text = io.StringIO()
        csv.DictWriter(text, self.columns, lineterminator="\n").writerows(rows)
        return text.getvalue()


class WandbLogger(Logger):
    """Weights & Biases, in the run's own folder; Lightning's own logger would start it before the data is ready.

    Importing and starting it takes seconds. Where a person can watch, it starts with the first figure; offline,
    where nobody does, with the first validation, and what came before waits until then: so the first step does not
    wait for it, and a run that fails early leaves nothing of it. Whatever goes wrong costs one warning, never the run.
    """

    def __init__(self, run_dir: Path, mode: WandbMode = "auto", config: dict | None = None):
        super().__init__()
        self.run_dir = Path(run_dir)
        self.mode = wandb_mode(mode)
        self.config = config
        self.run: Any = None
        self.waiting: list[Callable[[ModuleType, Any], None]] = []

    name = None
    version = None

    @property
    def save_dir(self) -> str:
        return str(self.run_dir)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The run's config is given when it starts."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self._do(lambda wandb, run: run.log(metrics, step=step), starts="val/loss" in metrics)

    def log_images(self, images: dict[str, np.ndarray], step: int) -> None:
        """Shows pictures by name, uint8 (height, width, 3), at `step`."""
        self._do(lambda wandb, run: run.log({name: wandb.Image(pixels) for name, pixels in images.items()}, step=step))

    def log_page(self, name: str, page: str, step: int) -> None:
        """Shows a whole HTML document as it is."""
        self._do(lambda wandb, run: run.log({name: wandb.Html(page, inject=False, data_is_not_path=True)}, step=step))

    def log_folder(self, kind: str, folder: Path) -> None:
        """Keeps the files of a folder, which must not change any more, as an artifact of this kind."""

        def keep(wandb: ModuleType, run: Any) -> None:
            artifact = wandb.Artifact(f"{kind}-{run.id}", type=kind)
            for path in sorted(folder.iterdir()):
                artifact.add_file(str(path), policy="immutable")  # a mutable one is copied to the home folder
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
        """Calls `action(wandb, run)`, now or when the run starts."""
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
            log.warning("Weights & Biases fails, and the run goes on without it: %s", error)
            self.run, self.mode = None, "disabled"

    def _start(self, wandb: ModuleType) -> Any:
        settings = wandb.Settings(console="off", silent=True, init_timeout=30)
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
            settings=settings,
        )


def wandb_loggers(trainer: Trainer) -> list[WandbLogger]:
    """Those that take what is given to them: none where Weights & Biases is disabled."""
    return [logger for logger in trainer.loggers if isinstance(logger, WandbLogger) and logger.mode != "disabled"]


def wandb_mode(mode: WandbMode) -> str:
    """What "auto" means here: what WANDB_MODE says, else online where there are credentials, else offline."""
    if mode != "auto":
        return mode
    if os.environ.get("WANDB_MODE") in ("online", "offline", "disabled"):
        return os.environ["WANDB_MODE"]
    return "online" if has_wandb_credentials() else "offline"


def has_wandb_credentials() -> bool:
    """Whether Weights & Biases would find a key without asking for one."""
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
