"""Optional fast paths for particular machines: everything that exists only because some machine is faster that way.

`plain()` turns `fused_attention` and `fast_decoding` off; results then differ by rounding only. What each one gains:

    fused_attention     short contexts in bfloat16: 7-12% of a training step, AMD EPYC and Intel Xeon with AMX
    fast_decoding       one text twice as fast on an AMD EPYC, slower on an Intel Xeon with AMX; timed at run time
    RecordedStep        replays a decoding step, on a GPU as a CUDA graph; not measured yet
    keep_freed_memory   a third of a training step, AMD EPYC with glibc

Shapes: B batch, N sequences (batch times heads), T query length, K head width, V vocabulary, I features in, O features
out, R rows of input, M places in a cache.
"""

from __future__ import annotations

import ctypes
import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from model.cache import KVCache

if TYPE_CHECKING:
    from model.gpt import GPT

_enabled = True


@contextmanager
def plain() -> Iterator[None]:
    """Disables `fused_attention` and `fast_decoding` inside the block: PyTorch's own operations run."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before


@cache
def has_fast_bfloat16(device_type: str) -> bool:
    """Whether matrix products in bfloat16 are faster than in float32 on "cpu", "cuda" or another device.

    True for CPUs with AVX-512 BF16 or AMX (x86) or BF16 (Arm), and for NVIDIA GPUs from Ampere on.
    """
    if device_type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device_type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "arm_bf16"))
    return False


# Attention

MAX_SHORT_LENGTH = 256  # weights are kept for the backward pass: 128 KiB a head and sequence at this length


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, computed in the way that is fastest here."""
    fused = partial(
        F.scaled_dot_product_attention,
        attn_mask=mask,
        is_causal=is_causal,
        dropout_p=dropout_p,
        scale=scale,
        enable_gqa=enable_gqa,
    )
    if not (_enabled and query.device.type == "cpu" and query.dtype == torch.bfloat16):
        return fused(query, key, value)
    short = query.shape == key.shape == value.shape and 1 < query.shape[-2] <= MAX_SHORT_LENGTH
    if short and is_causal and mask is None and scale is None and not dropout_p:
        return short_causal_attention(query, key, value)
    # On processors PyTorch's kernel is no faster in bfloat16, and its backward pass takes twice as long.
    with torch.autocast("cpu", enabled=False):
        return fused(query.float(), key.float(), value.float()).bfloat16()


def short_causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q @ k^T / sqrt(K)) @ v over the positions up to each query's own, all (..., T, K), in bfloat16.

    PyTorch's kernel for processors makes small products in float32, head by head. Here they are made in bfloat16, for
    all heads at once, which takes two thirds of the time over 64 to 256 positions. As in the kernels for GPUs (Dao
    2023, https://arxiv.org/abs/2307.08691) scores and softmax are in float32, and the weights that multiply the
    values are rounded to bfloat16.
    """
    with torch.autocast(q.device.type, enabled=False):
        return _ShortCausalAttention.apply(*(x.reshape(-1, *x.shape[-2:]) for x in (q, k, v))).view(q.shape)


class _ShortCausalAttention(torch.autograd.Function):
    """Causal attention for q, k and v of shape (N, T, K) in bfloat16, with its gradient."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        T, K = q.shape[-2:]
        future = torch.full((T, T), -torch.inf, dtype=torch.float32, device=q.device).triu(1)
        scores = torch.baddbmm(future, q.float(), k.float().mT, alpha=K**-0.5)
        weights = scores.softmax(dim=-1).to(q.dtype)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    @once_differentiable
    def backward(ctx, values_grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, weights = ctx.saved_tensors
        weights_grad = values_grad @ v.mT
        # Through the softmax: weights * (weights_grad - sum(weights * weights_grad)), row by row. The private function
        # does it in one pass over memory; written out it takes four and loses most of the gain.
        scores_grad = torch._softmax_backward_data(weights_grad, weights, -1, weights.dtype)
        scores_grad *= q.shape[-1] ** -0.5
        return scores_grad @ k, scores_grad.mT @ q, weights.mT @ values_grad


# Decoding

FEW_ROWS = 4  # slices gain nothing from 8 rows on and lose from 16
SLICES = 8
MIN_GAIN = 1.2  # slices must be this many times as fast when measured; nearer to 1, noise would decide
MEASURED_ROUNDS = 4

_slices_are_faster: dict[tuple, bool] = {}


@contextmanager
def fast_decoding(model: nn.Module, batch_size: int) -> Iterator[None]:
    """Inside the block, linear layers multiply up to FEW_ROWS rows of input by slices of W, if that is faster here.

    With few rows the product is bound by memory bandwidth. On some CPUs PyTorch's matrix-vector product reaches a third
    of it, and torch.bmm over slices of W nearly all; on others it is the reverse. Both are timed once per process and
    model shape. The choice can change the last bits of a logit, and so, rarely, a sampled token. Only for CPUs and
    float32. Do not move or replace the weights inside the block.
    """
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    suited = all(layer.weight.is_cpu and layer.weight.dtype == torch.float32 for layer in layers)
    if not (_enabled and suited and batch_size <= FEW_ROWS):
        layers = []
    elif layers:
        shapes = (*(layer.weight.shape for layer in layers), batch_size, torch.get_num_threads())
        if shapes not in _slices_are_faster:
            _slices_are_faster[shapes] = _measured_gain(layers, batch_size) > MIN_GAIN
        layers = layers if _slices_are_faster[shapes] else []
    for layer in layers:
        layer.forward = sliced_linear(layer)  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)  # the method of its class is back; another block may have done it


def sliced_linear(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    """A function like `layer`, (..., I) -> (..., O), that multiplies up to FEW_ROWS rows by slices of its weight."""
    slices = math.gcd(SLICES, layer.out_features)
    weight = layer.weight.view(slices, -1, layer.in_features)
    bias = None if layer.bias is None else layer.bias.view(slices, -1, 1)

    def multiply(x: Tensor) -> Tensor:
        if x.numel() > FEW_ROWS * layer.in_features:
            return F.linear(x, layer.weight, layer.bias)
        vectors = x.reshape(-1, layer.in_features).t().expand(slices, -1, -1)  # (slices, I, R)
        product = torch.bmm(weight, vectors) if bias is None else torch.baddbmm(bias, weight, vectors)
        return product.permute(2, 0, 1).reshape(*x.shape[:-1], layer.out_features)

    return multiply


@torch.inference_mode()
def _measured_gain(layers: list[nn.Linear], num_rows: int) -> float:
    """Time of the plain layers divided by that of the sliced ones."""
    inputs = [torch.ones(num_rows, layer.in_features) for layer in layers]
    ways: tuple[Sequence[Callable], ...] = (layers, [sliced_linear(layer) for layer in layers])
    shortest = [[math.inf] * len(layers) for _ in ways]  # other processes can only add time
    for _ in range(MEASURED_ROUNDS):
        for functions, seconds in zip(ways, shortest, strict=True):
            # One layer after the other, as in the model: a weight used twice in a row would still be in the cache.
            for number, (multiply, x) in enumerate(zip(functions, inputs, strict=True)):
                started = time.perf_counter()
                multiply(x)
                seconds[number] = min(seconds[number], time.perf_counter() - started)
    plain_seconds, sliced_seconds = map(sum, shortest)
    return plain_seconds / sliced_seconds


# Recorded steps

Recorder = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]


class StaticCache(KVCache):
    """A view of a KVCache for steps of one token with fixed shapes, so that a step can be recorded once and replayed.

    The position is a tensor on the device, and all M places are read under a mask. Set `position` before a step, and
    advance `cache.length` after it.

    Args:
        cache: holds at least one token.
        position: (1,) integer on the cache's device, 1 .. M - 1.
    """

    def __init__(self, cache: KVCache, position: Tensor) -> None:
        self.max_len, self.tokens, self.keys, self.values = cache.max_len, cache.tokens, cache.keys, cache.values
        self.padding = cache.padding
        self.length = 0  # the caller counts: a number that changes in Python could not be recorded
        self.position = position

    def positions(self, num_new: int) -> Tensor:
        """As `KVCache.positions`, for one token."""
        return self.position if self.padding is None else self.position - self.padding[:, None]

    def document_ids(self, num_last: int, num_new: int) -> Tensor | None:
        """As `KVCache.document_ids`, for one token."""
        if self.padding is None:
            return None
        return self.position + torch.arange(1 - num_last, 1, device=self.tokens.device) >= self.padding[:, None]

    def append_tokens(self, tokens: Tensor) -> Tensor:
        """As `KVCache.append_tokens` for ids (B, 1), but returns a copy."""
        self.distance = self.position - torch.arange(self.max_len, device=tokens.device)  # (M,), the same in all layers
        self.tokens.index_copy_(1, self.position, tokens)
        return self.tokens.index_select(1, torch.cat((self.position - 1, self.position)))

    def append(self, layer: int, k: Tensor, v: Tensor, window: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """As `KVCache.append` for k and v (B, H_kv, 1, K), but returns all M keys and values, and a mask (1, M)
        or (B, 1, 1, M)."""
        keys = self.keys[layer].index_copy_(2, self.position, k)
        values = self.values[layer].index_copy_(2, self.position, v)
        visible = (self.distance >= 0)[None]
        if window is not None:
            visible &= self.distance < window
        if self.padding is not None:  # (1, M) -> (B, 1, 1, M)
            visible = (visible & (self.distance <= (self.position - self.padding)[:, None]))[:, None, None]
        return keys, values, visible


class RecordedStep:
    """A forward pass of one token a sequence, recorded at the first call and replayed from then on.

    Args:
        cache: what the tokens follow; at every call it must hold at least one token and have room for one more.
        record: runs a function without arguments, perhaps several times, and returns a function that repeats it.
    """

    def __init__(self, model: GPT, cache: KVCache, record: Recorder) -> None:
        self.model, self.cache, self.record = model, cache, record
        # Whatever changes between calls lives at fixed addresses.
        self.tokens = torch.zeros_like(cache.tokens[:, :1])
        self.position = cache.tokens.new_zeros(1)
        self.static_cache = StaticCache(cache, self.position)
        self.repeat: Callable[[], Tensor] | None = None

    def __call__(self, tokens: Tensor) -> Tensor:
        """Tokens (B, 1) -> logits (B, V); the next call may overwrite them."""
        self.tokens.copy_(tokens)
        self.position.fill_(self.cache.length)
        if self.repeat is None:
            with torch.cuda.device_of(tokens):
                self.repeat = self.record(self._logits)
        logits = self.repeat()
        self.cache.length += 1
        return logits

    def _logits(self) -> Tensor:
        return self.model.unembed(self.model.features(self.tokens, cache=self.static_cache)[:, -1])


def record_cuda_graph(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Returns a function that replays all kernels of `function` with one launch, on the same memory.

    Each call overwrites the result of the one before.
    See https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what libraries set up at their first call cannot be recorded
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Other threads, such as one that loads data, may use the device meanwhile.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        result = function()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


# Memory


def keep_freed_memory() -> None:
    """Lets the C library keep memory that tensors free, rather than return it to the system. Linux with glibc only.

    glibc maps every large block anew and unmaps it when it is freed, so each large activation of each step costs page
    faults: a third of the time of a training step on 2 cores. The price is that the process keeps its largest size.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    m_trim_threshold, m_mmap_max = -1, -4  # names and values of malloc.h
    libc = ctypes.CDLL(None)
    libc.mallopt(m_mmap_max, 0)
    libc.mallopt(m_trim_threshold, 2**31 - 1)
