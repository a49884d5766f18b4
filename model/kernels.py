"""Fast paths: everything that exists only because some machine is faster that way.

Results differ from those of PyTorch's own operations by rounding only. What each one gains:

    short_causal_attention  in bfloat16: 7-12% of a training step, AMD EPYC and Intel Xeon with AMX
    products_by_slices      one text twice as fast on an AMD EPYC; not used on Intel's processors, where it would lose
    rms_norm                a third of the time of a norm while one text is written
    keep_freed_memory       a third of a training step, AMD EPYC with glibc

Shapes: B batch, N sequences (batch times heads), T query length, S key length, K head width, I features in, O features
out, R rows of input.
"""

import ctypes
import math
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


@cache
def has_fast_bfloat16(device_type: str) -> bool:
    """Whether matrix products in bfloat16 are faster than in float32 on "cpu", "cuda" or another device.

    True for CPUs with AMX (x86) or BF16 (Arm), for AMD's with AVX-512 BF16, and for NVIDIA GPUs from Ampere on. False
    for Intel's without AMX, even with AVX-512 BF16: there bfloat16 is half as fast as float32. A virtual machine may
    hide AMX.
    """
    if device_type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device_type == "cpu":
        has = torch.cpu.get_capabilities().get
        return bool(has("amx_bf16") or has("arm_bf16") or (has("avx512_bf16") and is_amd()))
    return False


def is_amd() -> bool:
    return "AMD" in str(torch.cpu.get_capabilities().get("cpu_name"))


# Attention

MAX_SHORT_LENGTH = 256  # weights are kept for the backward pass: 128 KiB a head and sequence at this length


def short_causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q @ k^T / sqrt(K)) @ v over the positions up to each query's own, all (..., T, K), in bfloat16.

    PyTorch's kernel for processors makes small products in float32, head by head. Here they are made in bfloat16, for
    all heads at once, which takes two thirds of the time over 64 to 256 positions. As in the kernels for GPUs (Dao
    2023, https://arxiv.org/abs/2307.08691) scores and softmax are in float32, and the weights that multiply the
    values are rounded to bfloat16.
    """
    with torch.autocast(q.device.type, enabled=False):
        flat = [x.reshape(-1, *x.shape[-2:]) for x in (q, k, v)]
        return _ShortCausalAttention.apply(*flat).view(q.shape)


class _ShortCausalAttention(torch.autograd.Function):
    """Causal attention for q, k and v of shape (N, T, K) in bfloat16, with its gradient."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        T, K = q.shape[-2:]
        future = torch.full((T, T), -torch.inf, dtype=torch.float32, device=q.device)
        future = future.triu(1)
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


# Writing

FEW_ROWS = 4  # slices gain nothing from 8 rows on and lose from 16
SLICES = 8
RMS_EPSILON = 1e-6
RMS_EPSILON_TENSOR = torch.tensor(RMS_EPSILON, device="cpu")  # PyTorch takes longer to make one than to add it


@cache
def has_slow_vector_products() -> bool:
    """Whether PyTorch multiplies a float32 matrix by a vector much more slowly than memory gives the matrix.

    True for AMD's processors, where MKL, which does it on x86, reaches a third of the bandwidth. torch.bmm over slices
    of the matrix reaches nearly all of it there; on Intel's it is the reverse.
    """
    return torch.backends.mkl.is_available() and is_amd()


@contextmanager
def products_by_slices(model: nn.Module) -> Iterator[None]:
    """While text is written, every `torch.nn.Linear` of a model multiplies as `linear_by_slices`, where that is faster.

    That depends on the processor alone, so that a seed gives the same text in every process.
    """
    layers: list[nn.Linear] = []
    if has_slow_vector_products():
        linears = (module for module in model.modules() if type(module) is nn.Linear)
        layers = [layer for layer in linears if "forward" not in vars(layer)]  # as it has while another text is written
    try:
        for layer in layers:
            vars(layer)["forward"] = partial(linear_by_slices, layer)
        yield
    finally:
        for layer in layers:
            del vars(layer)["forward"]


def linear_by_slices(layer: nn.Linear, x: Tensor) -> Tensor:
    """(..., I) -> (..., O), by slices of the layer's matrix for up to FEW_ROWS rows in float32 without a gradient."""
    weight, bias, width = layer.weight, layer.bias, layer.in_features
    rows = x.numel() // width
    exact = x.is_cpu and x.dtype == torch.float32
    if rows > FEW_ROWS or not exact or torch.is_grad_enabled():
        return F.linear(x, weight, bias)
    slices = math.gcd(SLICES, layer.out_features)
    columns = x.contiguous().as_strided((slices, width, rows), (0, 1, width))  # x transposed, once for each slice
    matrices = weight.view(slices, -1, width)
    if bias is None:
        product = torch.bmm(matrices, columns)  # (slices, O / slices, R)
    else:
        product = torch.baddbmm(bias.view(slices, -1, 1), matrices, columns)
    if rows > 1:
        product = product.view(-1, rows).t()
    return product.reshape(*x.shape[:-1], layer.out_features)


def rms_norm(x: Tensor) -> Tensor:
    """x divided by the root mean square of its last axis (Zhang & Sennrich 2019, https://arxiv.org/abs/1910.07467).

    PyTorch makes 20 operations of it on processors. For one position without a gradient five do.
    """
    exact = x.is_cpu and x.dtype == torch.float32
    if x.shape[-2:-1] != (1,) or not exact or torch.is_grad_enabled():
        return F.rms_norm(x, x.shape[-1:], eps=RMS_EPSILON)
    squares = (x * x).sum(dim=-1, keepdim=True)
    return x * torch.add(RMS_EPSILON_TENSOR, squares, alpha=1 / x.shape[-1]).rsqrt_()


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
