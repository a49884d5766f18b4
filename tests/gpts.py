"""GPTs for the tests, of both families, with random numbers in every weight, and their checkpoints."""

from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import nn

from data.tokenizers import byte_level
from model.exchange.huggingface import to_huggingface
from model.gpt import GPT, GPTConfig

GPT2 = {"position": "learned", "norm": "layernorm", "embedding_norm": False, "activation": "gelu", "bias": True}
GPT2 |= {"tie_embeddings": True, "qk_norm": False, "logit_soft_cap": None, "init": "gpt2"}

# A small model for each thing that a measurement could get wrong, and a text for them.
MODERN = GPTConfig(vocab_size=50, context_length=16, num_layers=3, num_heads=4, embed_dim=32, logit_soft_cap=None)
CONFIGS = {
    "gpt2": replace(MODERN, **GPT2),
    "modern": MODERN,
    "grouped heads": replace(MODERN, num_kv_heads=2),
    "window": replace(MODERN, window=3),
    "tables": replace(MODERN, value_embeddings=True, ngram_sizes=[2, 3], ngram_buckets=97, num_kv_heads=2),
    "soft-cap": replace(MODERN, logit_soft_cap=2.0),
    "every norm and bias": replace(MODERN, norm="layernorm", bias=True, position="learned", activation="swiglu"),
    "tables of all heads": replace(MODERN, value_embeddings=True, ngram_sizes=[2, 3], ngram_buckets=97),
    "one layer": replace(MODERN, num_layers=1, num_heads=1, num_kv_heads=1),
}
TOKENS = torch.tensor([3, 14, 15, 9, 2, 6, 5, 35, 8, 9, 7, 9])


def random_gpt(config: GPTConfig, seed: int = 0, std: float = 0.3) -> GPT:
    """In eval mode, every weight normal: as initialised many are zero, and would hide what a test looks for.

    With a std of 0.15 logits are near 1, so that rounding is measured against it.
    """
    torch.manual_seed(seed)
    gpt = GPT(config).eval()
    for parameter in gpt.parameters():
        nn.init.normal_(parameter, std=std)
    return gpt


def huggingface_gpt2(gpt: GPT) -> nn.Module:
    """The GPT2LMHeadModel that transformers makes of a GPT of GPT-2's family; skips the test where it is missing."""
    transformers = pytest.importorskip("transformers")
    with TemporaryDirectory() as folder:
        to_huggingface(gpt, Path(folder, "gpt2"))
        return transformers.GPT2LMHeadModel.from_pretrained(Path(folder, "gpt2"), attn_implementation="eager").eval()


def repeating_gpt(period: int = 8) -> GPT:
    """A GPT over bytes that expects what came `period` tokens ago: its head 0.1 fetches it. All weights set by hand.

    The residual stream has three parts of 64: the token, its position, and what head 0.1 has read.
    """
    config = GPTConfig(
        vocab_size=257, context_length=64, num_layers=1, num_heads=3, embed_dim=192, position="learned",
        embedding_norm=False, qk_norm=False, logit_soft_cap=None,
    )  # fmt: skip
    gpt = GPT(config).eval()
    token, position, read = (slice(start, start + 64) for start in (0, 64, 128))
    one_hot = nn.functional.one_hot(torch.arange(257) % 64, 64).float()
    one = torch.eye(64)
    with torch.no_grad():
        for weight in gpt.parameters():
            weight.zero_()
        gpt.token_embedding.weight[:, token] = one_hot
        gpt.position_embedding.weight[:, position] = one
        queries, keys, values = gpt.blocks[0].attention.qkv_proj.weight.split(192)
        queries[64:128, position] = 4 * one.roll(1 - period, 0)  # at position p it asks for p - period + 1
        keys[64:128, position] = 4 * one
        values[64:128, token] = 4 * one
        gpt.blocks[0].attention.output_proj.weight[read, 64:128] = one
        gpt.head.weight[:, read] = one_hot
        gpt.head.weight[[*range(97), *range(123, 257)]] = 0  # it knows small letters only
    return gpt


def induction_gpt() -> GPT:
    """A GPT over bytes that repeats letters. All weights set by hand.

    Head 0.1 tells each token the one before it, by which head 1.2 finds what followed the last token before.

    The residual stream has four parts of 64: the token, its position, the token before, and what head 1.2 has read.
    """
    config = GPTConfig(
        vocab_size=257,
        context_length=64,
        num_layers=2,
        num_heads=4,
        embed_dim=256,
        position="learned",
        embedding_norm=False,
        qk_norm=False,
        logit_soft_cap=None,
        value_embeddings=False,
    )
    gpt = GPT(config).eval()
    token, position, previous, read = (slice(start, start + 64) for start in range(0, 256, 64))
    one_hot, one = nn.functional.one_hot(torch.arange(257) % 64, 64).float(), torch.eye(64)
    with torch.no_grad():
        for weight in gpt.parameters():
            weight.zero_()
        gpt.token_embedding.weight[:, token] = one_hot
        gpt.position_embedding.weight[:, position] = one
        for layer, head, asked, found, written in (
            (0, 1, one.roll(-1, 0), position, previous),
            (1, 2, one, previous, read),
        ):
            rows = slice(64 * head, 64 * head + 64)
            queries, keys, values = gpt.blocks[layer].attention.qkv_proj.weight.split(256)
            queries[rows, position if layer == 0 else token] = 4 * asked
            keys[rows, found] = 4 * one
            values[rows, token] = 0.1 * one if layer == 0 else 4 * one
            gpt.blocks[layer].attention.output_proj.weight[written, rows] = one
        gpt.head.weight[:, read] = one_hot
        gpt.head.weight[[*range(97), *range(123, 257)]] = 0
    return gpt


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


def save_run(folder: Path, **options) -> Path:
    """A run folder with a small random model over bytes."""
    sizes = {"vocab_size": 257, "context_length": 16, "num_layers": 2, "num_heads": 2, "embed_dim": 32}
    save_checkpoint(folder / "checkpoints" / "best.ckpt", random_gpt(GPTConfig(**sizes, **options)))
    return folder


def change_checkpoint(path: Path, **entries: object) -> None:
    torch.save(torch.load(path, weights_only=True) | entries, path)
