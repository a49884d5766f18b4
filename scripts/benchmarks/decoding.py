"""One contender's decoding, in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from model.generation import generate
from model.gpt import GPT
from model.kernels import record_cuda_graph
from scripts.benchmarks import nanogpt
from scripts.benchmarks.limits import synchronize
from scripts.benchmarks.loops import gpt2_config, num_parameters
from scripts.benchmarks.workload import Size

TEMPERATURE, TOP_K = 0.8, 200  # as nanoGPT's sample.py has them


def decode(
    contender: str,
    model: str,
    context: int,
    vocab: int,
    batch: int,
    prompt_tokens: int,
    new_tokens: int,
    dtype: str,
    device: str,
    seed: int,
    checkout: str | None,
) -> dict[str, Any]:
    """Seconds to write `new_tokens` after each of `batch` prompts, once, after a shorter text to warm up."""
    size = Size.parse(f"{model}/{batch}x{context}/{vocab}")
    torch.manual_seed(seed)
    build = {"glassgpt": build_ours, "nanogpt": build_nanogpt, "transformers": build_transformers}[contender]
    network, write = build(size, checkout, device)
    network.to(device, getattr(torch, dtype)).eval()
    prompt = torch.randint(vocab, (batch, prompt_tokens), device=device)
    # A static cache is compiled for one length, so there the warm-up must be as long.
    write(prompt, new_tokens if device == "cuda" else min(4, new_tokens))
    synchronize(device)
    started = time.perf_counter()
    text = write(prompt, new_tokens)
    synchronize(device)
    seconds = time.perf_counter() - started
    if text.shape != (batch, prompt_tokens + new_tokens):
        raise RuntimeError(f"{contender} wrote {tuple(text.shape)}, not {new_tokens} tokens for each of {batch}")
    return {
        "seconds": seconds,
        "parameters": num_parameters(network),
        "bytes": bytes_read(network, size, prompt_tokens, new_tokens),
    }


def build_ours(size: Size, checkout: str | None, device: str) -> tuple[nn.Module, Callable[[Tensor, int], Tensor]]:
    gpt = GPT(gpt2_config(size, bias=True))
    record = record_cuda_graph if device == "cuda" else None
    return gpt, lambda prompt, length: generate(
        gpt, prompt, length, temperature=TEMPERATURE, top_k=TOP_K, record=record
    )


def build_nanogpt(size: Size, checkout: str | None, device: str) -> tuple[nn.Module, Callable[[Tensor, int], Tensor]]:
    torch.set_float32_matmul_precision("high")
    gpt = nanogpt.build(checkout, size, dropout=0.0, bias=True)
    return gpt, lambda prompt, length: gpt.generate(prompt, length, temperature=TEMPERATURE, top_k=TOP_K)


def build_transformers(
    size: Size, checkout: str | None, device: str
) -> tuple[nn.Module, Callable[[Tensor, int], Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=size.vocab,
        n_positions=size.context,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=size.heads,
        activation_function="gelu",  # as the others have it; the one of GPT-2 takes more operations
        bos_token_id=None,
        eos_token_id=None,  # nothing ends a text early
    )
    gpt = GPT2LMHeadModel(config)
    cache = {"cache_implementation": "static"} if device == "cuda" else {}

    def write(prompt: Tensor, length: int) -> Tensor:
        return gpt.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=TOP_K,
            max_new_tokens=length,
            use_cache=True,
            pad_token_id=0,
            **cache,
        )

    return gpt, write


def bytes_read(network: nn.Module, size: Size, prompt_tokens: int, new_tokens: int) -> float:
    """What the steps of a cached decoding must read at least: the multiplied weights, keys and values so far."""
    weights = sum(parameter.nbytes for parameter in network.parameters())
    element = next(network.parameters()).element_size()
    weights -= size.context * size.width * element  # of the positions one row is looked up, and not the table
    cache = 2 * size.layers * size.width * element * size.batch * (prompt_tokens + new_tokens / 2)
    return new_tokens * (weights + cache)
