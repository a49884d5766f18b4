"""Checkpoint files without a training."""

from dataclasses import asdict
from pathlib import Path

import torch

from data.tokenizers import byte_level
from model.gpt import GPT


def save_checkpoint(path: Path, gpt: GPT, step: int = 7) -> None:
    """Writes the GPT, with a tokenizer of bytes, as training writes it but without the optimizer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = {
        "state_dict": {f"gpt.{name}": weight for name, weight in gpt.state_dict().items()},
        "gpt_config": asdict(gpt.config),
        "tokenizer": byte_level().to_dict(),
        "global_step": step,
    }
    torch.save(checkpoint, path)


def change_checkpoint(path: Path, **entries: object) -> None:
    torch.save(torch.load(path, weights_only=True) | entries, path)
