# ruff: noqa: B905, RUF005, RUF059 (the styles are those of their authors)
"""Right attentions in the styles of public notebooks, books and libraries; test_check_attention.py breaks them.

All are 16 wide with 4 heads of 4, where they have heads. Only the layers that most of them have are made for them.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from model.attention import CausalSelfAttention, merge_heads, split_heads
from tests.attentions import Linears


class DiveIntoDeepLearning(Linears):
    """Queries, keys, values and valid lengths; heads are moved into the batch."""

    names = "W_q W_k W_v W_o"
    num_heads = 4

    def masked_softmax(self, X, valid_lens):
        if valid_lens is not None:
            mask = torch.arange(X.shape[-1])[None, None, :] < valid_lens[:, None, None]
            X = X.masked_fill(~mask, -1e6)
        return F.softmax(X, dim=-1)

    def transpose_output(self, X):
        X = X.reshape(-1, self.num_heads, X.shape[1], X.shape[2])
        X = X.permute(0, 2, 1, 3)
        return X.reshape(X.shape[0], X.shape[1], -1)

    def forward(self, queries, keys, values, valid_lens=None):
        queries = split_heads(self.W_q(queries), self.num_heads).flatten(0, 1)
        keys = split_heads(self.W_k(keys), self.num_heads).flatten(0, 1)
        values = split_heads(self.W_v(values), self.num_heads).flatten(0, 1)
        if valid_lens is not None:
            valid_lens = valid_lens.repeat_interleave(self.num_heads, dim=0)
        scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(queries.shape[-1])
        output = torch.bmm(self.masked_softmax(scores, valid_lens), values)
        return self.W_o(self.transpose_output(output))


class AnnotatedTransformer(nn.Module):
    """A list of four matrices, and a mask of (B, 1 or T, S)."""

    def __init__(self):
        super().__init__()
        self.linears = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])

    def forward(self, query, key, value, mask=None):
        nbatches = query.size(0)
        query, key, value = [
            lin(x).view(nbatches, -1, 4, 4).transpose(1, 2) for lin, x in zip(self.linears, (query, key, value))
        ]
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        x = torch.matmul(scores.softmax(dim=-1), value)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, 16)
        return self.linears[-1](x)


class RaschkaMultiHead(Linears):
    """The layer of the book: d_in != d_out, a context of 6."""

    names = "W_query W_key W_value"
    d_in = 12

    def __init__(self):
        super().__init__()
        self.out_proj = nn.Linear(16, 16)
        self.register_buffer("mask", torch.triu(torch.ones(6, 6), diagonal=1))

    def forward(self, x):
        b, num_tokens, _ = x.shape
        keys, queries, values = (
            matrix(x).view(b, num_tokens, 4, 4).transpose(1, 2) for matrix in (self.W_key, self.W_query, self.W_value)
        )
        attn_scores = queries @ keys.transpose(2, 3)
        mask_bool = self.mask.bool()[:num_tokens, :num_tokens]
        attn_scores.masked_fill_(mask_bool, -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        context_vec = (attn_weights @ values).transpose(1, 2)
        return self.out_proj(context_vec.contiguous().view(b, num_tokens, -1))


class MinGPT(nn.Module):
    """One fused matrix, a buffer that holds the mask."""

    def __init__(self, block_size=8):
        super().__init__()
        self.n_head = 4
        self.c_attn = nn.Linear(16, 48)
        self.c_proj = nn.Linear(16, 16)
        self.attn_dropout = nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class LectureHead(Linears):
    """A single head."""

    names = "key query value"
    d_out = 4

    def __init__(self):
        super().__init__()
        self.register_buffer("tril", torch.tril(torch.ones(8, 8)))

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x)
        q = self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        v = self.value(x)
        return wei @ v


class LectureHeads(nn.Module):
    """Karpathy's lecture: a list of heads, and a matrix that mixes them."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([LectureHead() for _ in range(4)])
        self.proj = nn.Linear(16, 16)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        return self.dropout(self.proj(out))


class Lucidrains(nn.Module):
    """Keys and values from one matrix, heads wider than the model's share; not causal."""

    def __init__(self):
        super().__init__()
        self.to_q = nn.Linear(12, 24)
        self.to_kv = nn.Linear(12, 48)
        self.to_out = nn.Linear(24, 12)

    def forward(self, x, mask=None):
        q, k, v = self.to_q(x), *self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (3, -1)).transpose(1, 2) for t in (q, k, v))
        sim = torch.einsum("b h i d, b h j d -> b h i j", q * 8**-0.5, k)
        if mask is not None:
            sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        out = torch.einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class Bert(Linears):
    """An additive mask, no output matrix."""

    names = "query key value"

    def transpose_for_scores(self, x):
        return x.view(x.size()[:-1] + (4, 4)).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None):
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))
        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2)) / math.sqrt(4)
        if attention_mask is not None:
            attention_scores = attention_scores + attention_mask
        context_layer = torch.matmul(attention_scores.softmax(dim=-1), value_layer)
        return context_layer.permute(0, 2, 1, 3).flatten(2)


class TransformerLens(nn.Module):
    """A parameter of (H, D, K) for the queries of all heads, and (H, K, D) for the output."""

    def __init__(self, d_head=4):
        super().__init__()
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.randn(4, 16, d_head)) for _ in range(3))
        self.W_O = nn.Parameter(torch.randn(4, d_head, 16))
        self.b_Q = nn.Parameter(torch.zeros(4, d_head))
        self.register_buffer("IGNORE", torch.tensor(-1e5))

    def forward(self, x):
        q = torch.einsum("bpd,hde->bphe", x, self.W_Q) + self.b_Q
        k = torch.einsum("bpd,hde->bphe", x, self.W_K)
        v = torch.einsum("bpd,hde->bphe", x, self.W_V)
        scores = torch.einsum("bqhe,bkhe->bhqk", q, k) / q.shape[-1] ** 0.5
        mask = torch.triu(torch.ones(scores.shape[-2:]), diagonal=1).bool()
        pattern = scores.masked_fill(mask, self.IGNORE).softmax(-1)
        z = torch.einsum("bkhe,bhqk->bqhe", v, pattern)
        return torch.einsum("bqhe,hed->bqd", z, self.W_O)


class ParameterHeads(nn.Module):
    """Parameters of each head, as rows: W @ x of each token."""

    def __init__(self):
        super().__init__()
        self.Wq, self.Wk, self.Wv = (
            nn.ParameterList([nn.Parameter(torch.randn(4, 16)) for _ in range(4)]) for _ in range(3)
        )
        self.Wo = nn.Parameter(torch.randn(16, 16))

    def forward(self, x, mask=None):
        outputs = []
        for Wq, Wk, Wv in zip(self.Wq, self.Wk, self.Wv):
            q, k, v = x @ Wq.T, x @ Wk.T, x @ Wv.T
            outputs.append(step_by_step(q, k, v, mask))
        return torch.cat(outputs, dim=-1) @ self.Wo.T


class Wrapped(nn.Module):
    """PyTorch's own layer, made causal on request."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x, use_mask=True):
        T = x.shape[1]
        mask = torch.triu(torch.ones(T, T), diagonal=1).bool() if use_mask else None
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


class FourAxes(nn.Module):
    """A module of queries, keys and values that are cut into heads already."""

    def forward(self, q, k, v, mask=None):
        return step_by_step(q, k, v, mask)


def step_by_step(q, k, v, mask=None):
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    weights = F.softmax(scores, dim=-1)
    return torch.matmul(weights, v)


def always_causal(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(dim=-1) @ v


class Replaced(CausalSelfAttention):
    """This project's layer with another `attend`."""

    def __init__(self):
        super().__init__(16, 4, num_kv_heads=2)

    def attend(self, q, k, v, mask=None):
        k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
        T, S = q.shape[-2], k.shape[-2]
        if mask is None:
            mask = torch.ones(T, S, dtype=torch.bool).tril(S - T)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v


class GroupedQuery(Linears):
    """Two heads of keys and values for four of queries; the fused kernel."""

    names = "wq wk wv wo"

    def __init__(self):
        super().__init__()
        self.wk = nn.Linear(16, 8)
        self.wv = nn.Linear(16, 8)

    def forward(self, x):
        q = split_heads(self.wq(x), 4)
        k = split_heads(self.wk(x), 2).repeat_interleave(2, dim=1)
        v = split_heads(self.wv(x), 2).repeat_interleave(2, dim=1)
        return self.wo(merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


class Flax(nn.Module):
    """Parameters of (D, H, K) and (H, K, D); not causal."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Parameter(torch.randn(16, 4, 4)) for _ in range(3))
        self.out = nn.Parameter(torch.randn(4, 4, 16))

    def forward(self, x):
        q, k, v = (torch.einsum("btd,dhk->bthk", x, kernel) for kernel in (self.query, self.key, self.value))
        weights = torch.einsum("bqhk,bshk->bhqs", q, k / 2).softmax(-1)
        return torch.einsum("bhqs,bshk,hkd->bqd", weights, v, self.out)


class TokensFirst(Linears):
    """Tokens (T, B, D), scores (T, S, B, H)."""

    names = "query key value output"
    batch_first = False

    def forward(self, x):
        q, k, v = (matrix(x).unflatten(-1, (4, 4)) for matrix in (self.query, self.key, self.value))
        scores = torch.einsum("ibhd,jbhd->ijbh", q, k) * 4**-0.5
        return self.output(torch.einsum("ijbh,jbhd->ibhd", scores.softmax(dim=1), v).flatten(2))


class OneText(Linears):
    """The first layer of the book, for one text (T, D)."""

    names = "W_query W_key W_value"

    def forward(self, x):
        keys, queries, values = self.W_key(x), self.W_query(x), self.W_value(x)
        attn_scores = queries @ keys.permute(1, 0)
        return torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1) @ values


def without_heads(query, keys, values):
    scores = (query.unsqueeze(2) * keys.unsqueeze(1)).sum(-1) / query.shape[-1] ** 0.5
    return (scores.softmax(-1).unsqueeze(-1) * values.unsqueeze(1)).sum(2)


class Llama(Linears):
    """The fused kernel, on heads that are made by view."""

    names = "wq wk wv wo"

    def forward(self, x):
        xq, xk, xv = (matrix(x).view(*x.shape[:2], 4, 4).transpose(1, 2) for matrix in (self.wq, self.wk, self.wv))
        output = F.scaled_dot_product_attention(xq, xk, xv)
        return self.wo(output.transpose(1, 2).reshape(x.shape))
