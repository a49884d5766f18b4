"""The bare training loops: ours and nanoGPT's, each with its own model, optimizer, batches and precision.

Shapes: B batch, T context, N tokens of a text.
"""

from __future__ import annotations

import math
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from data.sampler import WindowSampler
from model.gpt import GPT, GPTConfig, in_eval_mode
from model.kernels import has_fast_bfloat16, keep_freed_memory
from model.training.hardware import compile_where_it_pays, missing_compiler
from model.training.optimizer import OptimizerConfig, build_optimizer
from model.training.schedule import ScheduleConfig, learning_rate_factor
from scripts.benchmarks import nanogpt
from scripts.benchmarks.limits import synchronize
from scripts.benchmarks.workload import Size, compile_mode


class Loop(ABC):
    """A model that learns, one call of `step` at a time.

    Attributes:
        model, optimizer: what is trained, and by what.
        precision: of the products in training, in words.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    precision: str
    batch: tuple[Tensor, Tensor]

    def __init__(self, size: Size, device: str, steps: int):
        self.size, self.device, self.steps = size, device, steps
        self.step_number = 0

    def step(self) -> Tensor:
        """One update; its loss stays on the device, but for the steps at which a log would read it."""
        self.set_learning_rates()
        with self.autocast():
            loss = self.loss(*self.batch)
        self.batch = self.draw()  # while an accelerator is still at work
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), nanogpt.GRADIENT_CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.step_number % nanogpt.LOG_INTERVAL == 0:
            loss.item()
        self.step_number += 1
        return loss

    def autocast(self) -> AbstractContextManager:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device, dtype=torch.bfloat16)

    @abstractmethod
    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean nats of `targets` (B, T) after `tokens` (B, T); compiled, if this contender is."""

    @abstractmethod
    def draw(self) -> tuple[Tensor, Tensor]:
        """The next batch, (B, T) and (B, T), on the device."""

    @abstractmethod
    def set_learning_rates(self) -> None: ...

    @abstractmethod
    def nats(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Summed nats of a window, by the model as it is, not compiled."""


class GlassGPTLoop(Loop):
    """Our GPT in GPT-2's architecture, with our optimizer, sampler and precision.

    Args:
        extras: "compile" compiles it on a CPU too; "reduce-overhead" with CUDA graphs.
    """

    def __init__(self, tokens: np.ndarray, size: Size, device: str, steps: int, seed: int, extras: list[str]):
        super().__init__(size, device, steps)
        torch.manual_seed(seed)
        self.model = GPT(gpt2_config(size)).to(device)
        self.precision = "bfloat16" if has_fast_bfloat16(device) else "float32"
        if extras and (missing := missing_compiler(torch.device(device))):
            raise ValueError(f"glassgpt+{'+'.join(extras)} cannot be compiled: {missing} is missing")
        self._loss = compile_where_it_pays(self.model.loss, compile_mode(extras), torch.device(device))
        self.optimizer = build_optimizer(
            self.model,
            OptimizerConfig(
                algorithm="adamw",
                learning_rate=nanogpt.LEARNING_RATE,
                weight_decay=nanogpt.WEIGHT_DECAY,
                betas=nanogpt.BETAS,
            ),
        )
        self.schedule = ScheduleConfig(
            warmup_steps=nanogpt.WARMUP_STEPS,
            decay="cosine",
            final_factor=nanogpt.FINAL_LEARNING_RATE / nanogpt.LEARNING_RATE,
        )
        self.windows = self._windows(tokens, seed)
        self.batch = self.draw()

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self._loss(tokens, targets)

    def draw(self) -> tuple[Tensor, Tensor]:
        windows = torch.from_numpy(next(self.windows))
        if self.device == "cuda":
            windows = windows.pin_memory().to(self.device, non_blocking=True)
        return windows[:, :-1], windows[:, 1:]

    def _windows(self, tokens: np.ndarray, seed: int) -> Iterator[np.ndarray]:
        sampler = WindowSampler(len(tokens), self.size.context, self.size.batch, seed)
        steps = np.arange(256)
        while True:
            for starts in sampler.starts(steps):
                yield tokens[starts[:, None] + np.arange(self.size.context + 1)].astype(np.int64)
            steps += len(steps)

    def set_learning_rates(self) -> None:
        factor = learning_rate_factor(self.step_number, self.steps, self.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor

    def nats(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.model.loss(tokens, targets, reduction="sum")


class NanoGPTLoop(Loop):
    """nanoGPT's model in the loop of its train.py: its optimizer groups, cosine schedule, clipping and batches.

    Args:
        extras: "compile" as its train.py does by default; "bf16" autocasts on a CPU too, where it does not.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        size: Size,
        device: str,
        steps: int,
        seed: int,
        extras: list[str],
        *,
        checkout: str,
        dropout: float = 0.0,
    ):
        super().__init__(size, device, steps)
        torch.manual_seed(seed)
        torch.set_float32_matmul_precision("high")  # TF32 where there is
        self.model = nanogpt.build(checkout, size, dropout).to(device)
        self.precision = "bfloat16" if device == "cuda" or "bf16" in extras else "float32"
        self.optimizer = self.model.configure_optimizers(
            nanogpt.WEIGHT_DECAY, nanogpt.LEARNING_RATE, nanogpt.BETAS, device
        )
        self._forward = torch.compile(self.model) if "compile" in extras else self.model
        self._folder = tempfile.TemporaryDirectory()
        self._file = Path(self._folder.name, "train.bin")
        tokens.astype(np.uint16).tofile(self._file)
        self.batch = self.draw()

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self._forward(tokens, targets)[1]

    def draw(self) -> tuple[Tensor, Tensor]:
        text, length = np.memmap(self._file, dtype=np.uint16, mode="r"), self.size.context
        starts = torch.randint(len(text) - length, (self.size.batch,))
        tokens, targets = (
            torch.stack([torch.from_numpy(text[i + shift : i + shift + length].astype(np.int64)) for i in starts])
            for shift in (0, 1)
        )
        if self.device == "cuda":
            tokens, targets = tokens.pin_memory(), targets.pin_memory()
        return tokens.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)

    def set_learning_rates(self) -> None:
        rate, final, warmup = nanogpt.LEARNING_RATE, nanogpt.FINAL_LEARNING_RATE, nanogpt.WARMUP_STEPS
        if self.step_number < warmup:
            rate *= (self.step_number + 1) / (warmup + 1)
        else:
            progress = min(1.0, (self.step_number - warmup) / max(1, self.steps - warmup))
            rate = final + (rate - final) * (1 + math.cos(math.pi * progress)) / 2
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def nats(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.model(tokens, targets)[1] * targets.numel()


def build_loop(contender: str, tokens: np.ndarray, size: Size, options: dict) -> Loop:
    """The loop that `contender` names, such as "nanogpt+compile+allocator"; prepares this process for it.

    Args:
        options: `device`, `steps`, `seed`; for nanoGPT also `checkout`, and `dropout` if any.
    """
    name, *extras = contender.split("+")
    if name == "glassgpt" or "allocator" in extras:
        keep_freed_memory()
    loop = {"glassgpt": GlassGPTLoop, "nanogpt": NanoGPTLoop}[name]
    return loop(tokens, size, extras=extras, **options)


def gpt2_config(size: Size, bias: bool = False) -> GPTConfig:
    """Our GPT in GPT-2's architecture, as nanoGPT has it."""
    return GPTConfig(
        vocab_size=size.vocab,
        context_length=size.context,
        num_layers=size.layers,
        num_heads=size.heads,
        embed_dim=size.width,
        position="learned",
        norm="layernorm",
        embedding_norm=False,
        activation="gelu_exact",
        bias=bias,
        tie_embeddings=True,
        qk_norm=False,
        logit_soft_cap=None,
    )


@torch.no_grad()
def validation_loss(
    nats: Callable[[Tensor, Tensor], Tensor], model: nn.Module, text: Tensor, context: int, tokens_at_once: int = 16384
) -> float:
    """Mean nats of every token of `text` (N,) but the first, in float32, in windows of `context` side by side.

    Args:
        nats: summed nats of targets (B, T) after tokens (B, T).
        model: put in evaluation mode meanwhile.
    """
    was_precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    tokens, targets = text[:-1], text[1:]
    whole = len(targets) // context * context
    rows = max(1, tokens_at_once // context)
    pieces = list(
        zip(tokens[:whole].view(-1, context).split(rows), targets[:whole].view(-1, context).split(rows), strict=True)
    )
    if whole < len(targets):
        pieces.append((tokens[None, whole:], targets[None, whole:]))
    with in_eval_mode(model):
        total = sum(nats(*piece).double() for piece in pieces if piece[0].numel()).item()
    torch.set_float32_matmul_precision(was_precision)
    return total / len(targets)


def rehearse(step: Callable[[], object], model: nn.Module, optimizer: torch.optim.Optimizer, device: str) -> float:
    """Three steps that leave no trace, so that what is compiled is compiled; returns the seconds that they took.

    Weights are put back, the optimizer's state is dropped and the random numbers are drawn again.
    """
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    devices = [torch.cuda.current_device()] if device == "cuda" else []
    started = time.perf_counter()
    with torch.random.fork_rng(devices):
        for _ in range(3):
            step()
    synchronize(device)
    seconds = time.perf_counter() - started
    model.load_state_dict(weights)
    optimizer.state.clear()
    optimizer.zero_grad(set_to_none=True)
    return seconds


def flops_per_token(model: nn.Module, size: Size) -> int:
    """As `GPT.flops_per_token`, for any model of linear layers."""
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    return 6 * weights + 12 * size.layers * size.width * size.context


def num_parameters(model: nn.Module) -> int:
    """Number of weights; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())
