"""GPTs for the tests, of both families, with random numbers in every weight."""

import torch
from torch import nn

from model.gpt import GPT, GPTConfig

GPT2 = {
    "position": "learned",
    "norm": "layernorm",
    "embedding_norm": False,
    "activation": "gelu",
    "bias": True,
    "tie_embeddings": True,
    "qk_norm": False,
    "logit_soft_cap": None,
    "init": "gpt2",
}


def random_gpt(config: GPTConfig, seed: int = 0) -> GPT:
    """In eval mode, every weight normal: as initialised many are zero, and would hide what a test looks for."""
    torch.manual_seed(seed)
    gpt = GPT(config).eval()
    for parameter in gpt.parameters():
        nn.init.normal_(parameter, std=0.3)
    return gpt
