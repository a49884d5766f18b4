"""Keys and values of the tokens seen so far, so that a new token costs one position instead of all of them.

Shapes: B batch, T new tokens, S tokens cached after them, M room for tokens, K head width.
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

    visible = None  # the last query stands at the last key, which says all

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
        # Zeros, because what a mask hides is still multiplied, by 0, and any number might be a NaN.
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)

    def append_tokens(self, tokens: Tensor) -> Tensor:
        """Stores the ids (B, T) of new tokens, before their keys and values come.

        Returns:
            (B, T + 1), a view of them and the one before; (B, T) where there is none.

        Raises:
            ValueError: if they do not fit; nothing is stored then.
        """
        end = self._end(tokens.shape[1])
        self.tokens[:, self.length : end] = tokens
        return self.tokens[:, max(0, self.length - 1) : end]

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores the k and v (B, H_kv, T, K) of new tokens; returns all of that layer's, (B, H_kv, S, K), as views.

        Raises:
            ValueError: if they do not fit, in length or in another size; nothing is stored then.
        """
        new = k.shape[-2]
        end = self._end(new)
        # Indexing would give the same views, at twice the time, for each layer of each token.
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


class StaticCache:
    """A KVCache for steps of one token a sequence that run the same operations at every position.

    Where the token goes is a number on the device, and all M places are read, under a mask. As nothing then depends
    on what Python counts, a step can be recorded once and repeated. The caller counts: it sets `position` before a
    step and `cache.length` after it.

    Args:
        cache: holds one token at least.
        position: (1,) integer, on the cache's device, 1 .. M - 1.
        window: as the model's config has it.
    """

    def __init__(self, cache: KVCache, position: Tensor, window: int | None = None) -> None:
        self.cache, self.length, self.window = cache, position, window
        self.visible: Tensor | None = None

    def append_tokens(self, tokens: Tensor) -> Tensor:
        """As `KVCache.append_tokens` for ids (B, 1), but a copy; decides what is visible to the new tokens."""
        distance = self.length - torch.arange(self.cache.max_len, device=tokens.device)
        visible = distance >= 0
        if self.window is not None:
            visible &= distance < self.window
        self.visible = visible[None]
        self.cache.tokens.index_copy_(1, self.length, tokens)
        return self.cache.tokens.index_select(1, torch.cat((self.length - 1, self.length)))

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As `KVCache.append` for k and v (B, H_kv, 1, K), but returns all (B, H_kv, M, K)."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        return keys.index_copy_(2, self.length, k), values.index_copy_(2, self.length, v)

    def layer(self, index: int) -> LayerCache:
        """The part of one attention layer."""
        return LayerCache(self, index)


class LayerCache(NamedTuple):
    """What one attention layer sees of a cache."""

    cache: KVCache | StaticCache
    index: int

    @property
    def visible(self) -> Tensor | None:
        """(1, M), which keys a new token may attend to; None where that is the layer's own affair."""
        return self.cache.visible

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As `KVCache.append`, for this layer."""
        return self.cache.append(self.index, k, v)
