"""Keys and values of the tokens seen so far, so that a new token costs one position instead of all of them.

Shapes: B batch, T new tokens, S tokens cached after them, K head width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class KVCache:
    """Preallocated keys and values for every layer of a model.

    Each forward pass appends its T new positions layer by layer, first to last; all layers write at the same
    place, `length`, which moves on when the last one has written. No gradient flows through what is cached.

    Args:
        num_layers, batch_size, num_kv_heads, max_len, head_dim: the sizes; all at least 1.
        device, dtype: of the keys and values; PyTorch's defaults if None.

    Raises:
        ValueError: for a size below 1.
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
        if min(shape) < 1:
            raise ValueError(
                f"every size of a cache must be at least 1, not (layers, batch, heads, length, width) = {shape}"
            )
        self.max_len = max_len
        self.length = 0
        self.tokens = torch.empty((batch_size, max_len), device=device, dtype=torch.long)
        self.keys = torch.empty(shape, device=device, dtype=dtype)
        self.values = torch.empty(shape, device=device, dtype=dtype)

    def append_tokens(self, tokens: Tensor) -> Tensor:
        """Stores the ids (B, T) of new tokens, before their keys and values come; returns all ids (B, S), as a view.

        Raises:
            ValueError: if they do not fit; nothing is stored then.
        """
        end = self._end(tokens.shape[1])
        self.tokens[:, self.length : end] = tokens
        return self.tokens[:, :end]

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores the k and v (B, H_kv, T, K) of new tokens; returns all of that layer's, (B, H_kv, S, K), as views.

        Raises:
            ValueError: if they do not fit, in length or in another size; nothing is stored then.
        """
        end = self._end(k.shape[-2])
        keys, values = self.keys[layer, :, :, :end], self.values[layer, :, :, :end]
        new_keys, new_values = keys[:, :, self.length :], values[:, :, self.length :]
        if not new_keys.shape == k.shape == v.shape:
            raise ValueError(
                f"the cache takes keys and values of shape {tuple(new_keys.shape)}, "
                f"not {tuple(k.shape)} and {tuple(v.shape)}"
            )
        new_keys.copy_(k.detach())
        new_values.copy_(v.detach())
        if layer == len(self.keys) - 1:
            self.length = end
        return keys, values

    def _end(self, new: int) -> int:
        end = self.length + new
        if end > self.max_len:
            raise ValueError(
                f"the cache is full: {self.length} of {self.max_len} positions are taken, "
                f"so {new} more do not fit; truncate() or reset() it first"
            )
        return end

    def layer(self, index: int) -> LayerCache:
        """The part of one attention layer."""
        return LayerCache(self, index)

    def truncate(self, length: int) -> None:
        """Forgets everything after the first `length` positions.

        Raises:
            ValueError: if length is negative or more than there are.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} positions to {length}")
        self.length = length

    def reset(self) -> None:
        """Forgets everything."""
        self.length = 0


class LayerCache(NamedTuple):
    """What one attention layer sees of a KVCache."""

    cache: KVCache
    index: int

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As `KVCache.append`, for this layer."""
        return self.cache.append(self.index, k, v)
