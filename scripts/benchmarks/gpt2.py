"""GPT-2's architecture by three authors, how they train and how they write: ours, nanoGPT's and transformers'.

nanoGPT's model.py is run from the person's checkout. Its train.py trains as soon as it is imported, so its loop is
written here anew, with the settings that it publishes, and trains ours too.

Letters: B sequences in a batch, T tokens of context, N tokens of a text.
"""

from __future__ import annotations

import itertools
import runpy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F

from model.generation import generate
from model.gpt import GPT, GPTConfig
from model.kernels import has_fast_bfloat16, keep_freed_memory, record_cuda_graph
from model.training.hardware import compile_where_it_pays, missing_compiler
from model.training.optimizer import OptimizerConfig, build_optimizer
from model.training.schedule import ScheduleConfig, learning_rate_factor
from scripts.benchmarks.callbacks import Curve, describe, mean_nats
from scripts.benchmarks.contenders import GPT2_RECIPE, ROOT, WARM_UP, Row
from scripts.benchmarks.machine import synchronized_time

# Of nanoGPT's train.py and config/train_shakespeare_char.py, which its README's command for CPUs starts from too.
LEARNING_RATE, WEIGHT_DECAY, BETAS, GRADIENT_CLIP, LOG_INTERVAL = 1e-3, 0.1, (0.9, 0.99), 1.0, 10
SCHEDULE = ScheduleConfig(warmup_steps=100, decay="cosine", final_factor=0.1)  # its warm-up is slower by 1%
Size = dict[str, int]  # fields of GPTConfig, and what the others call them
TRANSFORMERS_NAMES = {"num_layers": "n_layer", "num_heads": "n_head", "embed_dim": "n_embd"}
TRANSFORMERS_NAMES |= {"context_length": "n_positions", "vocab_size": "vocab_size"}
NANOGPT_NAMES = TRANSFORMERS_NAMES | {"context_length": "block_size"}
SAMPLING = {"temperature": 0.8, "top_k": 200}  # as in its sample.py


def measure_step(contender: str, batch_size: int, size: Size, seconds: float, device: str, seed: int, **peer) -> Row:
    """Time of a step on random tokens, after a warm-up: what a step costs does not depend on the text."""
    torch.manual_seed(seed)
    tokens = batch_size * size["context_length"]
    text = torch.randint(size["vocab_size"], (100 * tokens,))
    learner = build_learner(contender, size, device, **peer)
    stride = 10 if device == "cuda" else 1  # waiting for a GPU at every step would keep Python from running ahead
    for step in train(learner, text, batch_size, size["context_length"], steps=2000):
        if step == WARM_UP:
            started = synchronized_time(device)
        elif step > 5 and step % stride == 0 and (elapsed := synchronized_time(device) - started) >= seconds:
            break
    with torch.device("meta"):
        flops_per_token = GPT(gpt2_config(size)).flops_per_token()
    work = {"tokens": tokens, "flops": tokens * flops_per_token, **describe(learner.model, learner.precision)}
    return {"milliseconds_per_step": 1000 * elapsed / (step - WARM_UP), **work}


def learn_characters(
    contender: str, batch_size: int, size: Size, data: str, steps: int, evaluations: int, device: str, seed: int, **peer
) -> Row:
    """The learning curve of nanoGPT on the characters of `data`, split as its prepare.py does."""
    characters = torch.frombuffer(bytearray(Path(data).read_bytes()), dtype=torch.uint8)
    ids, cut = characters.unique(return_inverse=True)[1], int(0.9 * len(characters))
    torch.manual_seed(seed)
    learner = build_learner(contender, size, device, **peer)
    batches = windows(
        ids[cut - 1 :].to(device), size["context_length"]
    )  # the first target has the last training token before it
    curve = Curve(device, steps, evaluations)

    def losses() -> Iterator[tuple[Tensor, Tensor]]:
        for tokens, targets in batches:
            count = (targets >= 0).sum()
            yield learner.model(tokens, targets)[1] * count, count

    training = train(learner, ids[:cut], batch_size, size["context_length"], steps)
    for step in itertools.islice(training, steps):
        curve.after(step, lambda: mean_nats(learner.model, losses()))
    learned = {"curve": curve.points, "validation_bytes": len(ids) - cut}
    return {**learned, **describe(learner.model, learner.precision)}


def windows(text: Tensor, context: int) -> list[tuple[Tensor, Tensor]]:
    """Every token of `text` (N,) but the first as a target once, in windows side by side; -1 fills the last one up."""
    missing = -(len(text) - 1) % context
    tokens = F.pad(text[:-1], (0, missing)).view(-1, context)
    targets = F.pad(text[1:], (0, missing), value=-1).view(-1, context)
    return list(zip(tokens.split(128), targets.split(128), strict=True))


class Learner(NamedTuple):
    """A network and what trains it; `loss` is the mean nats of targets (B, T) after tokens (B, T)."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    precision: str


def build_learner(contender: str, size: Size, device: str, checkout: str | None, dropout: float = 0.0) -> Learner:
    """What `train` takes; sets up this process for it. Raises ValueError if this machine cannot compile."""
    name, *extras = contender.split("+")
    if extras and (missing := missing_compiler(torch.device(device))):
        raise ValueError(f"{contender} cannot be compiled: {missing} is missing")
    if name == "glassgpt":
        keep_freed_memory()
        model = GPT(gpt2_config(size)).to(device)
        mode = "reduce-overhead" if "reduce-overhead" in extras else "compile" in extras or "auto"
        loss = compile_where_it_pays(model.loss, mode, torch.device(device))
        optimizer = build_optimizer(model, OptimizerConfig("adamw", weight_decay=WEIGHT_DECAY, betas=BETAS))
        return Learner(model, loss, optimizer, "bfloat16" if has_fast_bfloat16(device) else "float32")
    torch.set_float32_matmul_precision("high")  # TF32 on GPUs that have it
    model = build_nanogpt(checkout, size, dropout).to(device)
    forward = torch.compile(model) if extras else model
    optimizer = model.configure_optimizers(WEIGHT_DECAY, LEARNING_RATE, BETAS, device)
    precision = "bfloat16" if device == "cuda" else "float32"
    return Learner(model, lambda tokens, targets: forward(tokens, targets)[1], optimizer, precision)


def train(learner: Learner, text: Tensor, batch_size: int, context: int, steps: int) -> Iterator[int]:
    """nanoGPT's training on windows of `text` (N,) drawn at random, endless; yields the number of updates."""
    model, loss_of, optimizer, precision = learner
    device = next(model.parameters()).device.type

    def draw() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(text) - context, (batch_size, 1))
        rows = text[starts + torch.arange(context + 1)]
        if device == "cuda":
            rows = rows.pin_memory().to(device, non_blocking=True)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    batch = draw()
    for step in itertools.count():
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * learning_rate_factor(step, steps, SCHEDULE)
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            loss = loss_of(*batch)
        batch = draw()  # while an accelerator is still at work
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % LOG_INTERVAL == 0:
            loss.item()
        yield step + 1


def measure_writing(
    contender: str,
    batch_size: int,
    size: Size,
    prompt_tokens: int,
    new_tokens: int,
    dtype: str,
    device: str,
    seed: int,
    **peer,
) -> Row:
    """Seconds to write `new_tokens` after each prompt of the batch, once, after a shorter text to warm up."""
    torch.manual_seed(seed)
    network, write = build_writer(contender, size, device, **peer)
    network.to(device, getattr(torch, dtype)).eval()
    prompt = torch.randint(size["vocab_size"], (batch_size, prompt_tokens), device=device)
    write(prompt, max_new_tokens=new_tokens if device == "cuda" else min(4, new_tokens))  # a graph has one length
    started = synchronized_time(device)
    text = write(prompt, max_new_tokens=new_tokens)
    seconds = synchronized_time(device) - started
    if text.shape != (batch_size, prompt_tokens + new_tokens):
        raise RuntimeError(f"{contender} wrote {tuple(text.shape)}, not {new_tokens} tokens for each of {batch_size}")
    return {"seconds": seconds, "tokens": batch_size * new_tokens, **describe(network, dtype)}


def build_writer(contender: str, size: Size, device: str, checkout: str | None) -> tuple[nn.Module, Callable]:
    """A network and what writes with it: (prompt, max_new_tokens=...) -> prompt and text."""
    if contender == "glassgpt":
        gpt = GPT(gpt2_config(size, bias=True))
        return gpt, partial(generate, gpt, record=record_cuda_graph if device == "cuda" else None, **SAMPLING)
    if contender == "nanogpt":
        torch.set_float32_matmul_precision("high")
        gpt = build_nanogpt(checkout, size, bias=True)
        return gpt, partial(gpt.generate, **SAMPLING)
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {TRANSFORMERS_NAMES[name]: value for name, value in size.items()}
    ids = {"bos_token_id": None, "eos_token_id": None}  # nothing ends a text early
    # The activation of the others; GPT-2's own takes more operations.
    gpt = GPT2LMHeadModel(GPT2Config(**shape, **ids, activation_function="gelu"))
    cache = {"use_cache": True, "cache_implementation": "static" if device == "cuda" else None}
    return gpt, partial(gpt.generate, do_sample=True, pad_token_id=0, **cache, **SAMPLING)


def build_nanogpt(checkout: str, size: Size, dropout: float = 0.0, bias: bool = False) -> nn.Module:
    """nanoGPT's GPT; without biases, as its train.py builds it."""
    nanogpt = runpy.run_path(str(Path(checkout, "model.py")), run_name="nanogpt")
    shape = {NANOGPT_NAMES[name]: value for name, value in size.items()}
    return nanogpt["GPT"](nanogpt["GPTConfig"](**shape, dropout=dropout, bias=bias))


def gpt2_config(size: Size, bias: bool = False) -> GPTConfig:
    """Our GPT in GPT-2's architecture, as nanoGPT builds it."""
    recipe = yaml.safe_load(Path(ROOT, GPT2_RECIPE).read_text(encoding="utf-8"))
    return GPTConfig(**size, **recipe["model"]["gpt"] | {"bias": bias})
