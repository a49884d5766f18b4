"""What happens around every training step, in one order: log, validate, record, sample, save, stop."""

import dataclasses
import logging
import math
import signal
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from model.runs.metrics import TrainingMetrics, check_finite, log_metrics, write_rows
from model.runs.monitoring import AttentionMonitor, Samples
from model.runs.progress import opening, tell, validated
from model.runs.results import write_report
from model.runs.saving import Checkpoints, gather, random_state, rewind, set_random_state, start_loops_at

log = logging.getLogger(__name__)


def will_validate(trainer: Trainer) -> bool:
    """Whether Lightning validates after the update that it has just made, by its own rule."""
    loop = trainer.fit_loop.epoch_loop
    if trainer.val_check_batch == math.inf:  # it counts no batches: once for all that trainer.overfit_batches repeats
        is_in_turn = loop.batch_progress.is_last_batch
    else:
        is_in_turn = (loop.total_batch_idx + 1) % trainer.val_check_batch == 0
    return trainer.enable_validation and (is_in_turn or trainer.should_stop)


def is_multiple(step: int, every: int | None) -> bool:
    """Whether it is the turn of what happens every so many steps; None: never."""
    return every is not None and step > 0 and step % every == 0


class RunSequence(Checkpoint):
    """Logs, validates, records, samples, saves and stops, in this order. As a `Checkpoint` it runs after all others."""

    def __init__(self, attention: AttentionMonitor, samples: Samples, checkpoints: Checkpoints):
        self.attention = attention
        self.samples = samples
        self.checkpoints = checkpoints
        self.metrics = TrainingMetrics()
        self.signals = StopSignals()
        self.best_loss = math.inf
        self.step_before = 0  # of the batch that is trained
        self.resumed_random_state: dict[str, Any] | None = None
        self.is_running = False

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        self.step_before = trainer.global_step
        self.metrics.start_clock()

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: dict, batch: dict, *_: Any
    ) -> None:
        self.metrics.add(outputs["loss"], batch["tokens"].numel() * trainer.world_size)
        step = trainer.global_step
        if step == self.step_before:
            # Gradients are still being accumulated, and a checkpoint inside an accumulation window cannot be resumed.
            # trainer.max_time, which has asked to stop here, asks again after the next batch.
            trainer.should_stop = False
            return
        if step == trainer.max_steps:
            trainer.should_stop = True  # Lightning validates before it stops
        if trainer.should_stop or step % trainer.log_every_n_steps == 0:
            row = self.metrics.row(trainer)
            log_metrics(trainer, row)
            shown = {name: row[name] for name in ("train/loss", "tokens_per_second", "mfu") if name in row}
            module.log_dict(shown, prog_bar=True, logger=False)
        if not will_validate(trainer):
            self.end_step(trainer, module)

    def on_validation_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.metrics.stop_clock()

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        check_finite(module.validation_metrics["val/loss"], "the validation loss")
        if not trainer.sanity_checking:
            self.end_step(trainer, module, module.validation_metrics)

    def end_step(self, trainer: Trainer, module: LightningModule, validation: dict[str, float] | None = None) -> None:
        """What follows an update, and its validation if it had one; and once in a new run before its first update."""
        step, is_validated = trainer.global_step, validation is not None
        is_kept = step in self.checkpoints.keep_steps
        is_best = validation is not None and validation["val/loss"] < self.best_loss
        is_in_turn = step == 0 or is_multiple(step, self.attention.every_n_steps)
        is_recorded = self.attention.enabled and (is_validated or is_kept or is_in_turn)
        if is_recorded:
            self.metrics.stop_clock()  # recording is not training; the next batch starts it again
            # Of the last step too, and before it is saved: a run that has ended is not trained when it is resumed.
            self.attention.record(trainer, module, with_losses=is_kept or trainer.should_stop)
        if validation is not None:
            log_metrics(trainer, validation)
            self.samples.write(trainer, module)
            tell(trainer, validated(trainer))
        if is_recorded or is_validated:
            self.show(trainer, "running")
        if is_best:
            self.best_loss = validation["val/loss"]
        # All ranks must agree to stop; to ask them at every step would make each wait for the slowest.
        asks = trainer.world_size == 1 or is_validated or step % trainer.log_every_n_steps == 0
        stops = asks and trainer.strategy.reduce_boolean_decision(self.signals.received is not None, all=False)
        is_saved = is_validated or is_kept or is_multiple(step, self.checkpoints.every_n_steps)
        if is_saved or stops or trainer.should_stop:
            self.checkpoints.save(trainer, is_best)
        if stops:
            raise TrainingInterrupted(self.signals.received or signal.SIGTERM)  # another rank's may be either

    def show(self, trainer: Trainer, state: str) -> None:
        """Writes the run's page as far as the run is: a browser in which it is open takes the newer one."""
        if trainer.is_global_zero:
            write_rows(trainer)  # the page has the figures of this step too
            write_report(Path(trainer.default_root_dir), state, self.attention.recording)

    # The beginning and the end of training.

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        # RunFolder makes the folder in on_train_start. A probe that is too short must be found before.
        self.attention.start(trainer, module)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        is_new = trainer.ckpt_path is None
        if not is_new and trainer.is_global_zero:
            has_best = rewind(Path(trainer.default_root_dir), Path(trainer.ckpt_path), trainer.global_step)
            self.best_loss = self.best_loss if has_best else math.inf  # not that of weights which are gone
        tell(trainer, opening(trainer))
        self.is_running = True
        self.show(trainer, "running")
        # Not earlier: making the iterators of the data loaders draws random numbers too.
        if self.resumed_random_state is not None:
            set_random_state(self.resumed_random_state, module.device)
        elif trainer.global_rank > 0:
            torch.manual_seed(torch.initial_seed() + trainer.global_rank)  # every rank needs its own dropout masks
        if is_new:  # trainer.num_sanity_val_steps may have validated it
            self.end_step(trainer, module, module.validation_metrics or None)
        self.signals.install()

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        self.is_running = False
        self.attention.finish(trainer, module)

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self.signals.remove()

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        """After an error Lightning calls this in place of `teardown`."""
        if self.is_running and isinstance(exception, Exception):
            self.show(trainer, "interrupted")
        trainer.fit_loop.teardown()  # which ends all loaders; in a validation Lightning forgets those of training
        self.teardown(trainer, module, "fit")

    # What a checkpoint holds of this.

    def on_save_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        write_rows(trainer)  # a resumed run does not repeat the rows before its checkpoint
        metrics, data = self.metrics, trainer.datamodule
        # Such weights must not replace good ones.
        largest = [weight.detach().abs().max() for weight in module.parameters()]
        check_finite(torch.stack(largest).max().item(), "the largest weight")
        checkpoint |= {
            "gpt_config": dataclasses.asdict(module.gpt.config),
            "tokenizer": data.tokenizer.to_dict(),
            "document_masking": data.document_masking,  # which evaluation needs to know
            "random_states": gather(random_state(trainer.strategy.root_device), trainer),
            "loss_sums": gather(float(metrics.loss_sum), trainer),  # each of its rank's batches
            "counted": (metrics.num_batches, metrics.tokens, self.best_loss),
        }

    def on_load_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        start_loops_at(checkpoint["global_step"], trainer, checkpoint)
        self.metrics.num_batches, self.metrics.tokens, self.best_loss = checkpoint["counted"]
        sums, states, rank = checkpoint["loss_sums"], checkpoint["random_states"], trainer.global_rank
        # A rank has seen only its share of the batches. Another number of ranks begins with the mean of all.
        self.metrics.loss_sum = sums[rank] if len(sums) == trainer.world_size else sum(sums) / len(sums)
        self.resumed_random_state = states[rank] if rank < len(states) else None


class TrainingInterrupted(Exception):
    """Training stopped at a signal, after saving."""

    def __init__(self, signum: int):
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


class StopSignals:
    """Notes the first Ctrl-C or SIGTERM; a second one does what it did before `install`."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.handlers: dict[int, Any] = {}  # those that ours replace

    def install(self) -> None:
        for signum in (signal.SIGINT, signal.SIGTERM):
            self.handlers[signum] = signal.signal(signum, self._note)

    def remove(self) -> None:
        while self.handlers:
            signal.signal(*self.handlers.popitem())

    def _note(self, signum: int, frame: Any) -> None:
        self.received = signum
        self.remove()
        log.warning("Stopping after this step, to save; press Ctrl-C again to stop at once.")
