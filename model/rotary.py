"""Rotary position embedding: positions enter attention as angles between queries and keys.

Su et al. 2021, "RoFormer", https://arxiv.org/abs/2104.09864. Shapes: T length, K head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RotaryEmbedding(nn.Module):
    """Tables of cosines and sines for the positions 0 .. max_len - 1.

    Position t turns the pair (x[i], x[i + K/2]) by the angle t * base^(-2i/K): the product of a query and a
    key then depends on their contents and on how far apart they are, not on where they stand.

    Args:
        head_dim: K, even.
        max_len: number of positions.
        base: the longest wavelength is just under 2 pi * base positions.

    Raises:
        ValueError: if head_dim is odd or not positive, max_len below 1, or base not positive.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, max_len: int, base: float = 10000.0) -> None:
        super().__init__()
        if head_dim < 2 or head_dim % 2:
            raise ValueError(f"rotary embedding turns pairs, so head_dim must be even and at least 2, not {head_dim}")
        if max_len < 1:
            raise ValueError(f"max_len must be at least 1, not {max_len}")
        if base <= 0:
            raise ValueError(f"base must be positive, not {base}")
        self.head_dim, self.max_len, self.base = head_dim, max_len, base
        self._fill_tables(device=None)

    def _fill_tables(self, device: torch.device | None) -> None:
        frequencies = self.base ** -(torch.arange(0, self.head_dim, 2, device=device).float() / self.head_dim)
        angles = torch.arange(self.max_len, device=device).float()[:, None] * frequencies  # (max_len, K/2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def _apply(self, fn, recurse: bool = True) -> RotaryEmbedding:
        # The tables move with the model but stay float32: in bfloat16 neighbouring positions would share an angle.
        super()._apply(fn, recurse)
        self._fill_tables(self.cos.device)
        return self

    def forward(self, length: int, offset: int | Tensor = 0) -> tuple[Tensor, Tensor]:
        """(cos, sin), each (T, K/2) in float32, for the positions offset .. offset + length - 1.

        An offset on the device, (1,), is for a length of 1, and not checked: that would wait for the device.

        Raises:
            ValueError: if these run past max_len, or offset is negative.
        """
        if isinstance(offset, Tensor):
            return self.cos[offset], self.sin[offset]
        if offset < 0 or offset + length > self.max_len:
            raise ValueError(
                f"positions {offset} to {offset + length - 1} do not fit a table of {self.max_len} positions"
            )
        return self.cos[offset : offset + length], self.sin[offset : offset + length]


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair of x (..., T, K) by its position's angle; the shape and dtype of x are kept.

    Channel i is paired with channel i + K/2 (the halves of GPT-NeoX and Llama, not RoFormer's neighbours).
    `cos` and `sin` are (T, K/2).
    """
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1).to(x.dtype)
