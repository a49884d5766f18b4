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
    "tables": replace(MODERN, value_embeddings=True, ngram_sizes=[3, 2, 3], ngram_buckets=97, num_kv_heads=2),
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


def hand_made_gpt(layers: int, parts: int) -> tuple[GPT, list[slice]]:
    """A GPT over bytes with as many heads as its residual stream has parts of 64, which are given too.

    The first is the token, the second its position, the last the letter to come. All other weights are zero.
    """
    sizes = {"vocab_size": 257, "context_length": 64, "num_layers": layers, "num_heads": parts, "embed_dim": 64 * parts}
    plain = {"position": "learned", "embedding_norm": False, "qk_norm": False, "logit_soft_cap": None}
    gpt, places = GPT(GPTConfig(**sizes, **plain)).eval(), [slice(64 * i, 64 * i + 64) for i in range(parts)]
    one_hot = nn.functional.one_hot(torch.arange(257) % 64, 64).float()
    with torch.no_grad():
        for weight in gpt.parameters():
            weight.zero_()
        gpt.token_embedding.weight[:, places[0]] = one_hot
        gpt.position_embedding.weight[:, places[1]] = torch.eye(64)
        gpt.head.weight[:, places[-1]] = one_hot
        gpt.head.weight[[*range(97), *range(123, 257)]] = 0  # it knows small letters only
    return gpt, places


@torch.no_grad()
def set_head(gpt: GPT, layer: int, head: int, *, query, key, value, written: slice) -> None:
    """Each of the first three is a part of the residual stream and the matrix (64, 64) that it is multiplied with."""
    attention, rows = gpt.blocks[layer].attention, slice(64 * head, 64 * head + 64)
    weights = attention.qkv_proj.weight.split(gpt.config.embed_dim)
    for weight, (part, matrix) in zip(weights, (query, key, value), strict=True):
        weight[rows, part] = matrix
    attention.output_proj.weight[written, rows] = torch.eye(64)


def repeating_gpt(period: int = 8) -> GPT:
    """Expects what came `period` tokens ago: its head 0.1 fetches it."""
    gpt, (token, position, read) = hand_made_gpt(layers=1, parts=3)
    four = 4 * torch.eye(64)
    ago = position, four.roll(1 - period, 0)  # at position p it asks for p - period + 1
    set_head(gpt, 0, 1, query=ago, key=(position, four), value=(token, four), written=read)
    return gpt


def induction_gpt() -> GPT:
    """Repeats letters: head 0.1 tells each token the one before it, by which head 1.2 finds what followed the last."""
    gpt, (token, position, previous, read) = hand_made_gpt(layers=2, parts=4)
    four = 4 * torch.eye(64)
    before = position, four.roll(-1, 0)
    set_head(gpt, 0, 1, query=before, key=(position, four), value=(token, four / 40), written=previous)
    set_head(gpt, 1, 2, query=(token, four), key=(previous, four), value=(token, four), written=read)
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
