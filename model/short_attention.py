"""Causal attention over short contexts in bfloat16 on a processor, with its backward pass written out.

PyTorch's fused kernel holds no weights, but on processors it makes small products in float32, head by head. Here they
are made in bfloat16 and for all heads at once, which over 64 to 256 positions takes two thirds of the time. As in the
kernels for GPUs (Dao 2023, https://arxiv.org/abs/2307.08691) the scores and the softmax are in float32, and the weights
that meet the values are rounded to bfloat16.

Shapes: N sequences (batch times heads), T length, K head width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

MAX_LENGTH = 256  # the weights are held for the backward pass: 128 KiB a head and sequence at this length


def is_faster_short(q: Tensor) -> bool:
    """Whether queries (..., T, K) are such that `short_causal_attention` is faster than PyTorch's kernel."""
    return q.device.type == "cpu" and q.dtype == torch.bfloat16 and 1 < q.shape[-2] <= MAX_LENGTH


def short_causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q @ k^T / sqrt(K)) @ v over the positions up to each query's own; all (..., T, K)."""
    with torch.autocast(q.device.type, enabled=False):
        return _ShortAttention.apply(*(x.reshape(-1, *x.shape[-2:]) for x in (q, k, v))).view(q.shape)


class _ShortAttention(torch.autograd.Function):
    """Of three (N, T, K) in bfloat16."""

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
        # Through the softmax: weights * (weights_grad - sum(weights * weights_grad)), row by row, in one pass.
        scores_grad = torch._softmax_backward_data(weights_grad, weights, -1, weights.dtype)
        scores_grad *= q.shape[-1] ** -0.5
        return scores_grad @ k, scores_grad.mT @ q, weights.mT @ values_grad
