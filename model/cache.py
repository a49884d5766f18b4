"""Caches the keys and values of earlier tokens, so that a new token costs one position instead of all of them.

Shapes: L layers, B batch, H_kv key and value heads, T new tokens, S tokens in the cache after they are appended,
M tokens that fit (max_len), K head width.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from model.rotary import rotary_angles


class KVCache:
    """Holds the tokens of a batch of texts, and their keys and values in every layer of a model.

    A forward pass first appends its T new tokens here. Then each layer writes the keys and values of these tokens into
    its own slice, see `append_to_layer`.

    Args:
        memory: (L, 2, B, H_kv, M, K), a tensor of any content, which will hold the keys and values.

    Attributes:
        length: number of tokens in the cache. Set it to 0 to empty the cache.
        tokens: ids (B, M); the first `length` are valid.
    """

    def __init__(self, memory: Tensor) -> None:
        _, _, B, _, self.max_len, _ = memory.shape
        self.memory = memory
        self.length = 0
        self.tokens = memory.new_empty((B, self.max_len), dtype=torch.long)

    def append(self, tokens: Tensor) -> Sequence[Tensor]:
        """Appends the ids (B, T) of new tokens. Returns each layer's slice (2, B, H_kv, S, K), for `append_to_layer`.

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
        return self.memory[..., :end, :].unbind()

    @cached_property
    def rotary_angles(self) -> Tensor:
        """`model.rotary.rotary_angles` of all M positions, (2, M, K)."""
        return rotary_angles(torch.arange(self.max_len, device=self.memory.device), self.memory.shape[-1])


def append_to_layer(cache: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Writes keys and values (B, H_kv, T, K) of the new tokens into a layer's slice; returns all, (B, H_kv, S, K).

    No gradient flows through cached keys and values. All that are returned have the type of the new ones: under
    autocast it is not the cache's, and attention needs the queries' type.
    """
    T = k.shape[-2]
    cache.narrow(-2, -T, T).copy_(torch.stack((k, v)).detach())  # faster than assigning to cache[..., -T:, :]
    keys, values = cache.to(k.dtype).unbind()
    return keys, values
