"""Keys and values of earlier tokens, so that a new token costs one position instead of all of them.

Shapes: B batch, T new tokens, S tokens cached once they are appended, M room for tokens, K head width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from model.masks import window_mask


class KVCache:
    """Preallocated keys and values for every layer of a model.

    A forward pass appends its T new positions layer by layer. All layers write at `length`, which advances when the
    last layer has written. No gradient flows through cached keys and values.

    Args:
        num_layers, batch_size, num_kv_heads, max_len, head_dim: the sizes, each at least 1.
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
        # Zeros, because masked values are still multiplied, by 0, and uninitialised memory may hold NaN.
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)

    def positions(self, num_new: int) -> Tensor:
        """(T,), the positions of the next `num_new` tokens."""
        return torch.arange(self.length, self.length + num_new, device=self.tokens.device)

    def append_tokens(self, tokens: Tensor) -> Tensor:
        """Stores the ids (B, T) of new tokens, before their keys and values.

        Returns:
            (B, T + 1), a view of them and the token before; (B, T) if there is none before.

        Raises:
            ValueError: if they do not fit; nothing is stored then.
        """
        end = self._end(tokens.shape[1])
        self.tokens[:, self.length : end] = tokens
        return self.tokens[:, max(0, self.length - 1) : end]

    def append(
        self, layer: int, k: Tensor, v: Tensor, window: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Stores the k and v (B, H_kv, T, K) of new tokens in a layer.

        Returns:
            keys and values (B, H_kv, S, K) of the layer, as views, without those that are in no query's window, and
            the mask that belongs to them: (T, S), or None for plain causality, where the last query sees the last key.

        Raises:
            ValueError: if they do not fit, in length or in another size; nothing is stored then.
        """
        new = k.shape[-2]
        end = self._end(new)
        # narrow() takes half the time of indexing, which shows in every layer of every token.
        keys, values = self.keys[layer].narrow(2, 0, end), self.values[layer].narrow(2, 0, end)
        new_keys, new_values = keys.narrow(2, self.length, new), values.narrow(2, self.length, new)
        if not new_keys.shape == k.shape == v.shape:
            raise ValueError(
                f"the cache takes keys and values of shape {tuple(new_keys.shape)}, "
                f"not {tuple(k.shape)} and {tuple(v.shape)}"
            )
        new_keys.copy_(k.detach())
        new_values.copy_(v.detach())
        if layer == len(self.keys) - 1:
            self.length = end
        if window is not None and window + new - 1 < end:
            seen = window + new - 1
            keys, values = keys.narrow(2, end - seen, seen), values.narrow(2, end - seen, seen)
        return keys, values, window_mask(new, keys.shape[2], window, device=k.device)

    def _end(self, num_new: int) -> int:
        end = self.length + num_new
        if end > self.max_len:
            raise ValueError(
                f"the cache is full: {self.length} of {self.max_len} positions are taken, so {num_new} more do not fit"
            )
        return end

    def layer(self, index: int) -> LayerCache:
        """The part of one attention layer."""
        return LayerCache(self, index)

    def reset(self) -> None:
        """Forgets everything."""
        self.length = 0


class LayerCache(NamedTuple):
    """The part of a cache that belongs to one attention layer."""

    cache: KVCache
    layer: int

    def append(self, k: Tensor, v: Tensor, window: int | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """As `KVCache.append`, for this layer."""
        return self.cache.append(self.layer, k, v, window)
