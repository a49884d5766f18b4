"""Keys and values of earlier tokens, so that a new token costs one position instead of all of them.

Shapes: L layers, B batch, T new tokens, S tokens cached once they are appended, M room for tokens, K head width.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from model.rotary import rotary_angles


class KVCache:
    """Room for the tokens of a batch of texts, and for their keys and values in every layer of a model.

    A forward pass appends its T new tokens first; then each layer writes their keys and values into its own part. No
    gradient flows through cached keys and values.

    Args:
        num_layers, batch_size, num_kv_heads, max_len, head_dim: the sizes, each at least 1.
        device, dtype: of the keys and values; PyTorch's defaults if None.

    Attributes:
        tokens: ids (B, M), of which the first `length` count; to forget everything, set that to 0.
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
        """Appends the ids (B, T) of new tokens, and returns every layer's part, to which it adds their keys and values.

        Raises:
            ValueError: if they do not fit; nothing is stored then.
        """
        start, end = self.length, self.length + tokens.shape[1]
        if end > self.max_len:
            raise ValueError(
                f"the cache is full: {start} of {self.max_len} positions are taken, so {end - start} more do not fit"
            )
        self.tokens[:, start:end] = tokens
        self.length = end
        # Views for all layers at once: one by one they would take longer than the copies that go through them.
        keys = self.keys[..., :end, :]
        values = self.values[..., :end, :]
        views = (keys, values, keys[..., start:, :], values[..., start:, :])
        of_each_layer = zip(*(view.unbind() for view in views), strict=True)
        return [LayerCache(*its_views) for its_views in of_each_layer]

    @cached_property
    def rotary_angles(self) -> tuple[Tensor, Tensor]:
        """Those of all positions, each (M, K)."""
        return rotary_angles(torch.arange(self.max_len, device=self.keys.device), self.keys.shape[-1])


class LayerCache(NamedTuple):
    """One layer's part of a cache: views of all keys and values, and of their last T, which are still to be written."""

    keys: Tensor
    values: Tensor
    new_keys: Tensor
    new_values: Tensor

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores the k and v (B, H_kv, T, K) of the new tokens, and returns those of all tokens (B, H_kv, S, K)."""
        self.new_keys.copy_(k.detach())
        self.new_values.copy_(v.detach())
        return self.keys, self.values
