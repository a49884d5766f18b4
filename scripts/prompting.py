"""What the scripts that let a GPT read a prompt share: the trained GPT with its tokenizer, and the prompt's text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from data.tokenizers import Tokenizer
    from model.gpt import GPT


def open_checkpoint(checkpoint: Path, device: str | torch.device = "cpu") -> tuple[GPT, Tokenizer, int]:
    """The GPT of a checkpoint in evaluation mode, its tokenizer, and the number of updates it was trained for.

    Raises ValueError or FileNotFoundError, with a sentence that names the file.
    """
    from data.tokenizers import Tokenizer
    from model.checkpoint import load_gpt

    gpt, info = load_gpt(checkpoint, device)
    try:
        tokenizer = Tokenizer.from_dict(info["tokenizer"])
    except ValueError as error:
        raise ValueError(f"{checkpoint}: {error}") from error
    if tokenizer.vocab_size > gpt.config.vocab_size:
        raise ValueError(
            f"the tokenizer in {checkpoint} has {tokenizer.vocab_size:,} tokens, more than its model, "
            f"which knows {gpt.config.vocab_size:,}"
        )
    return gpt, tokenizer, info["global_step"]
