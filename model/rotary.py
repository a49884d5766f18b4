"""Rotary position embedding: rotates queries and keys by angles that depend on their positions.

At position t the pair (x[i], x[i + K/2]) of a query or key is rotated by the angle t * 10000^(-2i/K), so that the dot
product of a query and a key depends on their contents and their distance, not on their absolute positions.

Su et al. 2021, "RoFormer", https://arxiv.org/abs/2104.09864. Shapes: T length, K head width.
"""

import torch
from torch import Tensor


def rotary_angles(positions: Tensor, head_dim: int) -> Tensor:
    """Returns cosine and sine of each channel's angle at `positions` (T,), for `apply_rotary`: (2, T, K), float32.

    K is head_dim, an even number. The longest wavelength is just under 2 pi * 10000 positions. The angles are always
    computed in float32: in bfloat16 neighbouring positions would share an angle.
    """
    channels = torch.arange(0, head_dim, 2, device=positions.device).float()
    frequencies = 10000.0 ** -(channels / head_dim)
    angles = positions.float()[:, None] * frequencies  # (T, K/2): one for each pair
    cos, sin = angles.cos(), angles.sin()
    cos = torch.cat((cos, cos), dim=-1)
    sin = torch.cat((-sin, sin), dim=-1)  # with the signs that `apply_rotary` needs
    return torch.stack((cos, sin))


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates each pair of x (..., T, K) by the angle of its position. The shape and dtype of x are kept.

    Channel i is paired with channel i + K/2, as in GPT-NeoX and Llama; RoFormer pairs neighbouring channels.

        (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin) = (x1, x2) * (cos, cos) + (x2, x1) * (-sin, sin)
    """
    swapped = x.roll(x.shape[-1] // 2, dims=-1)  # (x2, x1)
    return (x * cos + swapped * sin).to(x.dtype)
