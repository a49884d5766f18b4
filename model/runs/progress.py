"""What a person sees while training: what runs where, a bar on a terminal, and a line for each validation."""

import sys
import time
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from tqdm import tqdm

from model.runs.folder import REPORT
from model.runs.mistakes import output_is_closed

SHOWN = {
    "train/loss": "loss {:.3f}",
    "val/bits_per_byte": "{:.3f} bits/byte",
    "tokens_per_second": "{:,.0f} tokens/s",
    "mfu": "{:.0%} MFU",
}


class Progress:
    """A bar on a terminal, and lines that stay. `figures` are the newest of each name."""

    def __init__(self, is_enabled: bool = True) -> None:
        self.is_enabled = is_enabled
        self.figures: dict[str, float] = {}
        self.bar = tqdm(disable=True)

    def start(self, trainer: Trainer) -> None:
        """Says what is trained and where, and opens the bar."""
        self.is_enabled = self.is_enabled and trainer.is_global_zero
        if self.is_enabled:
            say(opening(trainer))
        self.first_step, self.started = trainer.global_step, time.monotonic()
        self.bar = tqdm(
            total=trainer.max_steps if trainer.max_steps > 0 else None,
            initial=trainer.global_step,
            disable=None if self.is_enabled else True,  # None: shown on a terminal
            bar_format="{percentage:3.0f}%|{bar}| {desc}",
            dynamic_ncols=True,
            leave=False,
        )

    def refresh(self, trainer: Trainer) -> None:
        """Moves the bar, if there is one."""
        if not self.bar.disable:
            self.bar.set_description_str(self.line(trainer), refresh=False)
            self.bar.update(trainer.global_step - self.bar.n)  # draws ten times a second

    def report(self, trainer: Trainer) -> None:
        """Writes a line that stays."""
        if self.is_enabled:
            say(self.line(trainer))

    def line(self, trainer: Trainer) -> str:
        """Such as "step 300/960  loss 2.345  1.897 bits/byte  51,340 tokens/s  1:02 left"; only what is known."""
        step, max_steps = trainer.global_step, trainer.max_steps
        parts = [f"step {step:>{len(str(max_steps))}}/{max_steps}" if max_steps > 0 else f"step {step}"]
        parts += [text.format(self.figures[name]) for name, text in SHOWN.items() if name in self.figures]
        if step > self.first_step and max_steps > 0:
            seconds = (time.monotonic() - self.started) / (step - self.first_step) * (max_steps - step)
            parts.append(f"{tqdm.format_interval(seconds)} left")
        return "  ".join(parts)


def opening(trainer: Trainer) -> str:
    """The model's size, the device and the precision on one line, the corpus on another, and where its page is.

    runs/first: 4,720,000 parameters, on cpu with 2 threads, precision bf16-mixed
    stdlib: 5,012,345 tokens to train on and 543,210 to validate, from a vocabulary of 4,096 (bpe)
    watch: runs/first/report.html
    """
    gpt, data, device = trainer.lightning_module.gpt, trainer.datamodule, trainer.strategy.root_device
    is_gpu, devices = device.type == "cuda", f"{trainer.world_size} x " if trainer.world_size > 1 else ""
    place = torch.cuda.get_device_name(device) if is_gpu else f"{device.type} with {torch.get_num_threads()} threads"
    train, validation, tokenizer = data.tokenized.train, data.tokenized.validation, data.tokenizer
    return (
        f"{trainer.default_root_dir}: {gpt.num_parameters():,} parameters, on {devices}{place}, "
        f"precision {trainer.precision}\n"
        f"{data.corpus.name}: {train.num_tokens:,} tokens to train on and {validation.num_tokens:,} to validate, "
        f"from a vocabulary of {tokenizer.vocab_size:,} ({tokenizer.name})\n"
        f"watch: {Path(trainer.default_root_dir, REPORT)}"
    )


def say(text: str) -> None:
    """Writes to standard output, above a bar. If its reader has gone, such as `head`, later output is dropped."""
    try:
        tqdm.write(text, file=sys.stdout)
        print(end="", flush=True)  # nothing, where there is no standard output
    except BrokenPipeError:
        output_is_closed()
