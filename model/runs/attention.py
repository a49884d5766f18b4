"""Attention maps of a fixed text, recorded while the model is trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer

from model.checks import check_range
from model.inspection.archive import AttentionArchive, Probe
from model.inspection.recorder import MIN_PROBE_TOKENS, draw_repeated_probe, record_maps
from model.runs.metrics import log_metrics
from model.runs.wandb_logger import wandb_loggers
from model.training.sharding import whole_gpt

AUTOCAST_TYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
KNOWN_CHARS = 200_000  # of validation text; only tokens that occur in it are drawn, as a model knows no rarer ones
PICTURE_SIDE = 1300  # pixels, about a screen: five times as fast to draw as one with every token named


@dataclass
class AttentionRecording:
    """Records the attention maps of the beginning of the validation split.

    At steps 0, 1, 2, 4, 8, ..., when most of the change happens, and then at every validation.

    Args:
        enabled: whether maps are recorded.
        probe_tokens: length of the text, at most context_length; a file holds layers x heads x its square numbers.
        early_steps: powers of two are recorded up to this step.
        picture: whether every validation also draws the maps, as a PNG.

    Raises ValueError for a probe that is too short.
    """

    enabled: bool = True
    probe_tokens: int = 64
    early_steps: int = 1024
    picture: bool = True

    def __post_init__(self) -> None:
        check_range("attention.probe_tokens", self.probe_tokens, MIN_PROBE_TOKENS)
        self.archive: AttentionArchive | None = None  # on the first rank, once training begins

    def is_due(self, step: int) -> bool:
        """Whether a step without validation is recorded."""
        return step <= self.early_steps and step & (step - 1) == 0

    def start(self, trainer: Trainer, module: LightningModule) -> None:
        """Takes the probe from the validation text. Raises ValueError if that is too short."""
        if not self.enabled or not trainer.is_global_zero:
            return
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
        known = set(tokenizer.encode(data.validation_text(KNOWN_CHARS))) - {tokenizer.end_of_text}
        candidates = known if len(known) > 1 else range(tokenizer.vocab_size)
        max_period = (len(tokens) - 1) // 2  # no longer than the text, so that both fit the context
        probes = {
            "text": Probe(tokens, [tokenizer.label(token) for token in tokens]),
            "repeated": draw_repeated_probe(candidates, max_period, tokenizer.label, first=tokenizer.end_of_text),
        }
        self.archive = AttentionArchive(Path(trainer.default_root_dir, "attention"), probes, tokenizer.fingerprint)

    def record(self, trainer: Trainer, module: LightningModule, draws: bool = False) -> None:
        """Records the maps of the current step and logs their scores; every rank must call it.

        Args:
            draws: whether to also draw the picture, if pictures are wanted.
        """
        if not self.enabled or (gpt := whole_gpt(trainer, module)) is None:
            return
        archive, step = self.archive, trainer.global_step
        autocast = AUTOCAST_TYPES.get(str(trainer.precision))
        log_metrics(trainer, record_maps(archive, gpt, step, autocast=autocast))
        for logger in wandb_loggers(trainer):
            logger.log_attention(archive)
        if draws and self.picture:
            from model.inspection.images import attention_grid

            maps, labels = archive.maps(step)["text"], archive.probes["text"].labels
            title = f"{Path(trainer.default_root_dir).name}, step {step}"
            attention_grid(maps, labels, archive.path(step).with_suffix(".png"), title, max_side=PICTURE_SIDE)

    def finish(self, trainer: Trainer) -> None:
        if self.archive is not None and self.archive.snapshots:
            for logger in wandb_loggers(trainer):
                logger.log_attention_page(self.archive, trainer.global_step)
