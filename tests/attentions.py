"""Attentions that a user may put in place of `CausalSelfAttention.attend`, and a comparison by gradients."""

import torch
from torch import nn


def random(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def values_and_gradients(function, inputs):
    """Returns the function's values, and the gradient of each input for one fixed, uneven upstream gradient."""
    values = function(*inputs)
    # Numbers that bfloat16 represents exactly, so that they are equal in every type.
    upstream = torch.linspace(-1, 2, values.numel()).bfloat16().view(values.shape)
    return values, *torch.autograd.grad(values, inputs, upstream.to(values.dtype))


def with_scores(change, seen_ahead=0):
    """An `attend` that applies `change` to its scores, (H, T, S) to (H, T, S or more), before the softmax."""

    def attend(self, q, k, v, mask=None):
        k, v = (x.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1) for x in (k, v))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        T, S = scores.shape[-2:]
        visible = torch.ones(T, S, dtype=torch.bool).tril(S - T + seen_ahead) if mask is None else mask
        return change(scores.masked_fill(~visible, -torch.inf)).softmax(-1)[..., : k.shape[-2]] @ v

    return attend


def distances(scores):
    """Subtracts a slope for each head times the distance (Press et al. 2021, https://arxiv.org/abs/2108.12409)."""
    H, T, S = scores.shape[-3:]
    distance = torch.arange(T)[:, None] - torch.arange(S)
    return scores - 2.0 ** -torch.arange(1, H + 1)[:, None, None] * distance


ALIBI = with_scores(distances)
LEAK = with_scores(lambda scores: scores, seen_ahead=99)
UNIFORM = with_scores(lambda scores: scores.where(scores.isinf(), 0.0))  # averages the visible values


class Linears(nn.Module):
    """Has a linear layer for each of its names."""

    names = ""
    d_in = d_out = 16

    def __init__(self):
        super().__init__()
        for name in self.names.split():
            self.add_module(name, nn.Linear(self.d_in, self.d_out))
