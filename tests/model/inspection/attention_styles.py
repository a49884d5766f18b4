# ruff: noqa: B905, RUF005, RUF059, SIM108 (the styles are those of their authors)
"""Right attentions in the styles of public notebooks, books and libraries; test_check_attention.py breaks them.

All are 16 wide with 4 heads of 4, where they have heads. They share nothing, as their models share nothing.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from model.attention import CausalSelfAttention, merge_heads, split_heads


class DiveIntoDeepLearning(nn.Module):
    """Queries, keys, values and valid lengths; heads are moved into the batch."""

    def __init__(self):
        super().__init__()
        self.num_heads = 4
        self.dropout = nn.Dropout(0.1)
        self.W_q = nn.Linear(16, 16, bias=False)
        self.W_k = nn.Linear(16, 16, bias=False)
        self.W_v = nn.Linear(16, 16, bias=False)
        self.W_o = nn.Linear(16, 16, bias=False)

    def masked_softmax(self, X, valid_lens):
        if valid_lens is None:
            return F.softmax(X, dim=-1)
        shape = X.shape
        if valid_lens.dim() == 1:
            valid_lens = torch.repeat_interleave(valid_lens, shape[1])
        else:
            valid_lens = valid_lens.reshape(-1)
        X = X.reshape(-1, shape[-1])
        mask = torch.arange(shape[-1])[None, :] < valid_lens[:, None]
        X = X.masked_fill(~mask, -1e6)
        return F.softmax(X.reshape(shape), dim=-1)

    def transpose_qkv(self, X):
        X = X.reshape(X.shape[0], X.shape[1], self.num_heads, -1)
        X = X.permute(0, 2, 1, 3)
        return X.reshape(-1, X.shape[2], X.shape[3])

    def transpose_output(self, X):
        X = X.reshape(-1, self.num_heads, X.shape[1], X.shape[2])
        X = X.permute(0, 2, 1, 3)
        return X.reshape(X.shape[0], X.shape[1], -1)

    def forward(self, queries, keys, values, valid_lens=None):
        queries = self.transpose_qkv(self.W_q(queries))
        keys = self.transpose_qkv(self.W_k(keys))
        values = self.transpose_qkv(self.W_v(values))
        if valid_lens is not None:
            valid_lens = valid_lens.repeat_interleave(self.num_heads, dim=0)
        scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(queries.shape[-1])
        output = torch.bmm(self.dropout(self.masked_softmax(scores, valid_lens)), values)
        return self.W_o(self.transpose_output(output))


def annotated_attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class AnnotatedTransformer(nn.Module):
    """A list of four matrices, and a mask of (B, 1 or T, S)."""

    def __init__(self, h=4, d_model=16, dropout=0.1):
        super().__init__()
        self.d_k = d_model // h
        self.h = h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        nbatches = query.size(0)
        query, key, value = [
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value))
        ]
        d_k = query.size(-1)
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        self.attn = self.dropout(scores.softmax(dim=-1))
        x = torch.matmul(self.attn, value)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.linears[-1](x)


class RaschkaFirst(nn.Module):
    """Bare parameters, one text without a batch, no mask, no output matrix, d_in != d_out."""

    def __init__(self, d_in=16, d_out=12):
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x):
        keys = x @ self.W_key
        queries = x @ self.W_query
        values = x @ self.W_value
        attn_scores = queries @ keys.T
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        context_vec = attn_weights @ values
        return context_vec


class RaschkaCausal(nn.Module):
    """One causal head, for texts of at most four tokens."""

    def __init__(self, d_in=16, d_out=8, context_length=4, dropout=0.1):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        b, num_tokens, d_in = x.shape
        keys = self.W_key(x)
        queries = self.W_query(x)
        values = self.W_value(x)
        attn_scores = queries @ keys.transpose(1, 2)
        attn_scores.masked_fill_(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        attn_weights = self.dropout(attn_weights)
        return attn_weights @ values


class RaschkaWrapper(nn.Module):
    """Heads of their own, put side by side."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([RaschkaCausal(16, 5, 6, 0.0) for _ in range(3)])

    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], dim=-1)


class RaschkaMultiHead(nn.Module):
    """The layer of the book: one matrix for all heads, d_in != d_out."""

    def __init__(self, d_in=12, d_out=16, context_length=6, num_heads=4):
        super().__init__()
        self.d_out = d_out
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        b, num_tokens, d_in = x.shape
        keys = self.W_key(x).view(b, num_tokens, self.num_heads, self.head_dim)
        queries = self.W_query(x).view(b, num_tokens, self.num_heads, self.head_dim)
        values = self.W_value(x).view(b, num_tokens, self.num_heads, self.head_dim)
        keys = keys.transpose(1, 2)
        queries = queries.transpose(1, 2)
        values = values.transpose(1, 2)
        attn_scores = queries @ keys.transpose(2, 3)
        mask_bool = self.mask.bool()[:num_tokens, :num_tokens]
        attn_scores.masked_fill_(mask_bool, -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        attn_weights = self.dropout(attn_weights)
        context_vec = (attn_weights @ values).transpose(1, 2)
        context_vec = context_vec.contiguous().view(b, num_tokens, self.d_out)
        return self.out_proj(context_vec)


class MinGPT(nn.Module):
    """One fused matrix, a buffer that holds the mask."""

    def __init__(self, n_embd=16, n_head=4, block_size=8):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.attn_dropout = nn.Dropout(0.1)
        self.resid_dropout = nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size))
        self.n_head = n_head
        self.n_embd = n_embd

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        y = self.resid_dropout(self.c_proj(y))
        return y


class NanoGPT(nn.Module):
    """The fused kernel."""

    def __init__(self, n_embd=16, n_head=4):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.n_head = n_head
        self.n_embd = n_embd
        self.dropout = 0.2

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        dropout_p = self.dropout if self.training else 0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=dropout_p, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class LectureHead(nn.Module):
    def __init__(self, head_size=4, n_embd=16, block_size=8):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x)
        q = self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        wei = self.dropout(wei)
        v = self.value(x)
        return wei @ v


class LectureHeads(nn.Module):
    """Karpathy's lecture: a list of heads, and a matrix that mixes them."""

    def __init__(self, num_heads=4, n_embd=16):
        super().__init__()
        self.heads = nn.ModuleList([LectureHead() for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        return self.dropout(self.proj(out))


class Lucidrains(nn.Module):
    """Keys and values from one matrix, heads wider than the model's share; not causal."""

    def __init__(self, dim=12, heads=3, dim_head=8):
        super().__init__()
        self.scale = dim_head**-0.5
        self.heads = heads
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(dim, heads * dim_head * 2, bias=False)
        self.to_out = nn.Sequential(nn.Linear(heads * dim_head, dim), nn.Dropout(0.0))

    def forward(self, x, mask=None):
        b, n, _ = x.shape
        h = self.heads
        q, k, v = self.to_q(x), *self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (t.reshape(b, n, h, -1).permute(0, 2, 1, 3) for t in (q, k, v))
        q = q * self.scale
        sim = torch.einsum("b h i d, b h j d -> b h i j", q, k)
        if mask is not None:
            sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        out = torch.einsum("b h i j, b h j d -> b h i d", attn, v)
        out = out.permute(0, 2, 1, 3).reshape(b, n, -1)
        return self.to_out(out)


class LabML(nn.Module):
    """Tokens first, then the batch; the heads last. The mask is (T, S, B)."""

    def __init__(self, heads=4, d_model=16):
        super().__init__()
        self.d_k = d_model // heads
        self.heads = heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.softmax = nn.Softmax(dim=1)
        self.output = nn.Linear(d_model, d_model)
        self.scale = 1 / math.sqrt(self.d_k)

    def prepare(self, linear, x):
        return linear(x).view(*x.shape[:-1], self.heads, self.d_k)

    def forward(self, query, key, value, mask=None):
        seq_len, batch_size, _ = query.shape
        query, key = self.prepare(self.query, query), self.prepare(self.key, key)
        value = self.prepare(self.value, value)
        scores = torch.einsum("ibhd,jbhd->ijbh", query, key) * self.scale
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(-1) == 0, float("-inf"))
        attn = self.softmax(scores)
        x = torch.einsum("ijbh,jbhd->ibhd", attn, value)
        return self.output(x.reshape(seq_len, batch_size, -1))


class Conv1D(nn.Module):
    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.empty(nx, nf).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


class HuggingFaceGPT2(nn.Module):
    """Conv1D, and an additive mask beside the causal one. Returns a tuple."""

    def __init__(self, embed_dim=16, num_heads=4, max_positions=16):
        super().__init__()
        self.register_buffer(
            "bias",
            torch.tril(torch.ones((max_positions, max_positions), dtype=torch.bool)).view(
                1, 1, max_positions, max_positions
            ),
            persistent=False,
        )
        self.num_heads = num_heads
        self.embed_dim = embed_dim
        self.c_attn = Conv1D(3 * embed_dim, embed_dim)
        self.c_proj = Conv1D(embed_dim, embed_dim)

    def forward(self, hidden_states, attention_mask=None, head_mask=None):
        query, key, value = self.c_attn(hidden_states).split(self.embed_dim, dim=2)
        shape = (*query.shape[:2], self.num_heads, -1)
        query, key, value = (x.view(shape).transpose(1, 2) for x in (query, key, value))
        attn_weights = torch.matmul(query, key.transpose(-1, -2))
        attn_weights = attn_weights / torch.full([], value.size(-1) ** 0.5)
        causal_mask = self.bias[:, :, : query.size(-2), : key.size(-2)]
        mask_value = torch.full([], torch.finfo(attn_weights.dtype).min)
        attn_weights = torch.where(causal_mask, attn_weights, mask_value)
        if attention_mask is not None:
            attn_weights = attn_weights + attention_mask
        attn_weights = nn.functional.softmax(attn_weights, dim=-1)
        attn_output = torch.matmul(attn_weights, value).transpose(1, 2)
        attn_output = attn_output.reshape(*attn_output.shape[:-2], -1).contiguous()
        return self.c_proj(attn_output), attn_weights


class Timm(nn.Module):
    """A vision transformer's: one reshape for queries, keys, values and heads; no mask."""

    def __init__(self, dim=16, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim**-0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=True)
        self.attn_drop = nn.Dropout(0.0)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q = q * self.scale
        attn = q @ k.transpose(-2, -1)
        attn = attn.softmax(dim=-1)
        attn = self.attn_drop(attn)
        x = attn @ v
        x = x.transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class Bert(nn.Module):
    """An additive mask, no output matrix."""

    def __init__(self, hidden_size=16, num_attention_heads=4):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)

    def transpose_for_scores(self, x):
        x = x.view(x.size()[:-1] + (self.num_attention_heads, self.attention_head_size))
        return x.permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None):
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))
        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            attention_scores = attention_scores + attention_mask
        attention_probs = nn.functional.softmax(attention_scores, dim=-1)
        context_layer = torch.matmul(attention_probs, value_layer)
        context_layer = context_layer.permute(0, 2, 1, 3).contiguous()
        return context_layer.view(context_layer.size()[:-2] + (-1,))


class TransformerLens(nn.Module):
    """A parameter of (H, D, K) for the queries of all heads, and (H, K, D) for the output."""

    def __init__(self, n_heads=4, d_model=16, d_head=4):
        super().__init__()
        self.d_head = d_head
        self.W_Q = nn.Parameter(torch.randn(n_heads, d_model, d_head) / 4)
        self.W_K = nn.Parameter(torch.randn(n_heads, d_model, d_head) / 4)
        self.W_V = nn.Parameter(torch.randn(n_heads, d_model, d_head) / 4)
        self.W_O = nn.Parameter(torch.randn(n_heads, d_head, d_model) / 4)
        self.b_Q = nn.Parameter(torch.zeros(n_heads, d_head))
        self.b_K = nn.Parameter(torch.zeros(n_heads, d_head))
        self.b_V = nn.Parameter(torch.zeros(n_heads, d_head))
        self.b_O = nn.Parameter(torch.zeros(d_model))
        self.register_buffer("IGNORE", torch.tensor(-1e5))

    def forward(self, x):
        q = torch.einsum("bpd,hde->bphe", x, self.W_Q) + self.b_Q
        k = torch.einsum("bpd,hde->bphe", x, self.W_K) + self.b_K
        v = torch.einsum("bpd,hde->bphe", x, self.W_V) + self.b_V
        scores = torch.einsum("bqhe,bkhe->bhqk", q, k) / self.d_head**0.5
        mask = torch.triu(torch.ones(scores.size(-2), scores.size(-1)), diagonal=1).bool()
        scores = scores.masked_fill(mask, self.IGNORE)
        pattern = scores.softmax(-1)
        z = torch.einsum("bkhe,bhqk->bqhe", v, pattern)
        return torch.einsum("bqhe,hed->bqd", z, self.W_O) + self.b_O


class Fairseq(nn.Module):
    """Scales the queries, moves the heads into the batch; a padding mask of (B, T) beside the causal one."""

    def __init__(self, embed_dim=16, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def shape(self, x):
        bsz, tgt_len, _ = x.shape
        x = x.view(bsz, tgt_len, self.num_heads, self.head_dim).transpose(1, 2)
        return x.reshape(bsz * self.num_heads, tgt_len, self.head_dim)

    def forward(self, x, mask=None):
        bsz, tgt_len, embed_dim = x.shape
        q = self.shape(self.q_proj(x) * self.scaling)
        k = self.shape(self.k_proj(x))
        v = self.shape(self.v_proj(x))
        scores = torch.bmm(q, k.transpose(1, 2))
        scores = scores.view(bsz, self.num_heads, tgt_len, tgt_len)
        scores = scores + torch.full((tgt_len, tgt_len), float("-inf")).triu(1)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], -1e9)
        scores = scores.view(bsz * self.num_heads, tgt_len, tgt_len)
        output = torch.bmm(F.softmax(scores, dim=-1), v)
        output = output.view(bsz, self.num_heads, tgt_len, self.head_dim).transpose(1, 2)
        return self.out_proj(output.reshape(bsz, tgt_len, embed_dim))


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

    def __init__(self, d_k=4):
        super().__init__()
        self.temperature = d_k**0.5
        self.dropout = nn.Dropout(0.1)

    def forward(self, q, k, v, mask=None):
        attn = torch.matmul(q / self.temperature, k.transpose(2, 3))
        if mask is not None:
            attn = attn.masked_fill(mask == 0, -1e9)
        attn = self.dropout(F.softmax(attn, dim=-1))
        return torch.matmul(attn, v), attn


class GroupedQuery(nn.Module):
    """Two heads of keys and values for four of queries."""

    def __init__(self, dim=16, n_heads=4, n_kv_heads=2):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, T, _ = x.shape
        xq = self.wq(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        xk = self.wk(x).view(B, T, self.n_kv_heads, self.head_dim).transpose(1, 2)
        xv = self.wv(x).view(B, T, self.n_kv_heads, self.head_dim).transpose(1, 2)
        xk = torch.repeat_interleave(xk, self.n_heads // self.n_kv_heads, dim=1)
        xv = torch.repeat_interleave(xv, self.n_heads // self.n_kv_heads, dim=1)
        scores = xq @ xk.transpose(2, 3) / math.sqrt(self.head_dim)
        scores = scores + torch.full((T, T), float("-inf")).triu(diagonal=1)
        output = scores.softmax(dim=-1) @ xv
        return self.wo(output.transpose(1, 2).reshape(B, T, -1))


class ParameterHeads(nn.Module):
    """Parameters of each head, as rows: W @ x of each token."""

    def __init__(self):
        super().__init__()
        self.Wq = nn.ParameterList([nn.Parameter(torch.randn(4, 16) / 4) for _ in range(4)])
        self.Wk = nn.ParameterList([nn.Parameter(torch.randn(4, 16) / 4) for _ in range(4)])
        self.Wv = nn.ParameterList([nn.Parameter(torch.randn(4, 16) / 4) for _ in range(4)])
        self.Wo = nn.Parameter(torch.randn(16, 16) / 4)

    def forward(self, x, mask=None):
        outputs = []
        for Wq, Wk, Wv in zip(self.Wq, self.Wk, self.Wv):
            q, k, v = x @ Wq.T, x @ Wk.T, x @ Wv.T
            scores = q @ k.transpose(-1, -2) / Wk.shape[0] ** 0.5
            if mask is not None:
                scores = scores.masked_fill(mask == 0, float("-inf"))
            outputs.append(scores.softmax(-1) @ v)
        return torch.cat(outputs, dim=-1) @ self.Wo.T


def step_by_step(q, k, v, mask=None):
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    weights = F.softmax(scores, dim=-1)
    return torch.matmul(weights, v)


def by_exponentials(q, k, v, mask=None):
    scores = torch.einsum("...td,...sd->...ts", q, k) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = torch.where(mask, scores, -1e30)
    scores = scores - scores.amax(dim=-1, keepdim=True)
    weights = scores.exp()
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return torch.einsum("...ts,...sd->...td", weights, v)


def with_float_mask(query, key, value, mask=None):
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + mask
    return scores.softmax(-1) @ value


def without_mask(q, k, v):
    weights = (q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])).softmax(dim=-1)
    return weights @ v


def always_causal(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(dim=-1) @ v


class Replaced(CausalSelfAttention):
    """This project's layer with another `attend`."""

    def __init__(self):
        super().__init__(16, 4, num_kv_heads=2)

    def attend(self, q, k, v, mask=None):
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        T, S = q.shape[-2], k.shape[-2]
        if mask is None:
            mask = torch.ones(T, S, dtype=torch.bool).tril(S - T)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v


class Rewritten(CausalSelfAttention):
    """This project's layer with another `forward`."""

    def __init__(self):
        super().__init__(16, 4)

    def forward(self, x, mask=None):
        q, k, v = split_heads(self.qkv_proj(x), 12).chunk(3, dim=1)
        return self.output_proj(merge_heads(self.attend(q, k, v, mask)))
