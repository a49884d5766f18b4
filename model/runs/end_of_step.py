"""What happens around each training step, and in which order.

A step ends like this:

1. Log the training metrics, every trainer.log_every_n_steps steps, and before each validation.
2. Validate, if it is due. Lightning does this between `on_train_batch_end` and `on_train_epoch_end`: an epoch is what
   lies between two validations, and the run's last epoch may be shorter.
3. Record attention maps; log the validation's metrics and write a sample; print a line; write the page.
4. Save a checkpoint.
5. Stop, if a signal has asked for it.
6. Seed what the next step draws, see `seed_step`: a run resumed from this step draws the same.

4 follows 3, so that the records of a step are on the disk before its checkpoint is. A run killed between the two
resumes from an older checkpoint and writes these records again (see `rewind`). A finished run could not write them
later, because it does not train again when it is resumed. 5 follows 4, so that no step is lost.

The user's callbacks, except a Checkpoint, come before all of this, so that what they log at a step is in the row of
this step, and what they change is saved.
"""

import json
import logging
import math
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from model.checkpoint import entries_of
from model.files import write_atomically
from model.mistakes import Mistake
from model.proof import NUM_TOKENS
from model.runs.code import record_code
from model.runs.command_line import Options
from model.runs.metrics import Diverged, TrainingMetrics, log_metrics
from model.runs.progress import first_lines, progress_line, stopped_early, tell
from model.runs.recorder import Recorder, Samples
from model.runs.results import write_report
from model.runs.run import CONFIG, STATE
from model.runs.saving import Checkpoints, rewind, seed_step, start_loops_at
from model.runs.stop_signals import StopSignals, TrainingInterrupted

log = logging.getLogger(__name__)


def ends_epoch(trainer: Trainer) -> bool:
    """Whether the current step is the last before a validation, or the last of the run."""
    return trainer.is_last_batch or trainer.should_stop


@dataclass(eq=False)
class EndOfStep(Checkpoint):
    """The callback that ends each step. It is a `Checkpoint` because Lightning runs those after all other callbacks."""

    options: Options
    recorder: Recorder
    samples: Samples
    checkpoints: Checkpoints
    metrics: TrainingMetrics = field(default_factory=TrainingMetrics)
    signals: StopSignals = field(default_factory=StopSignals)
    is_validated: bool = False  # whether this step has been validated
    best_loss: float = math.inf
    best_of: list[Any] = field(default_factory=list)  # what best_loss was measured on
    is_running: bool = False
    batch_began_at: float = math.inf  # the step at which the last batch began

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self.batch_began_at = trainer.global_step
        self.metrics.start_clock()

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: dict, batch: dict, batch_idx: int
    ) -> None:
        run_dir = Path(trainer.default_root_dir)
        if trainer.is_global_zero and not (run_dir / CONFIG).exists():  # a new folder would have no config and no past
            raise Mistake(f"{run_dir} has been moved or deleted, so the run ends: to resume it, name its new place")
        loss = outputs["loss"] * trainer.accumulate_grad_batches  # Lightning has divided it
        self.metrics.add(loss, batch["tokens"].numel() * trainer.world_size)
        step = trainer.global_step
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            # Gradients are still being accumulated, and a checkpoint in the middle of a step cannot be resumed.
            # So nothing stops here; trainer.max_time, if it has asked to stop, asks again after the next batch.
            trainer.should_stop = False
            return
        if step == trainer.max_steps:
            trainer.should_stop = True  # ends the epoch with a validation
        if ends_epoch(trainer) or step % trainer.log_every_n_steps == 0:
            metrics = self.metrics.take(trainer)
            log_metrics(trainer, metrics)
            on_bar = {name: metrics[name] for name in ("train/loss", "tokens_per_second", "mfu") if name in metrics}
            module.log_dict(on_bar, prog_bar=True, logger=False)
        if not ends_epoch(trainer):
            self.end_step(trainer)

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        if not math.isfinite(module.validation_metrics["val/loss"]):
            raise Diverged("the validation loss")
        self.is_validated = True

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        self.end_step(trainer)

    def end_step(self, trainer: Trainer) -> None:
        """Does 3 to 6 of the list above. A new run calls it for step 0 too, before its first update."""
        step, metrics = trainer.global_step, trainer.lightning_module.validation_metrics
        is_validated, self.is_validated = self.is_validated, False
        is_kept = step in self.checkpoints.keep_steps
        is_best = is_validated and self.is_best(trainer, metrics["val/loss"])
        is_its_turn = step % (self.recorder.every_n_steps or math.inf) == 0  # step 0 too
        is_recorded = self.recorder.enabled and (is_validated or is_kept or is_its_turn)
        if is_recorded:
            self.metrics.stop_clock()
            self.recorder.record(trainer, with_losses=is_kept or trainer.should_stop)
        if is_validated:
            log_metrics(trainer, metrics)
            self.samples.write(trainer)
        is_logged = step % trainer.log_every_n_steps == 0  # else the training metrics are those of an earlier step
        if is_validated or (is_recorded and is_logged and step > 0):
            tell(trainer, progress_line(trainer, is_validated=is_validated))
        if is_recorded or is_validated:
            self.show(trainer, "running", "running")
        # All ranks must stop together, so each asks the others whether they received a signal. Not at every step, where
        # each would wait for the slowest.
        asks_ranks = trainer.world_size == 1 or is_validated or is_logged
        stop_now = asks_ranks and trainer.strategy.reduce_boolean_decision(self.signals.received is not None, all=False)
        is_saved = is_validated or is_kept or (step > 0 and step % (self.checkpoints.every_n_steps or math.inf) == 0)
        if is_saved or stop_now or ends_epoch(trainer):
            self.metrics.stop_clock()
            self.checkpoints.save(trainer, is_best)
        if stop_now:
            # If only another rank received a signal, this rank does not know which signal it was.
            raise TrainingInterrupted(self.signals.received or signal.SIGTERM)
        seed_step(self.options.config.seed_everything, trainer)  # for the next step

    def is_best(self, trainer: Trainer, loss: float) -> bool:
        """Notes the lowest val/loss, and returns whether `loss` is it. Only losses of the same targets are compared."""
        data = trainer.datamodule
        num_targets = trainer.lightning_module.validation_targets
        measured_on = [data.tokenized.validation.checksum, num_targets, data.document_masking]
        if self.best_of not in ([], measured_on):
            log.warning(
                "val/loss is measured on another text from step %s on, because options of data or "
                "trainer.limit_val_batches have changed: best.ckpt begins anew, but EarlyStopping and ModelCheckpoint "
                "still compare with losses on the old text.",
                trainer.global_step,
            )
            self.best_loss = math.inf
        self.best_of = measured_on
        is_best = loss < self.best_loss
        self.best_loss = min(loss, self.best_loss)
        return is_best

    def show(self, trainer: Trainer, state: str, on_page: str) -> None:
        """Writes the run's state.json and page. A browser that shows the previous page loads the new one by itself.

        Args:
            state: "running", also if the process was killed; "stopped" by a signal, trainer.max_time or a callback;
                "finished"; "diverged"; or "failed", by any other error.
            on_page: see `write_report`.
        """
        run_dir = Path(trainer.default_root_dir)
        if trainer.is_global_zero and run_dir.exists():  # it may have been moved or deleted
            content = {"state": state, "step": trainer.global_step}
            write_atomically(run_dir / STATE, json.dumps(content).encode())
            trainer.logger.finalize("running")  # writes metrics.csv, so that the page has the metrics of this step too
            write_report(run_dir, on_page, self.recorder.recording)

    # How training begins and ends.

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        # Before on_train_start writes files: a probe that is too short must leave none.
        self.recorder.start(trainer)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Writes config.yaml and code.json: a new run gets its first files here, once no mistake can be found any more.

        All hooks of this name but those of the user's Checkpoint callbacks have run before.
        """
        is_new = trainer.ckpt_path is None
        if trainer.is_global_zero:
            run_dir = Path(trainer.default_root_dir)
            if not is_new and not rewind(run_dir, Path(trainer.ckpt_path), trainer.global_step):
                self.best_loss = math.inf  # its weights are gone
            write_atomically(run_dir / CONFIG, self.options.saved.encode())
            changes = record_code(trainer, self.options.command, self.options.config.code_difference)
            tell(trainer, f"{changes}\n{first_lines(trainer)}".lstrip())
        self.is_running = True
        self.show(trainer, "running", "running")
        if is_new:  # Lightning has validated it already if its model is that of --model.init_from
            self.end_step(trainer)
        else:
            seed_step(self.options.config.seed_everything, trainer)
        self.signals.install()

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        self.is_running = False
        self.signals.remove()  # a signal ends the writing of the page
        has_ended = trainer.global_step == trainer.max_steps or stopped_early(trainer)
        self.show(trainer, "finished" if has_ended else "stopped", "ended")

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        """Ends the run's page after an error. If the error came between two steps, saves the steps that are done."""
        state = "failed" if isinstance(exception, Exception) else "stopped"
        if self.is_running:
            is_between = trainer.global_step > self.batch_began_at and trainer.world_size == 1  # others may be within
            if is_between and state == "failed" and not isinstance(exception, Mistake):
                self.checkpoints.save(trainer)
            self.show(trainer, "diverged" if isinstance(exception, Diverged) else state, "interrupted")

    # What this callback saves in a checkpoint, and restores from it.

    def on_save_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        trainer.logger.finalize("running")  # a run resumed from this checkpoint has the rows before it
        metrics, data = self.metrics, trainer.datamodule
        if not module.gpt.is_finite():  # such weights must not replace good ones
            raise Diverged("a weight")
        loss_sum = trainer.strategy.reduce(metrics.loss_sum, reduce_op="mean")
        text = torch.from_numpy(data.tokenized.validation.read(0, NUM_TOKENS + 1))
        checkpoint |= entries_of(module.gpt, checkpoint["state_dict"], data.tokenizer, text, data.document_masking)
        checkpoint |= {
            "loss_sum": (metrics.new_tokens, float(loss_sum)),
            "best": (self.best_loss, self.best_of),
        }

    def on_load_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        start_loops_at(checkpoint["global_step"], trainer, checkpoint)
        self.metrics.new_tokens, self.metrics.loss_sum = checkpoint["loss_sum"]
        self.best_loss, self.best_of = checkpoint["best"]
