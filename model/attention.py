"""The attention of the GPT: each query gets a weighted mean of the values; the weights show where it looks.

    weights = softmax(query @ key^T / sqrt(K))        values = weights @ value

Vaswani et al. 2017, "Attention Is All You Need", https://arxiv.org/abs/1706.03762, section 3.2.

This file holds the layer that training and generation run, and the fused kernel that the layer calls.
model/multihead.py computes the formula step by step, and has a layer for any widths.

Shapes: B batch, T query length, S key length, D model width, H heads, H_kv key and value heads, K head width.
A mask is boolean; True means *may attend*. A query that may attend to nothing gets zeros.
"""

from collections.abc import Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.cache import append_to_layer
from model.kernels import MAX_SHORT_LENGTH, rms_norm, short_causal_attention
from model.masks import causal_mask, check_mask, fill_empty_rows, sliding_window_mask
from model.rotary import apply_rotary


class CausalSelfAttention(nn.Module):
    """The attention of the GPT: each token attends to itself and to earlier tokens.

    `GPTConfig` explains and checks the options.

    With H_kv < H, each key and value head serves H / H_kv neighbouring query heads (grouped-query attention). qk_norm
    scales queries and keys to a root mean square of 1 before their dot product, which bounds the scores.
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
        qkv_dim = (num_heads + 2 * num_kv_heads) * self.head_dim
        self.qkv_proj = nn.Linear(embed_dim, qkv_dim, bias=bias)
        self.output_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(
        self,
        x: Tensor,
        *,
        rotary: Iterable[Tensor] | None = None,
        mask: Tensor | None = None,
        cache: Tensor | None = None,
        value_embedding: Tensor | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D).

        Args:
            x: features of T tokens, which follow the cached tokens if there is a cache.
            rotary: cosines and sines from `rotary_angles`, each (T, K), for the positions of x.
            mask: boolean, (B or 1, 1, T, T). Causality and the window are added here, so a `document_mask` or
                `padding_mask` alone is enough.
            cache: this layer's slice of a KVCache, to which the keys and values of x are appended. Needs mask=None.
            value_embedding: (B, T, H_kv * K), added to the values.

        Raises:
            TypeError: if the mask is not boolean.
            RuntimeError: if the mask does not broadcast to the scores.
        """
        q, k, v = self.project(x, rotary, value_embedding)
        if cache is not None:
            k, v = append_to_layer(cache, k, v)
        T, S = q.shape[-2], k.shape[-2]
        if self.window is not None and self.window + T - 1 < S:  # drop the keys that are in no query's window
            S = self.window + T - 1
            k = k[..., -S:, :]
            v = v[..., -S:, :]
        visible = None
        empty = None
        if mask is not None or (self.window is not None and self.window < S):
            visible = sliding_window_mask(T, self.window, S, device=q.device)
        if mask is not None:
            check_mask(mask, (*q.shape[:-1], S))
            visible, empty = fill_empty_rows(mask & visible)
        attended = self.attend(q, k, v, visible)
        attended = attended if empty is None else attended.masked_fill(empty, 0.0)
        return self.output_proj(merge_heads(attended))

    def project(
        self,
        x: Tensor,
        rotary: Iterable[Tensor] | None = None,
        value_embedding: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the queries (B, H, T, K), keys and values (B, H_kv, T, K) of x, ready for `attend`."""
        num_qk_heads = self.num_heads + self.num_kv_heads
        heads = split_heads(self.qkv_proj(x), num_qk_heads + self.num_kv_heads)
        qk, v = heads.split_with_sizes((num_qk_heads, self.num_kv_heads), dim=-3)
        if value_embedding is not None:
            v = v + split_heads(value_embedding, self.num_kv_heads)
        if self.qk_norm:
            qk = rms_norm(qk).to(v.dtype)  # on GPUs autocast makes norms return float32
        if rotary is not None:
            qk = apply_rotary(qk, *rotary)
        q, k = qk.split_with_sizes((self.num_heads, self.num_kv_heads), dim=-3)
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """q (B, H, T, K), k and v (B, H_kv, S, K) -> (B, H, T, K). Replace this function to try another attention.

        Training, generation with a cache, and the recording of attention maps all call it, and each layer calls it once
        in a pass; if one does not, write --recording.enabled false. What needs the layer's input, such as a gate, goes
        into `forward`; a bias of the scores, such as ALiBi's, goes here: `fused_attention` adds a mask of floats, with
        -inf where a query may not attend, and then takes no is_causal. Muon trains an nn.Linear that you add, AdamW a
        bare nn.Parameter, at model.optimizer.vector_learning_rate. A run's page shows the maps of any attention, but
        runs the model on typed text only with this one.

        Args:
            mask: boolean, broadcastable to (B, H, T, S), True wherever a query may attend; every query sees at least
                one key. None means `causal_mask(T, S)`: the last query sees the last key, even if T < S as with a
                cache. Query t is S - T + t - s positions after key s.
        """
        T, S = q.shape[-2], k.shape[-2]
        is_causal = mask is None and T == S  # with T < S PyTorch's flag would align the first query and the first key
        if mask is None and 1 < T < S:
            mask = causal_mask(T, S, device=q.device)
        return fused_attention(
            q,
            k,
            v,
            mask,
            is_causal=is_causal,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=self.num_kv_heads != self.num_heads,
        )


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
) -> Tensor:
    """Does what `torch.nn.functional.scaled_dot_product_attention` does, faster for bfloat16 on CPUs."""
    attend = partial(F.scaled_dot_product_attention, is_causal=is_causal, dropout_p=dropout_p, enable_gqa=enable_gqa)
    if not q.is_cpu or q.dtype != torch.bfloat16:
        return attend(q, k, v, mask)
    is_plain = is_causal and not dropout_p and q.shape == k.shape == v.shape
    if is_plain and 1 < q.shape[-2] <= MAX_SHORT_LENGTH:
        return short_causal_attention(q, k, v)
    if mask is not None and mask.is_floating_point():
        mask = mask.float()  # the kernel needs one dtype
    # On CPUs PyTorch's kernel is no faster in bfloat16 than in float32, and its backward pass takes twice as long.
    with torch.autocast("cpu", enabled=False):
        return attend(q.float(), k.float(), v.float(), mask).bfloat16()


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(..., T, H * K) -> (..., H, T, K)"""
    return x.unflatten(-1, (num_heads, -1)).transpose(-3, -2)


def merge_heads(x: Tensor) -> Tensor:
    """(..., H, T, K) -> (..., T, H * K)"""
    # Flattened without the transpose, heads and positions would mix, and the future would leak into the past.
    return x.transpose(-3, -2).flatten(-2)
