"""check_attention names the mistake in wrong attentions, and finds none in right ones."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model import check_attention
from model.attention import CausalSelfAttention
from model.multihead import MultiHeadAttention
from tests.small_runs import assert_same


def hidden(scores, mask):
    return scores if mask is None else scores.masked_fill(~mask, -1e30)


def written(mask=hidden, *, axis=-1, scale=lambda q: q.shape[-1] ** -0.5, after=lambda weights, mask: weights):
    """An attention function as a learner writes it, with one step changed."""

    def attend(q, k, v, allowed=None):
        scores = q @ k.transpose(-2, -1) * scale(q)
        return after(mask(scores, allowed).softmax(axis), allowed) @ v

    return attend


def split(x):
    return x.view(*x.shape[:2], 8, -1).transpose(1, 2)


def merged(x):
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def tril(diagonal):
    return lambda T: torch.ones(T, T).tril(diagonal).bool()


CAUSAL, RIGHTLY = tril(0), written()


class Layer(nn.Module):
    """Causal attention of 8 heads with four matrices, as in a notebook, with one step changed."""

    def __init__(self, merge=merged, split=split, mask=CAUSAL, attend=RIGHTLY):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(64, 64) for _ in range(4))
        self.dropout = nn.Dropout(0.5)
        self.split, self.mask, self.attend, self.merge = split, mask, attend, merge

    def forward(self, x):
        return self.of(x, x, x, self.mask(x.shape[1]))

    def of(self, queries, keys, values, mask):
        q, k, v = self.query(queries), self.key(keys), self.value(values)
        return self.output(self.merge(self.attend(self.split(q), self.split(k), self.split(v), mask)))


class ValidLens(Layer):
    """Attention with valid lengths; if `wrong`, it makes keys and values from the queries."""

    def __init__(self, wrong=False):
        super().__init__()
        self.wrong = wrong

    def forward(self, queries, keys, values, valid_lens):
        keys, values = (queries, queries) if self.wrong else (keys, values)
        allowed = torch.arange(keys.shape[1]) < valid_lens[:, None, :, None]
        return self.of(queries, keys, values, allowed)


class DropsScores(Layer):
    def of(self, queries, keys, values, mask):
        self.attend = written(lambda scores, mask: self.dropout(hidden(scores, mask)))
        return super().of(queries, keys, values, mask)


class Kept(Layer):
    """Keeps its weights in an attribute, and was called once before."""

    def __init__(self):
        super().__init__()
        self(torch.randn(1, 3, 64))

    def of(self, queries, keys, values, mask):
        self.attend = written(after=self.keep)
        return super().of(queries, keys, values, mask)

    def keep(self, weights, _):
        self.weights = weights
        return self.dropout(weights)


class OfPyTorch(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x, mask):
        return self.attention(x, x, x, attn_mask=~mask)


def if_mask(q, k, v, mask=None):
    return written()(q, k, v, mask if mask else None)


def no_transpose(q, k, v, mask=None):
    return (q @ k / math.sqrt(q.shape[-1])).softmax(-1) @ v


def heads_for_tokens():
    """Splits heads without a transpose, so that a token's heads attend to each other."""
    return Layer(
        split=lambda x: x.view(*x.shape[:2], 8, -1), merge=lambda x: x.flatten(2), attend=written(lambda s, m: s)
    )


def no_buffer():
    layer = Layer()
    layer.allowed = CAUSAL(64)
    return layer


def split_by_view(x):
    return x.view(x.shape[0], 8, x.shape[1], -1)


def merged_by_view(x):
    return x.reshape(x.shape[0], x.shape[2], -1)


WRONG = {
    # From the notebooks.
    "merged without transposing back": (lambda: Layer(merge=merged_by_view), "merged without transposing back"),
    "a mask that is computed and not applied": (lambda: written(lambda s, m: s), "the mask changes nothing"),
    "if mask": (lambda: if_mask, "if mask is not None"),
    "keys from queries": (lambda: lambda q, k, v, m: written()(q, q, v, m), "queries and keys are the same"),
    "keys and values from queries": (lambda: ValidLens(wrong=True), "does not depend on values"),
    "a mask that is no buffer": (no_buffer, "register_buffer"),
    # From public questions.
    "softmax over queries": (lambda: written(axis=-2), "over queries"),
    "softmax over heads": (lambda: written(axis=1), "over heads"),
    "softmax over the batch": (lambda: written(axis=0), "another text of the batch"),
    "mask after softmax": (lambda: written(lambda s, m: s, after=lambda w, m: w * m), "after the softmax"),
    "triu by one": (lambda: Layer(mask=tril(1)), "sees the one after it"),
    "triu by minus one": (lambda: Layer(mask=tril(-1)), "does not see itself"),
    "k without transpose": (lambda: no_transpose, "Are the keys transposed?"),
    "view for transpose": (lambda: Layer(split=split_by_view), "split by view"),
    "dropout in eval": (lambda: written(after=lambda w, m: F.dropout(w)), "dropout is not switched off"),
    "no root": (lambda: written(scale=lambda q: 1), "not divided by the root"),
    "scale of the model": (lambda: written(scale=lambda q: (q.shape[1] * q.shape[-1]) ** -0.5), "model's width"),
    # Symptoms without a known cause.
    "inverted": (lambda: written(lambda s, m: s.masked_fill(m, -math.inf)), "inverted"),
    "heads attend to heads": (heads_for_tokens, "does not depend on token"),
    "the mask is not looked at": (
        lambda: lambda q, k, v, m: written()(q, k, v, CAUSAL(q.shape[-2])),
        "which is masked or comes later",
    ),
    "dropout before the softmax": (DropsScores, "in training"),
    "not transposed back": (lambda: lambda *inputs: written()(*inputs).mT, "shapes: (2, 3, 8, 5) where (2, 3, 5, 8)"),
    "queries and keys swapped": (lambda: lambda q, k, v, m: written()(k, q, v, m), "differs from the formula"),
    "NaN": (lambda: written(lambda s, m: s + ~m * -math.inf), "NaN"),
    "sigmoid": (lambda: written(after=lambda w, m: w.sigmoid() * m), "do not add up to 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_every_mistake_is_named(name):
    torch.manual_seed(0)
    make, words = WRONG[name]
    sentences = check_attention(make())
    assert any(words in sentence for sentence in sentences), sentences


class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.ModuleList(nn.Linear(64, 16) for _ in range(3)) for _ in range(4))
        self.output = nn.Linear(64, 64)

    def forward(self, x, mask=None):
        outputs = [written()(*(part(x) for part in head), mask) for head in self.heads]
        return self.output(torch.cat(outputs, dim=-1)), None


class OneHead(nn.Module):
    """One head without matrices, so that it takes any width."""

    def forward(self, queries, keys, values, valid_lens=None, max_len=None):
        allowed = torch.arange(keys.shape[1]) < valid_lens[..., None]
        return written()(queries, keys, values, allowed)


def begins_with_zeros():
    layer = Layer()
    nn.init.zeros_(layer.output.weight)
    return layer


RIGHT = {
    "PyTorch's": lambda: nn.MultiheadAttention(64, 4, batch_first=True, dropout=0.5),
    "PyTorch's, time first, bfloat16": lambda: nn.MultiheadAttention(64, 4).bfloat16(),
    "PyTorch's in a module": OfPyTorch,
    "PyTorch's kernel": lambda: F.scaled_dot_product_attention,
    "a loop over heads": Loop,
    "float16": lambda: Loop().half(),
    "computed in bfloat16": lambda: lambda q, k, v, m: written()(q.bfloat16(), k.bfloat16(), v.bfloat16(), m),
    "grouped heads": lambda: CausalSelfAttention(64, 4, num_kv_heads=2).bfloat16(),
    "the GPT's with a norm and a window": lambda: CausalSelfAttention(64, 4, qk_norm=True, window=3),
    "the GPT's with a narrow window": lambda: CausalSelfAttention(64, 4, window=2),
    "the general layer": lambda: MultiHeadAttention(64, 4),
    "by hand": written,
    "a module that is causal": lambda: Layer().train(),
    "valid lengths": ValidLens,
    "no matrices": OneHead,
    "keeps its weights": Kept,
    "begins with zeros": begins_with_zeros,
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_attention_gets_no_sentence_and_is_not_changed(name):
    torch.manual_seed(0)
    mine = RIGHT[name]()
    is_module = isinstance(mine, nn.Module)
    before = (copy.deepcopy(mine.state_dict()), mine.training) if is_module else None
    assert not check_attention(mine)
    if is_module:
        assert_same(before, (mine.state_dict(), mine.training))
