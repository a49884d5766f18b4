"""Rotary embedding: against multiplication of complex numbers, and by the properties it is used for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.rotary import RotaryEmbedding, apply_rotary


@given(st.integers(1, 8), st.integers(1, 12), st.integers(0, 20), st.sampled_from([100.0, 10000.0]))
@settings(deadline=None)
def test_is_multiplication_by_a_unit_complex_number(half, length, offset, base):
    rotary = RotaryEmbedding(2 * half, 32, base)
    x = torch.randn(2, 3, length, 2 * half)
    positions = torch.arange(offset, offset + length).double()
    angles = positions[:, None] * base ** (-torch.arange(half).double() / half)
    expected = torch.complex(*x.double().chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
    actual = apply_rotary(x, *rotary(length, offset))
    torch.testing.assert_close(actual, torch.cat((expected.real, expected.imag), -1).float(), atol=1e-4, rtol=1e-4)


def test_products_depend_on_the_distance_alone():
    rotary = RotaryEmbedding(16, 64)
    q, k = torch.randn(16), torch.randn(16)

    def score(query_position, key_position):
        turned_q = apply_rotary(q[None], *rotary(1, query_position))
        turned_k = apply_rotary(k[None], *rotary(1, key_position))
        return (turned_q * turned_k).sum()

    torch.testing.assert_close(score(3, 1), score(50, 48), atol=1e-5, rtol=1e-5)
    assert (score(3, 1) - score(3, 2)).abs() > 1e-3


def test_position_zero_is_untouched_and_lengths_are_kept():
    rotary = RotaryEmbedding(8, 10)
    x = torch.randn(10, 8)
    turned = apply_rotary(x, *rotary(10))
    torch.testing.assert_close(turned[0], x[0])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert (turned[1:] - x[1:]).abs().amax(-1).min() > 1e-3


def test_tables_stay_float32_and_out_of_the_checkpoint():
    rotary = RotaryEmbedding(8, 1100)
    cos, sin = rotary(1100)
    cos, sin = cos.clone(), sin.clone()
    rotary.to(torch.bfloat16)
    torch.testing.assert_close(rotary(1100), (cos, sin), atol=0, rtol=0)
    assert cos.shape == sin.shape == (1100, 4) and cos.dtype == sin.dtype == torch.float32
    assert not rotary.state_dict()
    assert apply_rotary(torch.ones(2, 8, dtype=torch.bfloat16), *rotary(2)).dtype == torch.bfloat16


def test_a_model_made_on_the_meta_device_gets_real_tables():
    with torch.device("meta"):
        rotary = RotaryEmbedding(8, 10)
    rotary.to_empty(device="cpu")
    torch.testing.assert_close(rotary(10), RotaryEmbedding(8, 10)(10))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((7, 10), "not 7"), ((0, 10), "not 0"), ((8, 0), "not 0"), ((8, 10, -1.0), r"not -1\.0")],
)
def test_refuses_sizes(arguments, message):
    with pytest.raises(ValueError, match=message):
        RotaryEmbedding(*arguments)


def test_refuses_positions_beyond_the_table():
    rotary = RotaryEmbedding(8, 10)
    rotary(4, 6)
    with pytest.raises(ValueError, match="positions 7 to 10 do not fit a table of 10"):
        rotary(4, 7)
    with pytest.raises(ValueError, match="positions -1"):
        rotary(4, -1)
