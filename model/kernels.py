"""Fast paths: code that exists only because some machine runs it faster than PyTorch's own operation.

Results differ from those of PyTorch's operations by rounding only. What each fast path gains:

    short_causal_attention  7-12% of a training step in bfloat16, on AMD EPYC and on Intel Xeon with AMX
    products_by_slices      generates a single text twice as fast on AMD EPYC; off on Intel CPUs, where it is slower
    rms_norm                a third of the time of a norm while a single text is generated
    keep_freed_memory       a third of a training step on AMD EPYC with glibc

Shapes: N sequences (batch times heads), T length, K head width, I features in, O features out, R rows of input.
"""

import ctypes
import math
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from model.mistakes import Mistake


@cache
def has_fast_bfloat16(device_type: str) -> bool:
    """Whether matrix products in bfloat16 are faster than in float32 on a device of type "cpu", "cuda" or another.

    True for CPUs with AMX (x86) or BF16 (Arm), for AMD CPUs with AVX-512 BF16, and for NVIDIA GPUs from Ampere on.
    False for Intel CPUs without AMX, even with AVX-512 BF16: there bfloat16 is half as fast as float32. A virtual
    machine may hide AMX.
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

# The attention weights are kept for the backward pass: 128 KiB for each head and sequence at this length.
MAX_SHORT_LENGTH = 256


def short_causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention, softmax(q @ k^T / sqrt(K)) @ v, for q, k and v (..., T, K) in bfloat16 on a CPU.

    PyTorch's CPU kernel multiplies small matrices in float32, head by head. This one multiplies in bfloat16, all heads
    at once, which takes two thirds of the time for 64 to 256 positions. As in GPU kernels (Dao 2023,
    https://arxiv.org/abs/2307.08691), scores and softmax are in float32, and the weights are rounded to bfloat16 before
    they multiply the values.
    """
    with torch.autocast(q.device.type, enabled=False):
        flat = [x.reshape(-1, *x.shape[-2:]) for x in (q, k, v)]
        return _ShortCausalAttention.apply(*flat).view(q.shape)


class _ShortCausalAttention(torch.autograd.Function):
    """Causal attention for q, k and v of shape (N, T, K) in bfloat16, and its gradient."""

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
        # The gradient of a softmax, row by row: weights * (weights_grad - sum(weights * weights_grad)). The private
        # function passes over memory once; the written-out formula passes four times and loses most of the gain.
        scores_grad = torch._softmax_backward_data(weights_grad, weights, -1, weights.dtype)
        scores_grad *= q.shape[-1] ** -0.5
        return scores_grad @ k, scores_grad.mT @ q, weights.mT @ values_grad


# Generation

FEW_ROWS = 4  # with 8 rows slices are no faster, with 16 they are slower
SLICES = 8
RMS_EPSILON = 1e-6
RMS_EPSILON_TENSOR = torch.tensor(RMS_EPSILON, device="cpu")  # creating this tensor takes longer than adding it


@cache
def has_slow_vector_products() -> bool:
    """Whether PyTorch multiplies a float32 matrix by a vector much more slowly than memory can deliver the matrix.

    True for AMD CPUs: there MKL, which PyTorch uses on x86, reaches a third of the memory bandwidth, and torch.bmm over
    slices of the matrix reaches nearly all of it. On Intel CPUs torch.bmm is the slower one.
    """
    return torch.backends.mkl.is_available() and is_amd()


@contextmanager
def products_by_slices(modules: Iterable[nn.Module]) -> Iterator[None]:
    """In this context every `torch.nn.Linear` among the modules runs `linear_by_slices`, if that is faster on this CPU.

    Enter it inside `in_eval_mode`, where nobody else changes the model. The choice depends on nothing but the CPU, so
    that a seed gives the same text in every process.
    """
    layers: list[nn.Linear] = []
    if has_slow_vector_products():
        # Somebody may have replaced `forward` of a layer: that one stays.
        layers = [layer for layer in modules if type(layer) is nn.Linear and "forward" not in vars(layer)]
    try:
        for layer in layers:
            vars(layer)["forward"] = partial(linear_by_slices, layer)
        yield
    finally:
        for layer in layers:
            del vars(layer)["forward"]


def linear_by_slices(layer: nn.Linear, x: Tensor) -> Tensor:
    """Returns layer(x), (..., I) -> (..., O).

    Multiplies by slices of the matrix if x is float32 on a CPU, has at most FEW_ROWS rows and needs no gradient. Else
    calls PyTorch's own operation.
    """
    weight = layer.weight
    bias = layer.bias
    width = layer.in_features
    rows = x.numel() // width
    is_cpu_float32 = x.is_cpu and x.dtype == torch.float32
    if rows > FEW_ROWS or not is_cpu_float32 or torch.is_grad_enabled():
        return F.linear(x, weight, bias)
    slices = math.gcd(SLICES, layer.out_features)
    columns = x.contiguous().as_strided((slices, width, rows), (0, 1, width))  # (slices, I, R): x.T for each slice
    matrices = weight.view(slices, -1, width)
    if bias is None:
        product = torch.bmm(matrices, columns)  # (slices, O / slices, R)
    else:
        product = torch.baddbmm(bias.view(slices, -1, 1), matrices, columns)
    if rows > 1:
        product = product.view(-1, rows).t()
    return product.reshape(*x.shape[:-1], layer.out_features)


def rms_norm(x: Tensor) -> Tensor:
    """Divides x by the root mean square of its last axis (Zhang & Sennrich 2019, https://arxiv.org/abs/1910.07467).

    PyTorch runs 20 operations for it on CPUs. For a single position without a gradient, this runs five.
    """
    is_cpu_float32 = x.is_cpu and x.dtype == torch.float32
    if x.shape[-2:-1] != (1,) or not is_cpu_float32 or torch.is_grad_enabled():
        return F.rms_norm(x, x.shape[-1:], eps=RMS_EPSILON)
    squares = (x * x).sum(dim=-1, keepdim=True)
    return x * torch.add(RMS_EPSILON_TENSOR, squares, alpha=1 / x.shape[-1]).rsqrt_()


# Devices and memory


def check_device(name: str, device: str | torch.device) -> None:
    """Raises a `Mistake` if this machine lacks the device, and for meta, which cannot draw random numbers.

    name: the option, for the message.
    """
    try:
        torch.Generator(device)
    except RuntimeError as error:
        reason = str(error).splitlines()[0].partition(". ")[0]  # the rest is advice on linking libraries
        raise Mistake(f"{name} {device} is not available here ({reason}): leave it out, or write cpu") from error


def keep_freed_memory() -> None:
    """Makes the C library keep the memory of freed tensors instead of returning it to the system. Only with glibc.

    By default glibc maps every large block anew and unmaps it when it is freed, so each large activation of each step
    costs page faults: a third of the time of a training step on 2 cores. The price: the process never shrinks.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    m_trim_threshold, m_mmap_max = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h
    libc = ctypes.CDLL(None)
    libc.mallopt(m_mmap_max, 0)
    libc.mallopt(m_trim_threshold, 2**31 - 1)
