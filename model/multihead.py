"""Attention for any widths: the formula, step by step, and the general layer, for self- and cross-attention.

    weights = softmax(query @ key^T * scale)        values = weights @ value

Vaswani et al. 2017, "Attention Is All You Need", https://arxiv.org/abs/1706.03762, section 3.2. The GPT has a layer of
its own, in model/attention.py.

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
    """softmax(query @ key^T * scale) @ value, with or without the weights.

    With `need_weights` the formula is computed step by step; without, by PyTorch's fused kernel, which never
    holds the T x S weights in memory. Both give the same values and gradients.

    Args:
        query, key, value: (..., T, K), (..., S, K), (..., S, Kv); leading dimensions broadcast.
        mask: boolean, broadcastable to (..., T, S).
        is_causal: also hides the future, as `causal_mask(T, S)` does: the last query sees the last key.
            (PyTorch's own flag aligns the first query with the first key instead.)
        dropout_p: probability that a weight is dropped; those kept are divided by 1 - dropout_p.
        scale: 1 / sqrt(K) if None.
        need_weights: return the weights that made the values (after dropout).

    Returns:
        values (..., T, Kv) and the weights (..., T, S), or None in their place.

    Raises:
        TypeError: if the tensors are not floating-point of one type (autocast may mix them), or the mask not boolean.
        ValueError: if the shapes do not fit together, or dropout_p is not in [0, 1).
    """
    leading = _check_inputs(query, key, value, mask)
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p must be at least 0 and below 1, not {dropout_p}")
    T, S = query.shape[-2], key.shape[-2]
    # PyTorch's own flag gives NaN for a scale of 0 or less.
    if is_causal and (need_weights or mask is not None or T != S or (scale is not None and scale <= 0)):
        causal = causal_mask(T, S, device=query.device)
        mask, is_causal = (causal if mask is None else mask & causal), False
    mask, empty = (None, None) if mask is None else fill_empty_rows(torch.atleast_2d(mask))
    if not need_weights:
        # PyTorch's kernels broadcast some shapes only.
        query, key, value = (x.expand(*leading, *x.shape[-2:]) for x in (query, key, value))
        values = fused_attention(query, key, value, mask, is_causal=is_causal, dropout_p=dropout_p, scale=scale)
        return values if empty is None else values.masked_fill(empty, 0.0), None

    # float32 at least: in bfloat16 a score near 100 is known to within 0.5, which would change a weight by half.
    dtype = torch.promote_types(query.dtype, torch.float32)
    scale = max(1, query.shape[-1]) ** -0.5 if scale is None else scale  # with a width of 0 all scores are 0
    with torch.autocast(query.device.type, enabled=False):
        scores = (query.to(dtype) * scale) @ key.to(dtype).mT  # (..., T, S)
    if mask is None:
        weights = scores.softmax(dim=-1)
    else:
        weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1).masked_fill(empty, 0.0)
    weights = F.dropout(weights, dropout_p).to(query.dtype)
    return weights @ value, weights


class MultiHeadAttention(nn.Module):
    """H attention heads of width K, concatenated and projected (section 3.2.2); self- or cross-attention.

    The heads split the model width (K = D / H, the default) or have any width, `head_dim`.

    Args:
        query_dim: width of the queries.
        num_heads: H.
        key_dim, value_dim: widths of the keys and the values; query_dim, and then key_dim, if None.
        head_dim: K; query_dim / num_heads if None.
        output_dim: width of the output; query_dim if None.
        qkv_bias, output_bias: whether those projections have a bias.
        dropout: probability that a weight is dropped, in training mode only.

    Raises:
        ValueError: for a width below 1, a dropout not in [0, 1), or, without head_dim, a query_dim not divided by H.
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
        if head_dim is None and num_heads and query_dim % num_heads:
            raise ValueError(f"num_heads={num_heads} does not divide query_dim={query_dim}: give a head_dim")
        head_dim = query_dim // max(1, num_heads) if head_dim is None else head_dim
        sizes = {"num_heads": num_heads, "query_dim": query_dim, "key_dim": key_dim, "value_dim": value_dim}
        for name, size in (sizes | {"head_dim": head_dim, "output_dim": output_dim}).items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, not {size}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, not {dropout}")
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
        """Self-attention if only `query` is given; `value` is `key` if None.

        Args:
            query, key, value: (B, T, query_dim), (B, S, key_dim), (B, S, value_dim).
            mask: boolean, (T, S), or 4 axes broadcastable to (B, H, T, S), as `model.masks` makes them.
            is_causal, need_weights: as in `scaled_dot_product_attention`.

        Returns:
            output (B, T, output_dim) and the weights (B, H, T, S), or None in their place.

        Raises:
            TypeError: if the mask is not boolean.
            ValueError: if the shapes do not fit together or with the layer.
        """
        key = query if key is None else key
        value = key if value is None else value
        for name, x in (("query", query), ("key", key), ("value", value)):
            width = getattr(self, f"{name}_proj").in_features
            if x.shape[-1] != width:
                raise ValueError(f"{name} has width {x.shape[-1]}, but this layer was built for {name}_dim={width}")
        q = split_heads(self.query_proj(query), self.num_heads)
        k = split_heads(self.key_proj(key), self.num_heads)
        v = split_heads(self.value_proj(value), self.num_heads)
        if mask is not None and mask.ndim not in (2, q.ndim):
            # A mask with three axes would broadcast as (H, T, S), silently if B == H.
            raise ValueError(f"mask must have 2 axes (T, S) or {q.ndim} (B or 1, H or 1, T, S), not {mask.ndim}")
        dropout_p = self.dropout if self.training else 0.0
        values, weights = scaled_dot_product_attention(
            q, k, v, mask, is_causal=is_causal, dropout_p=dropout_p, need_weights=need_weights
        )
        return self.output_proj(merge_heads(values)), weights


def _check_inputs(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> torch.Size:
    """The leading dimensions that the tensors have together. Refuses what `scaled_dot_product_attention` cannot take.

    Raises:
        TypeError: if they are not floating-point of one type, unless autocast makes them so.
        ValueError: if their shapes do not fit together.
    """
    mixed = not query.dtype == key.dtype == value.dtype and not torch.is_autocast_enabled(query.device.type)
    if mixed or not all(x.is_floating_point() for x in (query, key, value)):
        raise TypeError(f"attention needs floats of one type, not {query.dtype}, {key.dtype} and {value.dtype}")
    shapes = [tuple(x.shape) for x in (query, key, value)]
    if min(map(len, shapes)) < 2:
        raise ValueError(f"query, key and value need 2 axes or more, not the shapes {shapes}")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query has width {query.shape[-1]}, but key has width {key.shape[-1]}")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"there are {key.shape[-2]} keys, but {value.shape[-2]} values")
    try:
        leading = torch.broadcast_shapes(*(shape[:-2] for shape in shapes))
    except RuntimeError:
        raise ValueError(f"the leading dimensions of query, key and value do not broadcast: {shapes}") from None
    if mask is not None:
        check_mask(mask, (*leading, query.shape[-2], key.shape[-2]))
    return leading
