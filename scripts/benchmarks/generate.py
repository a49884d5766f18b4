"""Time to write text after a prompt: ours, nanoGPT, and GPT-2 of `transformers` with its cache.

All have the same architecture and size, and random weights, and write equally many tokens. With the defaults 4 minutes
on 2 CPU cores. nanoGPT has no cache: 16 texts of 256 tokens take it 100 seconds, and of 1000 tokens half an hour.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from model.generation import generate
from model.gpt import GPT
from model.kernels import record_cuda_graph
from scripts.benchmarks.contenders import Row, Size, alternate, call, compare, present
from scripts.benchmarks.machine import synchronized_time
from scripts.benchmarks.train import build_nanogpt, gpt2_config, num_parameters
from scripts.parser import at_least

ROUNDS = 3
CONTENDERS = ["glassgpt", "nanogpt", "transformers"]
SAMPLING = {"temperature": 0.8, "top_k": 200}  # as in nanoGPT's sample.py


def add_options(parser: argparse.ArgumentParser) -> None:
    add, number = parser.add_argument, at_least(1)
    add("--batches", nargs="+", type=number, default=[1, 16], metavar="N", help="texts at once (default: 1 16)")
    add("--new_tokens", nargs="+", type=number, default=[128], metavar="N", help="length in tokens (default: 128)")
    add("--prompt_tokens", type=number, default=16, help="length of the prompt in tokens (default: 16)")
    add("--model", default="6x6x384", metavar="LAYERSxHEADSxWIDTH", help="(default: 6x6x384)")
    add("--context", type=number, default=1024, help="of the models, for prompt and text (default: 1024)")
    add("--vocab", type=number, default=65, help="tokens in the vocabulary (default: 65)")
    add("--dtype", choices=("float32", "bfloat16"), help="of weights and cache (default: float32; on a GPU bfloat16)")
    add("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS, help="(default: all)")


def run(options: argparse.Namespace, notes: list[str]) -> list[Row]:
    longest = options.prompt_tokens + max(options.new_tokens)
    if longest > options.context:
        raise ValueError(f"--context {options.context} is too short for the {longest} tokens of prompt and text")
    sizes = [Size.parse(f"{options.model}/{batch}x{options.context}/{options.vocab}") for batch in options.batches]
    names = present(options.contenders, options.nanogpt, notes)
    notes.append("share of bandwidth: the bytes that a decoding with a cache must read, by the bandwidth above.")
    dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
    work = {"prompt_tokens": options.prompt_tokens, "dtype": dtype, "device": options.device}
    rows = []
    for size in sizes:
        for new_tokens in options.new_tokens:
            lengths = {"size": size, "new_tokens": new_tokens, "checkout": options.nanogpt}
            commands = {name: call("generate:measure", contender=name, **work, **lengths) for name in names}
            compared = compare(alternate(commands, options.rounds), same=("parameters", "tokens"))
            rows += [
                {"work": f"writing {size.batch} x {new_tokens} tokens, {options.model}", **row} for row in compared
            ]
    return rows


def measure(
    contender: str, size: list[int], prompt_tokens: int, new_tokens: int, dtype: str, device: str, seed: int, **of_peer
) -> Row:
    """Seconds to write `new_tokens` after each prompt of the batch, once, after a shorter text to warm up."""
    size = Size(*size)
    torch.manual_seed(seed)
    network, write = build(contender, size, device, **of_peer)
    network.to(device, getattr(torch, dtype)).eval()
    prompt = torch.randint(size.vocab, (size.batch, prompt_tokens), device=device)
    write(prompt, max_new_tokens=new_tokens if device == "cuda" else min(4, new_tokens))  # a graph has one length
    started = synchronized_time(device)
    text = write(prompt, max_new_tokens=new_tokens)
    seconds = synchronized_time(device) - started
    if text.shape != (size.batch, prompt_tokens + new_tokens):
        raise RuntimeError(f"{contender} wrote {tuple(text.shape)}, not {new_tokens} tokens for each of {size.batch}")
    parameters, element = num_parameters(network), prompt.new_empty(0, dtype=getattr(torch, dtype)).element_size()
    # For each token: the weights, without the table of positions, and the keys and values so far.
    cached = 2 * size.layers * size.width * size.batch * (prompt_tokens + new_tokens / 2)
    elements = parameters - size.context * size.width + cached
    work = {"tokens": size.batch * new_tokens, "bytes": new_tokens * elements * element}
    return {"seconds": seconds, "parameters": parameters, "precision": dtype, **work}


def build(contender: str, size: Size, device: str, checkout: str | None) -> tuple[nn.Module, Callable[..., Tensor]]:
    """A network and what writes with it: (prompt, max_new_tokens=...) -> prompt and text."""
    if contender == "glassgpt":
        gpt = GPT(gpt2_config(size, bias=True))
        return gpt, partial(generate, gpt, record=record_cuda_graph if device == "cuda" else None, **SAMPLING)
    if contender == "nanogpt":
        torch.set_float32_matmul_precision("high")
        gpt = build_nanogpt(checkout, size, bias=True)
        return gpt, partial(gpt.generate, **SAMPLING)
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {"n_layer": size.layers, "n_head": size.heads, "n_embd": size.width, "n_positions": size.context}
    ids = {"vocab_size": size.vocab, "bos_token_id": None, "eos_token_id": None}  # nothing ends a text early
    # The activation of the others; GPT-2's own takes more operations.
    gpt = GPT2LMHeadModel(GPT2Config(**shape, **ids, activation_function="gelu"))
    options = {"do_sample": True, "use_cache": True, "pad_token_id": 0, **SAMPLING}
    if device == "cuda":
        options["cache_implementation"] = "static"
    return gpt, lambda prompt, **length: gpt.generate(
        prompt, attention_mask=torch.ones_like(prompt), **options, **length
    )
