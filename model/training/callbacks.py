"""What is measured and shown while a GPT learns: figures, attention maps, samples of text."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from model.files import write_atomically
from model.generation import generate
from model.inspection.recorder import MIN_PROBE_TOKENS, AttentionRecorder
from model.runs.records import read_samples
from model.training.hardware import peak_flops
from model.training.logging import CSVLogger, log_metrics, wandb_loggers
from model.training.sharding import whole_gpt

AUTOCAST_TYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
KNOWN_CHARS = 200_000  # a token that so much text does not hold is too rare to probe with
PICTURE_SIDE = 1300  # pixels, about a screen: five times as fast to draw as one with every token named


class Metrics(Callback):
    """Writes a row of figures at every trainer.log_every_n_steps and at every validation.

    The loss is summed on the device and read only for a row, so that a step never waits for it. A loss that is no
    longer finite stops the run.

    Attributes:
        latest: the newest value of every figure, for the progress bar.
    """

    def __init__(self) -> None:
        self.latest: dict[str, float] = {}
        self.loss_sum: Tensor | None = None  # over the batches since the last row; None stands for 0
        self.num_batches = 0
        self.tokens = 0  # over all batches and ranks
        self.seen_step = 0
        self.clock = Stopwatch()
        self.timed_tokens = 0

    def state_dict(self) -> dict[str, Any]:
        loss_sum = 0.0 if self.loss_sum is None else self.loss_sum.item()
        if not math.isfinite(loss_sum):
            raise diverged(loss_sum, "training")  # before the weights that did it replace a good checkpoint
        return {"loss_sum": loss_sum, "num_batches": self.num_batches, "tokens": self.tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_batches, self.tokens = state["num_batches"], state["tokens"]
        self.loss_sum = torch.tensor(state["loss_sum"]) if self.num_batches else None

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.seen_step = trainer.global_step
        for logger in trainer.loggers:
            if isinstance(logger, CSVLogger):
                logger.rewind(trainer.global_step)
        if self.loss_sum is not None:
            self.loss_sum = self.loss_sum.to(module.device)
        self.flops_per_token = module.gpt.flops_per_token()
        self.peak_flops = peak_flops(trainer)

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self.clock.start()

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: dict[str, Tensor], batch: dict[str, Tensor], *_: Any
    ) -> None:
        loss = outputs["loss"]  # divided by accumulate_grad_batches
        self.loss_sum = loss if self.loss_sum is None else self.loss_sum + loss
        self.num_batches += 1
        tokens = batch["tokens"].numel() * trainer.world_size
        self.tokens += tokens
        self.timed_tokens += tokens
        step = trainer.global_step
        if step == self.seen_step:  # gradients are still being accumulated
            return
        self.seen_step = step
        if step == trainer.max_steps:
            trainer.should_stop = True  # makes Lightning validate once more, wherever the last validation was
        if step % trainer.log_every_n_steps == 0 or step == trainer.max_steps:
            self._write_row(trainer)

    def on_validation_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.clock.stop()

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        if not math.isfinite(module.validation_metrics["val/loss"]):
            raise diverged(module.validation_metrics["val/loss"], "validation")
        self.latest |= module.validation_metrics
        if trainer.state.fn == "fit":
            log_metrics(trainer, module.validation_metrics)

    def _write_row(self, trainer: Trainer) -> None:
        loss = self.loss_sum * trainer.accumulate_grad_batches / self.num_batches
        loss = trainer.strategy.reduce(loss, reduce_op="mean").item()
        if not math.isfinite(loss):
            raise diverged(loss, "training")
        # Reading the loss has waited for the device, so the clock has seen all of the work.
        seconds = self.clock.lap()
        row = {
            "tokens": self.tokens,
            "train/loss": loss,
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
        }
        if seconds:
            row["tokens_per_second"] = self.timed_tokens / seconds
            if self.peak_flops:
                row["mfu"] = row["tokens_per_second"] * self.flops_per_token / self.peak_flops
        log_metrics(trainer, row)
        self.latest |= row
        self.loss_sum, self.num_batches, self.timed_tokens = None, 0, 0


class Stopwatch:
    """Seconds between start and stop, summed up until the next lap; starting twice is starting once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.started: float | None = None

    def start(self) -> None:
        if self.started is None:
            self.started = time.perf_counter()

    def stop(self) -> None:
        if self.started is not None:
            self.seconds += time.perf_counter() - self.started
            self.started = None

    def lap(self) -> float:
        self.stop()
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def diverged(loss: float, which: str) -> FloatingPointError:
    return FloatingPointError(
        f"the {which} loss has become {loss}: lower the learning rates under model.optimizer, lengthen "
        "model.schedule.warmup_steps or set trainer.gradient_clip_val; the last checkpoint is from before"
    )


class AttentionRecording(Callback):
    """Keeps the attention maps of a fixed text, the beginning of the validation split, as the model learns.

    At steps 0, 1, 2, 4, 8, ..., when most of the change happens, and then at every validation.
    """

    def __init__(self, enabled: bool = True, probe_tokens: int = 64, early_steps: int = 1024, picture: bool = True):
        """
        Args:
            enabled: whether maps are recorded.
            probe_tokens: length of the text, at most context_length; a file holds layers x heads x its square numbers.
            early_steps: powers of two are recorded up to this step.
            picture: whether every validation also draws the maps, as a PNG.

        Raises ValueError for a probe that is too short.
        """
        if probe_tokens < MIN_PROBE_TOKENS:
            raise ValueError(f"attention.probe_tokens must be at least {MIN_PROBE_TOKENS}, not {probe_tokens}")
        self.enabled = enabled
        self.probe_tokens = probe_tokens
        self.early_steps = early_steps
        self.picture = picture
        self.recorder = None
        self.recorded_step = -1

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        # Before on_train_start, where the run's folder is made: it may find that there are no maps to take.
        if self.enabled and trainer.is_global_zero:
            self.recorder = self._recorder(trainer, module)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.recorded_step = trainer.global_step
        if trainer.global_step == 0:
            self._record(trainer, module)

    def _recorder(self, trainer: Trainer, module: LightningModule) -> AttentionRecorder:
        data = trainer.datamodule
        length = min(self.probe_tokens, module.gpt.config.context_length)
        tokenizer = data.tokenizer
        tokens = tokenizer.encode(data.validation_text(16 * length))[:length]
        if len(tokens) < MIN_PROBE_TOKENS:
            short = "model.gpt.context_length" if length < MIN_PROBE_TOKENS else "the validation text"
            raise ValueError(
                f"{short} is too short for attention maps, {len(tokens)} tokens where a probe has at least "
                f"{MIN_PROBE_TOKENS}: make it longer, or write --attention.enabled false"
            )
        return AttentionRecorder(
            Path(trainer.default_root_dir, "attention"),
            tokens,
            [tokenizer.label(token) for token in tokens],
            tokenizer.fingerprint,
            tokenizer.vocab_size,
            known_tokens=set(tokenizer.encode(data.validation_text(KNOWN_CHARS))),
            end_of_text=tokenizer.end_of_text,
            token_label=tokenizer.label,
            autocast=AUTOCAST_TYPES.get(str(trainer.precision)),
        )

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        step = trainer.global_step
        if step <= self.early_steps and step & (step - 1) == 0 and step > self.recorded_step:
            self._record(trainer, module)

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        if trainer.state.fn == "fit" and trainer.global_step > self.recorded_step:
            self._record(trainer, module)
        if self.recorder is not None and self.picture:
            self._draw(Path(trainer.default_root_dir).name)

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        if self.recorder is None or not self.recorder.archive.snapshots:
            return
        archive, run = self.recorder.archive, Path(trainer.default_root_dir).name
        for logger in wandb_loggers(trainer):
            from model.inspection.page import Captures, attention_page

            logger.log_page("attention/page", attention_page([Captures.of(archive, run)], run), trainer.global_step)
            logger.log_folder("attention-maps", archive.folder)

    def _draw(self, run: str) -> None:
        from model.inspection.images import attention_grid

        archive = self.recorder.archive
        step = archive.steps[-1]
        path = archive.path(step).with_suffix(".png")
        maps, labels = archive.maps(step)["text"], archive.probes["text"].labels
        attention_grid(maps, labels, path, f"{run}, step {step}", max_side=PICTURE_SIDE)

    def _record(self, trainer: Trainer, module: LightningModule) -> None:
        step = self.recorded_step = trainer.global_step
        if not self.enabled or (gpt := whole_gpt(trainer, module)) is None:
            return
        log_metrics(trainer, self.recorder.record(gpt, step))
        for logger in wandb_loggers(trainer):
            from model.inspection.images import mosaic_pixels, score_pixels

            archive = self.recorder.archive
            heat_maps = {
                f"attention/{name}/heads": score_pixels(score) for name, score in archive.snapshots[-1].scores.items()
            }
            logger.log_images({"attention/maps": mosaic_pixels(archive.maps(step)["text"]), **heat_maps}, step)


class Samples(Callback):
    """Lets the model write at every validation: one JSON line each time in samples.jsonl, with step, prompt, text."""

    def __init__(self, prompt: str = "", max_new_tokens: int = 100, temperature: float = 0.8, top_k: int = 50):
        """
        Args:
            prompt: what to go on from; empty: the beginning of a document.
            max_new_tokens: how much is written, in tokens; 0: no samples.
            temperature: the logits are divided by it; 0 takes the likeliest token.
            top_k: draw from so many likeliest tokens.

        Raises ValueError for a value out of range.
        """
        if max_new_tokens < 0:
            raise ValueError(f"samples.max_new_tokens must be 0 or more, not {max_new_tokens}")
        if not 0 <= temperature < math.inf:
            raise ValueError(f"samples.temperature must be 0 or more (and finite), not {temperature}")
        if top_k < 1:
            raise ValueError(f"samples.top_k must be at least 1, not {top_k}")
        self.prompt = prompt
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature
        self.top_k = top_k

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.path = Path(trainer.default_root_dir, "samples.jsonl")
        if not trainer.is_global_zero or not self.path.exists():
            return
        kept = [sample for sample in read_samples(self.path) if sample["step"] <= trainer.global_step]
        write_atomically(self.path, "".join(map(json_line, kept)).encode())

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        if trainer.state.fn != "fit" or not self.max_new_tokens or (gpt := whole_gpt(trainer, module)) is None:
            return
        tokenizer = trainer.datamodule.tokenizer
        prompt = tokenizer.encode(self.prompt) or [tokenizer.end_of_text]
        # A generator of its own: what is drawn for show must not change what the run draws for itself.
        generator = torch.Generator(module.device).manual_seed(trainer.global_step)
        tokens = generate(
            gpt,
            torch.tensor([prompt], device=module.device),
            self.max_new_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            generator=generator,
        )
        text = tokenizer.decode(tokens[0, len(prompt) :].tolist())
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json_line({"step": trainer.global_step, "prompt": self.prompt, "text": text}))


def json_line(sample: dict[str, Any]) -> str:
    return json.dumps(sample, ensure_ascii=False) + "\n"
