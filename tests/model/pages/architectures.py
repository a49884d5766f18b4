"""One small random GPT for each thing that a measurement could get wrong."""

from dataclasses import replace

import torch

from model.gpt import GPTConfig
from tests.gpts import GPT2

MODERN = GPTConfig(vocab_size=50, context_length=16, num_layers=3, num_heads=4, embed_dim=32, logit_soft_cap=None)
CONFIGS = {
    "gpt2": replace(MODERN, **GPT2),
    "modern": MODERN,
    "grouped heads": replace(MODERN, num_kv_heads=2),
    "window": replace(MODERN, window=3),
    "tables": replace(MODERN, value_embeddings=True, bigram_buckets=97, num_kv_heads=2),
    "soft-cap": replace(MODERN, logit_soft_cap=2.0),
    "every norm and bias": replace(MODERN, norm="layernorm", bias=True, position="learned", activation="swiglu"),
    "tables of all heads": replace(MODERN, value_embeddings=True, bigram_buckets=97),
    "one layer": replace(MODERN, num_layers=1, num_heads=1, num_kv_heads=1),
}
TOKENS = torch.tensor([3, 14, 15, 9, 2, 6, 5, 35, 8, 9, 7, 9])
