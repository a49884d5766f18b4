"""Rotary embedding against the multiplication of complex numbers."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from model.rotary import apply_rotary, rotary_angles
from tests.by_hand import turned


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 12), st.integers(0, 20))
def test_rotation_is_multiplication_by_a_unit_complex_number(seed, half, length, offset):
    torch.manual_seed(seed)
    x = torch.randn(2, 3, offset + length, 2 * half)
    actual = apply_rotary(x[..., offset:, :], *rotary_angles(torch.arange(offset, offset + length), 2 * half))
    torch.testing.assert_close(actual, turned(x.double())[..., offset:, :].float(), atol=1e-4, rtol=1e-4)


def test_angles_are_float32_whatever_type_is_rotated():
    cos, sin = rotary_angles(torch.arange(1100), 8)
    assert cos.shape == sin.shape == (1100, 8) and cos.dtype == sin.dtype == torch.float32
    assert (cos[1:] - cos[:-1]).abs().amax(dim=1).min() > 1e-4  # in bfloat16 neighbours would have equal angles
    assert apply_rotary(torch.ones(2, 8, dtype=torch.bfloat16), cos[:2], sin[:2]).dtype == torch.bfloat16
