"""Attention: every query takes a weighted mean of the values, and the weights say where it looked.

    weights = softmax(query @ key^T * scale)        values = weights @ value

Vaswani et al. 2017, "Attention Is All You Need", https://arxiv.org/abs/1706.03762, section 3.2.

Three forms:
    scaled_dot_product_attention   the formula, for tensors
    MultiHeadAttention             the general layer: any widths, self- or cross-attention, weights on request
    CausalSelfAttention            the layer of the GPT: one product for q, k and v, rotary, grouped heads, cache;
                                   training uses this one only

Shapes: B batch, T query length, S key length, D model width, H heads, K head width.
A mask is boolean; True means *may attend*. A query that may attend to nothing gets zeros.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.cache import LayerCache
from model.kernels import Linear, fused_attention, rms_norm
from model.masks import causal_mask, sliding_window_mask
from model.rotary import apply_rotary


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
    mask, empty = (None, None) if mask is None else _fill_empty_rows(torch.atleast_2d(mask))
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


def _fill_empty_rows(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Unmasks the rows of queries that may attend to nothing, and returns which they are, (..., T, 1).

    A softmax over nothing is 0 / 0, and kernels differ in what they return. Computed on something and then zeroed,
    values and gradients are 0 and never NaN.
    """
    empty = ~mask.any(dim=-1, keepdim=True)
    return mask | empty, empty


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
        q = _split_heads(self.query_proj(query), self.num_heads)
        k = _split_heads(self.key_proj(key), self.num_heads)
        v = _split_heads(self.value_proj(value), self.num_heads)
        if mask is not None and mask.ndim not in (2, q.ndim):
            # A mask with three axes would broadcast as (H, T, S), silently if B == H.
            raise ValueError(f"mask must have 2 axes (T, S) or {q.ndim} (B or 1, H or 1, T, S), not {mask.ndim}")
        dropout_p = self.dropout if self.training else 0.0
        values, weights = scaled_dot_product_attention(
            q, k, v, mask, is_causal=is_causal, dropout_p=dropout_p, need_weights=need_weights
        )
        return self.output_proj(_merge_heads(values)), weights


class CausalSelfAttention(nn.Module):
    """The attention of the GPT: each token attends to itself and to those before it.

    The options are those of GPTConfig, which checks them.

    With H_kv key and value heads, fewer than the H query heads, each serves H / H_kv neighbouring ones (grouped-query
    attention). qk_norm gives queries and keys a root mean square of 1 before they meet, which bounds the scores.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        bias: bool = False,
        qk_norm: bool = False,
        window: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = embed_dim // num_heads
        self.qk_norm = qk_norm
        self.window = window
        self.dropout = dropout
        self.qkv_proj = Linear(embed_dim, (num_heads + 2 * num_kv_heads) * self.head_dim, bias=bias)
        self.output_proj = Linear(embed_dim, embed_dim, bias=bias)

    def forward(
        self,
        x: Tensor,
        *,
        rotary: tuple[Tensor, Tensor] | None = None,
        mask: Tensor | None = None,
        cache: LayerCache | None = None,
        value_embedding: Tensor | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D).

        Args:
            x: the tokens; with a cache, those that follow the cached ones.
            rotary: (cos, sin) of `rotary_angles`, each (T, K), for the positions of x.
            mask: boolean, (B or 1, 1, T, S), where S is T plus the cached length. Causality and the window are added
                here, so this may be a bare `document_mask` or `padding_mask`.
            cache: this layer's part of a KVCache, to which x is appended.
            value_embedding: (B, T, H_kv * K), added to the values.

        Raises:
            TypeError, ValueError: for a mask that is not boolean or does not fit; ValueError for a full cache.
        """
        q, k, v = self.project(x, rotary, value_embedding)
        if cache is not None:
            k, v = cache.append(k, v)
        T, S = q.shape[-2], k.shape[-2]
        if self.window is not None and self.window + T - 1 < S:  # what lies before is in no query's window
            S = self.window + T - 1
            k, v = k[..., -S:, :], v[..., -S:, :]
        visible, empty = None, None
        if mask is not None or (self.window is not None and self.window < S):
            visible = sliding_window_mask(T, self.window, S, device=q.device)
        if mask is not None:
            mask = mask[..., -S:] if cache is not None else mask
            _check_mask(mask, (*q.shape[:-1], S))
            visible, empty = _fill_empty_rows(mask & visible)
        values = self.attend(q, k, v, visible)
        values = values if empty is None else values.masked_fill(empty, 0.0)
        return self.output_proj(_merge_heads(values))

    def project(
        self, x: Tensor, rotary: tuple[Tensor, Tensor] | None = None, value_embedding: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The queries (B, H, T, K), keys and values (B, H_kv, T, K) of x, as `attend` takes them."""
        heads = _split_heads(self.qkv_proj(x), self.num_heads + 2 * self.num_kv_heads)
        qk, v = heads.split_with_sizes((self.num_heads + self.num_kv_heads, self.num_kv_heads), dim=-3)
        if value_embedding is not None:
            v = v + _split_heads(value_embedding, self.num_kv_heads)
        if self.qk_norm:
            qk = rms_norm(qk).to(v.dtype)  # on GPUs autocast makes norms return float32
        if rotary is not None:
            qk = apply_rotary(qk, *rotary)
        q, k = qk.split_with_sizes((self.num_heads, self.num_kv_heads), dim=-3)
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention of q (B, H, T, K) over k and v (B, H_kv, S, K) -> (B, H, T, K). Replace this to try another one.

        Every path comes through here: training, generation with any cache, and the recorder of attention maps.

        Args:
            mask: boolean, broadcastable to (B, H, T, S), all that a query may attend to; no row of it is empty. None
                means `causal_mask(T, S)`: the last query sees the last key, and with a cache T < S.
        """
        T, S = q.shape[-2], k.shape[-2]
        is_causal = mask is None and T == S  # PyTorch's flag lets the first query see the first key
        if mask is None and 1 < T < S:
            mask = causal_mask(T, S, device=q.device)
        dropout_p = self.dropout if self.training else 0.0
        grouped = self.num_kv_heads != self.num_heads
        return fused_attention(q, k, v, mask, is_causal=is_causal, dropout_p=dropout_p, enable_gqa=grouped)


def _split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(..., T, H * K) -> (..., H, T, K)"""
    return x.unflatten(-1, (num_heads, -1)).transpose(-3, -2)


def _merge_heads(x: Tensor) -> Tensor:
    """(..., H, T, K) -> (..., T, H * K)"""
    # Without the transpose this would mix positions, and so carry the future into the past.
    return x.transpose(-3, -2).flatten(-2)


def _check_mask(mask: Tensor, shape: tuple[int, ...]) -> None:
    """Refuses a mask that cannot say which of `shape` (..., T, S) scores count.

    Raises:
        TypeError: if it is not boolean.
        ValueError: if it does not broadcast to `shape`.
    """
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean (True = may attend), not {mask.dtype}")
    padded = (1,) * (len(shape) - mask.ndim) + tuple(mask.shape)
    if len(padded) > len(shape) or any(m not in (1, n) for m, n in zip(padded, shape, strict=True)):
        raise ValueError(f"mask has shape {tuple(mask.shape)}, which does not broadcast to (..., T, S) = {shape}")


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
        _check_mask(mask, (*leading, query.shape[-2], key.shape[-2]))
    return leading
