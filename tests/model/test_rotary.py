"""Rotary embedding, against the multiplication of complex numbers of which its properties follow."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from model.rotary import apply_rotary, rotary_angles


@given(st.integers(1, 8), st.integers(1, 12), st.integers(0, 20))
def test_rotation_is_multiplication_by_a_unit_complex_number(half, length, offset):
    x = torch.randn(2, 3, length, 2 * half)
    positions = torch.arange(offset, offset + length)
    angles = positions.double()[:, None] * 10000.0 ** (-torch.arange(half).double() / half)
    expected = torch.complex(*x.double().chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
    actual = apply_rotary(x, *rotary_angles(positions, 2 * half))
    torch.testing.assert_close(actual, torch.cat((expected.real, expected.imag), -1).float(), atol=1e-4, rtol=1e-4)


def test_angles_are_float32_whatever_is_turned():
    cos, sin = rotary_angles(torch.arange(1100), 8)
    assert cos.shape == sin.shape == (1100, 8) and cos.dtype == sin.dtype == torch.float32
    assert (cos[1:] - cos[:-1]).abs().amax(dim=1).min() > 1e-4  # in bfloat16 neighbours would share an angle
    assert apply_rotary(torch.ones(2, 8, dtype=torch.bfloat16), cos[:2], sin[:2]).dtype == torch.bfloat16
