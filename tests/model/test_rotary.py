"""The precision of rotary embedding. test_gpt.py has its formula, test_cache.py its positions behind a cache."""

import torch

from model.rotary import apply_rotary, rotary_angles


def test_angles_are_float32_whatever_type_is_rotated():
    cos, sin = rotary_angles(torch.arange(1100), 8)
    assert cos.shape == sin.shape == (1100, 8) and cos.dtype == sin.dtype == torch.float32
    assert (cos[1:] - cos[:-1]).abs().amax(dim=1).min() > 1e-4  # in bfloat16 neighbours would have equal angles
    assert apply_rotary(torch.ones(2, 8, dtype=torch.bfloat16), cos[:2], sin[:2]).dtype == torch.bfloat16
