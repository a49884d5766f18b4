"""Attention for any widths: the formula step by step, and a layer for self- and cross-attention.

    weights = softmax(query @ key^T * scale)        values = weights @ value

Vaswani et al. 2017, "Attention Is All You Need", https://arxiv.org/abs/1706.03762, section 3.2. The GPT does not use
this layer but its own, in model/attention.py.

Shapes: B batch, T query length, S key length, H heads, K head width, Kv width of the values.
A mask is boolean; True means *may attend*. A query that may attend to nothing gets zeros.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import fused_attention, merge_heads, split_heads
from model.masks import causal_mask, check_mask, fill_empty_rows


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """softmax(query @ key^T * scale) @ value, and on request the weights.

    With `need_weights` the formula is computed step by step. Without, PyTorch's fused kernel computes it and never
    holds the T x S weights in memory. Both give the same values and gradients.

    Args:
        query, key, value: (..., T, K), (..., S, K), (..., S, Kv); leading dimensions broadcast.
        mask: boolean, broadcastable to (..., T, S).
        is_causal: also hide the future, as `causal_mask(T, S)` does: the last query sees the last key.
            (PyTorch's own flag aligns the first query with the first key instead.)
        dropout_p: probability that a weight is dropped; the others are divided by 1 - dropout_p.
        scale: 1 / sqrt(K) if None.
        need_weights: also return the weights, after dropout.

    Returns:
        values (..., T, Kv), and the weights (..., T, S) or None.

    Raises:
        TypeError: if the tensors are not floats, or the mask is not boolean.
        RuntimeError: if the mask does not broadcast to the weights.
    """
    if not query.is_floating_point():
        raise TypeError(f"attention needs floats, not {query.dtype}")
    T, S, K = query.shape[-2], key.shape[-2], query.shape[-1]
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    if mask is not None:
        check_mask(mask, (*leading, T, S))
    if is_causal and (need_weights or mask is not None or T != S):
        causal = causal_mask(T, S, device=query.device)
        mask = causal if mask is None else mask & causal
        is_causal = False  # PyTorch's own flag is left for T == S: it aligns the first query with the first key
    empty = None
    if mask is not None:
        mask, empty = fill_empty_rows(torch.atleast_2d(mask))
    if scale is not None:
        query = query * (scale * K**0.5)  # below, scores are divided by sqrt(K)
    if not need_weights:  # PyTorch's kernels do not broadcast all shapes
        query, key, value = (x.expand(*leading, *x.shape[-2:]) for x in (query, key, value))
        values = fused_attention(query, key, value, mask, is_causal=is_causal, dropout_p=dropout_p)
        return values if empty is None else values.masked_fill(empty, 0.0), None

    # At least float32: near 100, scores in bfloat16 are 0.5 apart, so rounding one could change a weight by a quarter.
    dtype = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        scores = (query.to(dtype) / K**0.5) @ key.to(dtype).mT  # (..., T, S)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(dim=-1)
    if empty is not None:
        weights = weights.masked_fill(empty, 0.0)
    weights = F.dropout(weights, dropout_p).to(query.dtype)
    return weights @ value, weights


class MultiHeadAttention(nn.Module):
    """H attention heads of width K, concatenated and projected (section 3.2.2); for self- and cross-attention.

    By default the heads share the model width, K = query_dim / H. With `head_dim` they have any width.

    Args:
        query_dim: width of the queries.
        num_heads: H.
        key_dim: width of the keys; query_dim if None.
        value_dim: width of the values; key_dim if None.
        head_dim: K; query_dim / num_heads if None.
        output_dim: width of the output; query_dim if None.
        qkv_bias, output_bias: whether the query, key and value projections, and the output projection, have a bias.
        dropout: probability that a weight is dropped, in training mode only.

    Raises:
        ValueError: if head_dim is None and num_heads does not divide query_dim.
    """

    def __init__(
        self,
        query_dim: int,
        num_heads: int,
        *,
        key_dim: int | None = None,
        value_dim: int | None = None,
        head_dim: int | None = None,
        output_dim: int | None = None,
        qkv_bias: bool = False,
        output_bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        key_dim = query_dim if key_dim is None else key_dim
        value_dim = key_dim if value_dim is None else value_dim
        output_dim = query_dim if output_dim is None else output_dim
        if head_dim is None:
            head_dim, rest = divmod(query_dim, num_heads)
            if rest:
                raise ValueError(f"num_heads={num_heads} does not divide query_dim={query_dim}: give a head_dim")
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.dropout = dropout
        inner_dim = num_heads * head_dim
        self.query_proj = nn.Linear(query_dim, inner_dim, bias=qkv_bias)
        self.key_proj = nn.Linear(key_dim, inner_dim, bias=qkv_bias)
        self.value_proj = nn.Linear(value_dim, inner_dim, bias=qkv_bias)
        self.output_proj = nn.Linear(inner_dim, output_dim, bias=output_bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        is_causal: bool = False,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of `query` over `key` and `value`; over `query` itself if only that is given.

        Args:
            query: (B, T, query_dim).
            key: (B, S, key_dim); `query` if None.
            value: (B, S, value_dim); `key` if None.
            mask: boolean, (T, S) or with 4 axes that broadcast to (B, H, T, S), as from `model.masks`.
            is_causal, need_weights: as in `scaled_dot_product_attention`.

        Returns:
            output (B, T, output_dim), and the weights (B, H, T, S) or None.

        Raises:
            TypeError: if the mask is not boolean.
            ValueError: if the mask has neither 2 nor 4 axes.
        """
        key = query if key is None else key
        value = key if value is None else value
        q = split_heads(self.query_proj(query), self.num_heads)
        k = split_heads(self.key_proj(key), self.num_heads)
        v = split_heads(self.value_proj(value), self.num_heads)
        if mask is not None and mask.ndim not in (2, q.ndim):
            # A mask (B, T, S) would broadcast as if it were (H, T, S), without an error if B == H.
            raise ValueError(f"mask must have 2 axes (T, S) or {q.ndim} (B or 1, H or 1, T, S), not {mask.ndim}")
        dropout_p = self.dropout if self.training else 0.0
        values, weights = scaled_dot_product_attention(
            q, k, v, mask, is_causal=is_causal, dropout_p=dropout_p, need_weights=need_weights
        )
        return self.output_proj(merge_heads(values)), weights
