"""Caches the keys and values of earlier tokens, so that a new token costs one position instead of all of them.

Shapes: L layers, B batch, H_kv key and value heads, T new tokens, S tokens in the cache after they are appended,
M tokens that fit (max_len), K head width.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from model.rotary import rotary_angles


class KVCache:
    """Holds the tokens of a batch of texts, and their keys and values in every layer of a model.

    A forward pass first appends its T new tokens here. Then each layer writes the keys and values of these tokens into
    its own slice. No gradient flows through cached keys and values.

    Args:
        num_layers, batch_size, num_kv_heads, max_len, head_dim: sizes, each at least 1.
        device, dtype: of the keys and values; PyTorch's defaults if None.

    Attributes:
        length: number of tokens in the cache. Set it to 0 to empty the cache.
        tokens: ids (B, M); the first `length` are valid.
        keys, values: (L, B, H_kv, M, K).
    """

    def __init__(
        self,
        num_layers: int,
        batch_size: int,
        num_kv_heads: int,
        max_len: int,
        head_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shape = (num_layers, batch_size, num_kv_heads, max_len, head_dim)
        self.max_len = max_len
        self.length = 0
        self.tokens = torch.empty((batch_size, max_len), device=device, dtype=torch.long)
        self.keys, self.values = torch.empty((2, *shape), device=device, dtype=dtype)

    def append(self, tokens: Tensor) -> list[LayerCache]:
        """Appends the ids (B, T) of new tokens. Returns each layer's slice, into which it writes their keys and values.

        Raises:
            ValueError: if the tokens do not fit; the cache is unchanged then.
        """
        start, end = self.length, self.length + tokens.shape[1]
        if end > self.max_len:
            raise ValueError(
                f"the cache is full: {start} of {self.max_len} positions are taken, so {end - start} more do not fit"
            )
        self.tokens[:, start:end] = tokens
        self.length = end
        # Slices all layers at once: slicing layer by layer takes longer than copying the keys and values.
        keys = self.keys[..., :end, :]
        values = self.values[..., :end, :]
        views = (keys, values, keys[..., start:, :], values[..., start:, :])
        return [LayerCache(*layer) for layer in zip(*(view.unbind() for view in views), strict=True)]

    @cached_property
    def rotary_angles(self) -> tuple[Tensor, Tensor]:
        """(cos, sin) from `model.rotary.rotary_angles` for all M positions, each (M, K)."""
        return rotary_angles(torch.arange(self.max_len, device=self.keys.device), self.keys.shape[-1])


class LayerCache(NamedTuple):
    """One layer's slice of a cache: views of all S keys and values, and of the last T, into which `append` writes."""

    keys: Tensor
    values: Tensor
    new_keys: Tensor
    new_values: Tensor

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Writes the keys and values (B, H_kv, T, K) of the new tokens; returns all, (B, H_kv, S, K).

        All have the type of the new ones: under autocast it is not the cache's, and attention needs the queries' type.
        """
        self.new_keys.copy_(k.detach())
        self.new_values.copy_(v.detach())
        return self.keys.to(k.dtype), self.values.to(v.dtype)
