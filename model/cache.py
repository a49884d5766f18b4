"""Keys and values of earlier tokens, so that a new token costs one position instead of all of them.

Shapes: B batch, T new tokens, S tokens cached once they are appended, M room for tokens, K head width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from model.masks import causal_mask, window_mask


class KVCache:
    """Preallocated keys and values for every layer of a model.

    A forward pass appends its T new positions layer by layer. All layers write at `length`, which advances when the
    last layer has written. No gradient flows through cached keys and values.

    Texts of different lengths are aligned at their ends: `padding` (B,) says how many places at the beginning of each
    row hold no text. They form a document of their own, which no text attends to. It is None if there are none.

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
        self.padding: Tensor | None = None
        self.tokens = torch.empty((batch_size, max_len), device=device, dtype=torch.long)
        # Zeros, because masked values are still multiplied, by 0, and uninitialised memory may hold NaN.
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)

    def positions(self, num_new: int) -> Tensor:
        """The positions in their text of the next `num_new` tokens: (T,), or (B, T) with padding, whose own are 0."""
        places = self._places(num_new, self.length + num_new)
        return places if self.padding is None else (places - self.padding[:, None]).clamp(min=0)

    def document_ids(self, num_last: int, num_new: int) -> Tensor | None:
        """(B, num_last): whether each of the last tokens, the `num_new` next ones included, is text and not padding.

        None without padding.
        """
        return None if self.padding is None else self._places(num_last, self.length + num_new) >= self.padding[:, None]

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
            the mask that belongs to them: (T, S), (B, 1, T, S) with padding, or None for plain causality, where the
            last query sees the last key.

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
        is_text = self.document_ids(end, new)
        if layer == len(self.keys) - 1:
            self.length = end
        if window is not None and window + new - 1 < end:
            seen = window + new - 1
            keys, values = keys.narrow(2, end - seen, seen), values.narrow(2, end - seen, seen)
        S = keys.shape[2]
        mask = window_mask(new, S, window, device=k.device)
        if is_text is not None:
            documents = is_text[:, None, -new:, None] == is_text[:, None, None, -S:]
            mask = documents & (causal_mask(new, S, device=k.device) if mask is None else mask)
        return keys, values, mask

    def _places(self, number: int, end: int) -> Tensor:
        return torch.arange(end - number, end, device=self.tokens.device)

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

    def reset(self, padding: Tensor | None = None) -> None:
        """Forgets everything. The texts that follow have this `padding` (B,), less than their first tokens' number."""
        self.length = 0
        if padding is None or self.padding is None:
            self.padding = padding
        else:  # a recorded step reads it where it is
            self.padding.copy_(padding)

    def replace(self, rows: Tensor, texts: KVCache) -> None:
        """Puts `texts`, which are shorter, in place of those of some rows (R,); only for a cache with padding.

        They end where all texts end. Places that no row needs any more are dropped.
        """
        start = self.length - texts.length
        self.keys[:, rows, :, start : self.length] = texts.keys[:, :, :, : texts.length]
        self.values[:, rows, :, start : self.length] = texts.values[:, :, :, : texts.length]
        self.padding[rows] = start
        unused = int(self.padding.min())
        self.padding -= unused
        for places in (self.keys.movedim(3, 0), self.values.movedim(3, 0), self.tokens.movedim(1, 0)):
            places[: self.length - unused] = places[unused : self.length].clone()
        self.length -= unused


class LayerCache(NamedTuple):
    """The part of a cache that belongs to one attention layer."""

    cache: KVCache
    layer: int

    def append(self, k: Tensor, v: Tensor, window: int | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """As `KVCache.append`, for this layer."""
        return self.cache.append(self.layer, k, v, window)
