"""nanoGPT, from a checkout that the person has: https://github.com/karpathy/nanoGPT.

Its model.py is imported as it is. Its train.py runs when it is imported, so what it does is written anew in
scripts.benchmarks.loops, from the settings that it publishes.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from torch import nn

from scripts.benchmarks.workload import Size

# train.py's defaults and config/train_shakespeare_char.py, which is also what the README's CPU command starts from.
LEARNING_RATE, FINAL_LEARNING_RATE, WARMUP_STEPS = 1e-3, 1e-4, 100
WEIGHT_DECAY, BETAS, GRADIENT_CLIP = 0.1, (0.9, 0.99), 1.0
LOG_INTERVAL = 10


def load(checkout: str) -> ModuleType:
    """nanoGPT's model.py."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", Path(checkout, "model.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def build(checkout: str, size: Size, dropout: float, bias: bool = False) -> nn.Module:
    """A GPT of nanoGPT's; without biases, as its train.py has it."""
    module = load(checkout)
    return module.GPT(
        module.GPTConfig(
            block_size=size.context,
            vocab_size=size.vocab,
            n_layer=size.layers,
            n_head=size.heads,
            n_embd=size.width,
            dropout=dropout,
            bias=bias,
        )
    )
