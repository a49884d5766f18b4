"""Time of a training step: our GPT in GPT-2's architecture against nanoGPT, each in a bare loop.

With the defaults 3 minutes on 2 CPU cores. A compiled contender takes a minute more for each size.

nanoGPT's model.py is imported from the person's checkout. Its train.py runs when it is imported, so its loop is written
here anew, with the settings that it publishes, and trains both. Letters: B sequences in a batch, T tokens of context.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import yaml
from torch import Tensor, nn

from model.gpt import GPT, GPTConfig
from model.kernels import has_fast_bfloat16, keep_freed_memory
from model.training.hardware import compile_where_it_pays, missing_compiler
from model.training.optimizer import OptimizerConfig, build_optimizer
from scripts.benchmarks.contenders import Row, Size, alternate, call, compare, present
from scripts.benchmarks.machine import synchronized_time
from scripts.parser import at_least

ROUNDS = 3
# "reduce-overhead" compiles with CUDA graphs, "allocator" gives nanoGPT our allocator's setting, "bf16" lets it
# multiply in bfloat16 on a CPU, where by itself it does not.
CONTENDERS = ["glassgpt", "glassgpt+compile", "glassgpt+reduce-overhead", "nanogpt", "nanogpt+compile"]
CONTENDERS += ["nanogpt+allocator", "nanogpt+compile+allocator", "nanogpt+bf16", "nanogpt+compile+bf16"]
DEFAULT = {"cpu": "glassgpt nanogpt", "cuda": "glassgpt glassgpt+reduce-overhead nanogpt nanogpt+compile"}
# CPU: nanoGPT's README on a laptop, and its GPU config in smaller batches. GPU: its character config, and GPT-2 with
# the vocabulary rounded up to a multiple of 64, as nanoGPT trains it.
SIZES = {"cpu": "4x4x128/12x64/65 6x6x384/16x256/65", "cuda": "6x6x384/64x256/65 12x12x768/32x1024/50304"}
# Of nanoGPT's train.py and config/train_shakespeare_char.py, which its README's command for CPUs starts from too.
LEARNING_RATE, FINAL_LEARNING_RATE, WARMUP_STEPS = 1e-3, 1e-4, 100
WEIGHT_DECAY, BETAS, GRADIENT_CLIP, LOG_INTERVAL = 0.1, (0.9, 0.99), 1.0, 10
GPT2 = Path(__file__).with_name("gpt2_adamw.yaml")


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    shape = "LAYERSxHEADSxWIDTH/BATCHxCONTEXT/VOCABULARY"
    add("--sizes", nargs="+", metavar="SIZE", help=f"{shape} (default: {SIZES['cpu']}; on a GPU {SIZES['cuda']})")
    names = f"of {', '.join(CONTENDERS)} (default: {DEFAULT['cpu']}; on a GPU {DEFAULT['cuda']})"
    add("--contenders", nargs="+", choices=CONTENDERS, metavar="NAME", help=names)
    add("--seconds", type=at_least(0, float), default=5.0, help="of training in each round, at least (default: 5)")


def run(options: argparse.Namespace, notes: list[str]) -> list[Row]:
    sizes = options.sizes or SIZES[options.device].split()
    names = present(options.contenders or DEFAULT[options.device].split(), options.nanogpt, notes)
    notes.append("MFU: FLOPs of training per second, divided by the matrix rate above.")
    rows = []
    for text, size in [(text, Size.parse(text)) for text in sizes]:
        work = {"size": size, "seconds": options.seconds, "device": options.device, "checkout": options.nanogpt}
        commands = {name: call("train:measure", contender=name, **work) for name in names}
        compared = compare(alternate(commands, options.rounds), same=("parameters", "tokens"))
        rows += [{"work": f"training step, {text}", **row} for row in compared]
    return rows


def measure(contender: str, size: list[int], seconds: float, device: str, checkout: str | None, seed: int) -> Row:
    """Time of a step on random tokens, after three steps to warm up: what a step costs does not depend on the text."""
    size = Size(*size)
    torch.manual_seed(seed)
    text = torch.randint(size.vocab, (100 * size.batch * size.context,))
    learner = build(contender, size, device, checkout)
    stride = 10 if device == "cuda" else 1  # waiting for a GPU at every step would keep Python from running ahead
    for step in train(learner, text, size, device, steps=2000):
        if step == 3:
            started = synchronized_time(device)
        elif step > 5 and step % stride == 0 and (elapsed := synchronized_time(device) - started) >= seconds:
            break
    work = {"tokens": size.batch * size.context, "flops": size.batch * size.context * size.flops_per_token}
    return {"milliseconds_per_step": 1000 * elapsed / (step - 3), **learner.describe(), **work}


class Learner(NamedTuple):
    """A network and what trains it; `loss` is the mean nats of targets (B, T) after tokens (B, T)."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    precision: str

    def describe(self) -> Row:
        return {"parameters": num_parameters(self.model), "precision": self.precision}


def train(learner: Learner, text: Tensor, size: Size, device: str, steps: int) -> Iterator[int]:
    """nanoGPT's training on windows of `text` drawn at random, endless; yields the number of updates after each."""
    model, loss_of, optimizer, precision = learner

    def draw() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(text) - size.context, (size.batch, 1))
        rows = text[starts + torch.arange(size.context + 1)]
        if device == "cuda":
            rows = rows.pin_memory().to(device, non_blocking=True)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    batch = draw()
    for step in itertools.count():
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
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


def learning_rate(step: int, steps: int) -> float:
    """nanoGPT's schedule: linear warmup, then half a cosine."""
    if step < WARMUP_STEPS:
        return LEARNING_RATE * (step + 1) / (WARMUP_STEPS + 1)
    progress = min(1.0, (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS))
    return FINAL_LEARNING_RATE + (LEARNING_RATE - FINAL_LEARNING_RATE) * (1 + math.cos(math.pi * progress)) / 2


def build(contender: str, size: Size, device: str, checkout: str | None, dropout: float = 0.0) -> Learner:
    """What `train` takes; sets up this process for it.

    Raises:
        ValueError: if this machine cannot compile.
    """
    name, *extras = contender.split("+")
    if {"compile", "reduce-overhead"} & set(extras) and (missing := missing_compiler(torch.device(device))):
        raise ValueError(f"{contender} cannot be compiled: {missing} is missing")
    if name == "glassgpt" or "allocator" in extras:
        keep_freed_memory()
    if name == "glassgpt":
        model = GPT(gpt2_config(size)).to(device)
        mode = "reduce-overhead" if "reduce-overhead" in extras else "compile" in extras or "auto"
        loss = compile_where_it_pays(model.loss, mode, torch.device(device))
        optimizer = build_optimizer(model, OptimizerConfig("adamw", weight_decay=WEIGHT_DECAY, betas=BETAS))
        precision = "bfloat16" if has_fast_bfloat16(device) else "float32"
        return Learner(model, loss, optimizer, precision)
    torch.set_float32_matmul_precision("high")  # TF32 on GPUs that have it
    model = build_nanogpt(checkout, size, dropout).to(device)
    forward = torch.compile(model) if "compile" in extras else model
    optimizer = model.configure_optimizers(WEIGHT_DECAY, LEARNING_RATE, BETAS, device)
    precision = "bfloat16" if device == "cuda" or "bf16" in extras else "float32"
    return Learner(model, lambda tokens, targets: forward(tokens, targets)[1], optimizer, precision)


def build_nanogpt(checkout: str, size: Size, dropout: float = 0.0, bias: bool = False) -> nn.Module:
    """nanoGPT's GPT; without biases, as its train.py builds it."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", Path(checkout, "model.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclass looks itself up
    spec.loader.exec_module(module)
    shape = {"n_layer": size.layers, "n_head": size.heads, "n_embd": size.width}
    shape |= {"block_size": size.context, "vocab_size": size.vocab}
    return module.GPT(module.GPTConfig(**shape, dropout=dropout, bias=bias))


def gpt2_config(size: Size, bias: bool = False) -> GPTConfig:
    """Our GPT in GPT-2's architecture, as nanoGPT builds it."""
    architecture = yaml.safe_load(GPT2.read_text(encoding="utf-8"))["model"]["gpt"] | {"bias": bias}
    shape = {"num_layers": size.layers, "num_heads": size.heads, "embed_dim": size.width}
    shape |= {"context_length": size.context, "vocab_size": size.vocab}
    return GPTConfig(**shape, **architecture)


def num_parameters(model: nn.Module) -> int:
    """Weights that layers share count once."""
    return sum(parameter.numel() for parameter in model.parameters())
