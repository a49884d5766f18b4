"""check_attention: what it says of attentions with one mistake each, and that it accuses no right one."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model import check_attention
from model.attention import CausalSelfAttention
from model.multihead import scaled_dot_product_attention

INF = float("inf")


def written(change=None, *, axis=-1, scale=None, hide=True, after=None, dropout=0.0, own=lambda q, k, v: (q, k, v)):
    """A function as a learner writes it, with one thing changed."""

    def attend(q, k, v, mask=None):
        q, k, v = own(q, k, v)
        scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale(q))
        if mask is not None and hide:
            scores = scores.masked_fill(~mask, -1e30) if change is None else change(scores, mask)
        weights = F.dropout(scores.softmax(axis), dropout)
        return (weights if after is None or mask is None else after(weights, mask)) @ v

    return attend


class Layer(nn.Module):
    """Causal attention with four matrices, as in a notebook, of which one step is changed."""

    def __init__(self, merge=None, split=None, mask=None, keys=None, values=None, heads=8):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(64, 64) for _ in range(4))
        self.heads, self.keys, self.values = heads, keys or self.key, values or self.value
        self.merge = merge or (lambda x: x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1))
        self.split = split or (lambda x: x.view(*x.shape[:2], heads, -1).transpose(1, 2))
        self.allowed = mask or (lambda T: torch.ones(T, T).tril().bool())

    def forward(self, x):
        q, k, v = (self.split(part(x)) for part in (self.query, self.keys, self.values))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~self.allowed(x.shape[1]), -1e30)
        return self.output(self.merge(scores.softmax(-1) @ v))


def keys_of_queries():
    layer = Layer()
    layer.keys = layer.query
    return layer


class BatchSecond(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4)

    def forward(self, x, mask=None):
        return self.attention(x, x, x, attn_mask=None)


class Inverted(nn.Module):
    """PyTorch's layer hides where its mask is True."""

    def __init__(self, invert=False):
        super().__init__()
        self.attention, self.invert = nn.MultiheadAttention(64, 4, batch_first=True), invert

    def forward(self, x, mask=None):
        mask = ~mask if self.invert and mask is not None else mask
        return self.attention(x, x, x, attn_mask=mask)


class Plain(Layer):
    def __init__(self):
        super().__init__()
        self.mask = torch.ones(64, 64).tril().bool()


def if_mask(q, k, v, mask=None):
    return written()(q, k, v, mask if mask else None)


def no_transpose(q, k, v, mask=None):
    return (q @ k / math.sqrt(q.shape[-1])).softmax(-1) @ v


def with_nan_gradients(q, k, v, mask=None):
    mask = torch.ones(5, 5, dtype=torch.bool) if mask is None else mask
    return (q @ k.mT / math.sqrt(q.shape[-1]) + torch.where(mask, 0.0, -INF)).softmax(-1).nan_to_num() @ v


def transposed(q, k, v, mask=None):
    return written()(q, k, v, mask).transpose(1, 2)


def as_view(x):
    return x.reshape(x.shape[0], x.shape[2], -1)


WRONG = {
    # The five of the notebooks.
    "merged without transposing back": (lambda: Layer(merge=as_view), "merged without transposing back"),
    "a mask that is computed and not applied": (lambda: written(hide=False), "the mask changes nothing"),
    "if mask": (lambda: if_mask, "if mask is not None"),
    "keys from queries": (keys_of_queries, "keys are made from the queries"),
    "a mask that is no buffer": (Plain, "register_buffer"),
    # Those of public questions.
    "softmax over queries": (lambda: written(axis=-2), "over queries"),
    "softmax over heads": (lambda: written(axis=1), "over heads"),
    "softmax over the batch": (lambda: written(axis=0), "over the batch"),
    "mask after softmax": (lambda: written(hide=False, after=lambda w, m: w * m), "after the softmax"),
    "triu by one": (lambda: Layer(mask=lambda T: torch.ones(T, T).tril(1).bool()), "sees the one after it"),
    "triu by minus one": (lambda: Layer(mask=lambda T: torch.ones(T, T).tril(-1).bool()), "does not see itself"),
    "k without transpose": (lambda: no_transpose, "it fails with RuntimeError"),
    "view for transpose": (lambda: Layer(split=lambda x: x.view(x.shape[0], 8, x.shape[1], -1)), "split by view"),
    "dropout in eval": (lambda: written(dropout=0.5), "dropout is not switched off"),
    "no root": (lambda: written(scale=lambda q: 1), "not divided by the root"),
    "scale of the model": (lambda: written(scale=lambda q: (q.shape[1] * q.shape[-1]) ** -0.5), "model's width"),
    "scale by K": (lambda: written(scale=lambda q: 1 / q.shape[-1]), "not by its root"),
    "mask added as numbers": (lambda: written(lambda s, m: s + m.float()), "added to the scores as 0 and 1"),
    "mask added with the wrong sign": (lambda: written(lambda s, m: s - m * 1e9), "inverted"),
    "inverted": (lambda: written(lambda s, m: s.masked_fill(m, -INF)), "inverted"),
    "hidden scores are 0": (lambda: written(lambda s, m: s * m), "takes for a score"),
    "values from keys": (lambda: written(own=lambda q, k, v: (q, k, k)), "values are made from the keys"),
    "not transposed back": (lambda: transposed, "shapes: (2, 5, 3, 8) where (2, 3, 5, 8)"),
    "NaN in empty rows": (lambda: written(lambda s, m: s.masked_fill(~m, -INF)), "gets NaN"),
    "NaN gradients": (lambda: with_nan_gradients, "gradient"),
    "batch second": (BatchSecond, "texts of a batch mix"),
    "PyTorch's mask": (Inverted, "the mask is inverted"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_named(name):
    torch.manual_seed(0)
    make, words = WRONG[name]
    told = check_attention(make())
    assert any(words in sentence for sentence in told), told


class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.ModuleList(nn.Linear(64, 16) for _ in range(3)) for _ in range(4))
        self.output = nn.Linear(64, 64)

    def forward(self, x, mask=None):
        outputs = [written()(*(part(x) for part in head), mask) for head in self.heads]
        return self.output(torch.cat(outputs, dim=-1)), None


class Einsum(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.output = nn.Linear(64, 192, bias=False), nn.Linear(64, 64)

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 16).unbind(2)
        scores = torch.einsum("bthk,bshk->bhts", q, k) / 4
        weights = scores if mask is None else scores.masked_fill(~mask, torch.finfo(x.dtype).min)
        return self.output(torch.einsum("bhts,bshk->bthk", weights.softmax(-1), v).flatten(2))


def of_pytorch(q, k, v, mask=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


RIGHT = {
    "PyTorch's": lambda: nn.MultiheadAttention(64, 4, batch_first=True, dropout=0.5),
    "PyTorch's, time first": lambda: nn.MultiheadAttention(64, 4),
    "PyTorch's in a module": lambda: Inverted(invert=True),
    "PyTorch's kernel": lambda: of_pytorch,
    "a loop over heads": Loop,
    "einsum": Einsum,
    "grouped heads": lambda: CausalSelfAttention(64, 4, num_kv_heads=2),
    "the GPT's with a norm": lambda: CausalSelfAttention(64, 4, qk_norm=True),
    "the formula": lambda: lambda q, k, v, mask=None: scaled_dot_product_attention(q, k, v, mask),
    "by hand": lambda: written(),
    "without a mask": lambda: lambda q, k, v: written()(q, k, v),
    "a module that is causal": lambda: Layer().train(),
}


@pytest.mark.parametrize("name", RIGHT)
def test_no_right_one_is_accused(name):
    torch.manual_seed(0)
    mine = RIGHT[name]()
    training = isinstance(mine, nn.Module) and mine.training
    assert not check_attention(mine)
    assert not isinstance(mine, nn.Module) or mine.training == training
