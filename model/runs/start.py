"""Before the first step: Lightning's options are checked and the run's folder is created."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from model.files import write_atomically
from model.runs.folder import CONFIG


class RunFolder(Callback):
    """Creates the run's folder with its config when training begins: a mistake found earlier leaves nothing behind.

    A resumed run has both already. Its config is replaced after every on_train_start hook has accepted the options.
    """

    def __init__(self, config: str, is_new: bool) -> None:
        self.config = config
        self.is_new = is_new

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        check_options(trainer)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        if self.is_new and trainer.is_global_zero:
            Path(trainer.default_root_dir).mkdir(parents=True)
            self._write_config(trainer)

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        if not self.is_new and trainer.is_global_zero:
            self._write_config(trainer)

    def _write_config(self, trainer: Trainer) -> None:
        write_atomically(Path(trainer.default_root_dir, CONFIG), self.config.encode())


def check_options(trainer: Trainer) -> None:
    """Raises ValueError for options of Lightning that do nothing or do harm in a run counted in steps."""
    if trainer.max_epochs not in (None, -1) and not trainer.fast_dev_run:
        raise ValueError("trainer.max_epochs: training is counted in steps here, set trainer.max_steps")
    if trainer.limit_train_batches not in (None, 1.0) and not (trainer.overfit_batches or trainer.fast_dev_run):
        raise ValueError("trainer.limit_train_batches: would repeat the same batches, set trainer.max_steps")
    if type(trainer.strategy).__name__ in ("FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy"):
        raise ValueError("trainer.strategy: the optimizer needs unflattened matrices, so write ddp or fsdp")
    for name in ("log_every_n_steps", "accumulate_grad_batches"):
        if getattr(trainer, name) < 1:
            raise ValueError(f"trainer.{name} must be at least 1, not {getattr(trainer, name)}")
    interval, accumulate = trainer.val_check_interval, trainer.accumulate_grad_batches
    if isinstance(interval, int) and interval % accumulate:
        raise ValueError(
            f"trainer.val_check_interval is {interval} batches, which would validate in the middle of a step: "
            f"make it a multiple of trainer.accumulate_grad_batches, {accumulate}"
        )
