"""What a run records of its model while it trains: attention maps and measurements on fixed texts, and samples."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveInt
from lightning.pytorch import Trainer

from model.files import append
from model.glass import Glass
from model.inspection.film import film_texts
from model.inspection.recording import Recording, take_snapshot
from model.inspection.texts import MAX_TOKENS, repeated_tokens, repeated_windows, spread_starts
from model.mistakes import Mistake
from model.runs.metrics import log_metrics
from model.runs.records import as_line
from model.runs.run import ATTENTION, SAMPLES

log = logging.getLogger(__name__)

AUTOCAST_TYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
MIN_PROBE_TOKENS = 5  # the shortest repeated probe: one token, then two that are repeated
# Repeated texts are drawn from the tokens that occur among the first KNOWN_TOKENS of the validation split: a model does
# not know rarer tokens.
KNOWN_TOKENS = 100_000


@dataclass
class Recorder:
    """Records attention maps and measurements of fixed texts: at step 0, every validation and checkpoints.keep_steps.

    Args:
        enabled: whether to record anything.
        probe_tokens: length of the text whose maps are recorded, in tokens, cut at context_length. The file of a step
            holds layers x heads x probe_tokens x probe_tokens numbers for it.
        probe_text: the text whose maps are recorded; null: the beginning of the validation split.
        every_n_steps: steps from one further recording to the next; null: no further recordings.
    """

    enabled: bool = True
    probe_tokens: PositiveInt = 64
    probe_text: str | None = None
    every_n_steps: PositiveInt | None = None
    recording: Recording | None = field(default=None, init=False)  # set by `start`, on the first rank only

    def start(self, trainer: Trainer) -> None:
        """Opens the recording, with its probes, and with windows from the validation split (see `Texts`).

        Raises a `Mistake` if the probe is too short.
        """
        if not self.enabled or not trainer.is_global_zero:
            return
        data, gpt = trainer.datamodule, trainer.lightning_module.gpt
        tokenizer, validation = data.tokenizer, data.tokenized.validation
        texts = Glass(gpt, tokenizer, "the run", document_masking=data.document_masking).texts
        first = tokenizer.end_of_text
        length = min(self.probe_tokens, gpt.config.context_length)
        tokens = validation.read(0, length)
        if self.probe_text is not None:
            tokens = tokenizer.encode(self.probe_text)[:length]
        if len(tokens) < MIN_PROBE_TOKENS:
            raise Mistake(
                f"attention maps need at least {MIN_PROBE_TOKENS} tokens, and the text has {len(tokens)}: raise "
                "recording.probe_tokens or model.gpt.context_length, lengthen recording.probe_text or the validation "
                "split, or write --recording.enabled false"
            )
        known = validation.read(0, KNOWN_TOKENS)
        candidates = {*known.tolist()}
        period = (len(tokens) - 1) // 2  # so that the repeated probe is no longer than the text, which fits the context
        context = min(gpt.config.context_length, MAX_TOKENS)
        rows = np.stack([validation.read(start, context) for start in spread_starts(validation.num_tokens, context)])
        probes = {
            "text": texts(tokens),
            "repeated": texts(repeated_tokens(candidates, period, first=first), "repeated"),
        }
        windows = {
            "text": texts(rows),
            "repeated": texts(repeated_windows(candidates, context, first=first), "repeated"),
        }
        words = film_texts(tokenizer, tokenizer.decode(known), gpt.config.context_length, gpt.config.window)
        folder = Path(trainer.default_root_dir, ATTENTION)
        recording = Recording(probes, windows, tokenizer.fingerprint, words, folder=folder)
        self.recording = recording.resumed(trainer.global_step)

    def record(self, trainer: Trainer, *, with_losses: bool) -> None:
        """Records the current step and logs its scores.

        with_losses: also measure how the loss changes without each part of the model. This takes long, so only the last
            step and the steps of checkpoints.keep_steps have it.
        """
        if self.recording is None:
            return
        recording = self.recording
        snapshot = take_snapshot(
            trainer.lightning_module.gpt,
            trainer.global_step,
            recording,
            trainer.datamodule.tokenizer.label,
            with_losses=with_losses,
            autocast=AUTOCAST_TYPES.get(str(trainer.precision)),
        )
        warned = recording.problems
        recording.append(snapshot)
        log_metrics(trainer, snapshot.metrics)
        trainer.logger.wandb.log_maps(snapshot.readings["text"].maps, snapshot.step)
        for name, sentence in recording.problems.items():
            if name not in warned or trainer.should_stop:  # all of them again at the end
                log.warning("%s", sentence)


@dataclass
class Samples:
    """Generates a sample at every validation, and appends its step, prompt and text to samples.jsonl.

    Args:
        prompt: the text to continue; empty: start a new document.
        max_new_tokens: length of a sample, in tokens; 0: no samples.
        temperature: the logits are divided by it; 0: always take the likeliest token.
        top_k: draw from this many likeliest tokens only.
    """

    prompt: str = ""
    max_new_tokens: NonNegativeInt = 100
    temperature: NonNegativeFloat = 0.8
    top_k: PositiveInt = 50

    def write(self, trainer: Trainer) -> None:
        """Appends one sample of the model as it is now."""
        if not (self.max_new_tokens and trainer.is_global_zero):
            return
        step = trainer.global_step
        text = Glass(trainer.lightning_module.gpt, trainer.datamodule.tokenizer, "the run").write(
            self.prompt,
            self.max_new_tokens,
            seed=step,  # its own: sampling must not change the random numbers of the training
            temperature=self.temperature,
            top_k=self.top_k,
            stop_token=None,
        )
        sample = {"step": step, "prompt": self.prompt, "text": text}
        append(Path(trainer.default_root_dir, SAMPLES), as_line(sample))
