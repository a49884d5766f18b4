"""Our kernels, which are faster on some machines, compute what PyTorch computes without them."""

from functools import partial
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from model import attention, kernels
from model.attention import CausalSelfAttention
from model.kernels import FEW_ROWS, MAX_SHORT_LENGTH, linear_by_slices, short_causal_attention
from model.multihead import scaled_dot_product_attention
from tests.attentions import values_and_gradients
from tests.measurements import causal_softmax


def formula(q, k, v):
    return causal_softmax(q @ k.mT / q.shape[-1] ** 0.5) @ v


def explicit(*inputs):
    return scaled_dot_product_attention(*inputs, is_causal=True, need_weights=True)[0]


@pytest.mark.parametrize("scale", [1.0, 4.0])  # flat scores near 1, and sharp ones near 16
@pytest.mark.parametrize("shape", [(2, 64, 32), (3, 2, 128, 16), (1, 2, 256, 64), (2, 7)], ids=str)
@pytest.mark.parametrize("ours", [short_causal_attention, explicit])
def test_attention_in_bfloat16_is_as_exact_as_pytorchs_kernel_in_values_and_gradients(ours, shape, scale):
    """Its scores are not rounded, even under autocast."""
    inputs = [(torch.randn(shape) * factor).bfloat16().requires_grad_() for factor in (scale, scale, 1.0)]
    exact = values_and_gradients(formula, [x.detach().double().requires_grad_() for x in inputs])

    def errors(attend):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = values_and_gradients(attend, inputs)
        assert [(x.shape, x.dtype) for x in found] == [(shape, torch.bfloat16)] * 4
        return [((x.double() - e).norm() / e.norm()).item() for x, e in zip(found, exact, strict=True)]

    theirs = errors(partial(F.scaled_dot_product_attention, is_causal=True))
    for our, their in zip(errors(ours), theirs, strict=True):
        assert our < max(1.5 * their, 0.01)


MASK = torch.ones(24, 24, dtype=torch.bool)


@pytest.mark.parametrize(
    "options, length, mask, is_causal",
    [
        ({}, 24, None, []),
        ({"dropout": 0.5}, 24, None, [True]),
        ({"window": 5}, 24, None, [False]),
        ({}, 24, MASK, [False]),
        ({}, 1, None, [True]),
        ({}, MAX_SHORT_LENGTH + 1, None, [True]),
    ],
)
def test_only_short_causal_attention_avoids_pytorchs_kernel_which_gets_a_mask_only_if_needed(
    options, length, mask, is_causal, monkeypatch
):
    """is_causal: of the kernel, if it is called. Otherwise it needs a mask."""
    kernel = Mock(wraps=F.scaled_dot_product_attention)
    monkeypatch.setattr(F, "scaled_dot_product_attention", kernel)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        CausalSelfAttention(32, 4, **options)(torch.randn(1, length, 32), mask=mask)
    assert [call.kwargs["is_causal"] for call in kernel.mock_calls] == is_causal


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_mask_of_numbers_is_added_to_the_scores_in_bfloat16_too(dtype):
    """A user's attention may have such a mask, for example for the logit of a sink."""
    q, k, v = torch.randn(3, 2, 4, 8, 16).to(dtype).unbind()
    bias = torch.randn(8, 8).to(dtype)
    expected = (q.double() @ k.double().mT / 4 + bias.double()).softmax(-1) @ v.double()
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    assert_close(attention.fused_attention(q, k, v, bias).double(), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("out_features", [12, 13])
@pytest.mark.parametrize(
    "shape", [(), (0,), (1,), (1, 1), (FEW_ROWS, 1), (1, FEW_ROWS), (2, 2), (FEW_ROWS + 1, 1), (3, 2, 2)]
)
@torch.no_grad()
def test_a_product_by_slices_equals_the_linear_layer(shape, out_features, bias):
    layer, x = nn.Linear(6, out_features, bias=bias), torch.randn(6, *shape).movedim(0, -1)
    assert_close(linear_by_slices(layer, x), layer(x))


@pytest.mark.parametrize("shape", [(1, 1, 48), (3, 4, 1, 6), (2, 5, 48), (1, 48), (48,)], ids=str)
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 1e4])
@torch.no_grad()
def test_the_norm_equals_pytorchs_for_one_position_and_for_many(shape, scale):
    x = torch.randn(shape) * scale
    assert_close(kernels.rms_norm(x), F.rms_norm(x, x.shape[-1:], eps=1e-6), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "capabilities, slow_products, fast_bfloat16",
    [
        ({"cpu_name": "AMD EPYC", "avx512_bf16": True}, True, True),
        ({"cpu_name": "Intel(R) Xeon(R)", "avx512_bf16": True, "amx_bf16": True}, False, True),
        ({"cpu_name": "Intel(R) Xeon(R)", "avx512_bf16": True}, False, False),  # measured: half the rate of float32
        ({"cpu_name": "ARM", "arm_bf16": True}, False, True),
        ({}, False, False),
    ],
)
def test_the_processor_decides_on_slow_products_and_fast_bfloat16(
    monkeypatch, capabilities, slow_products, fast_bfloat16
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert kernels.has_slow_vector_products.__wrapped__() == (slow_products and torch.backends.mkl.is_available())
    assert kernels.has_fast_bfloat16.__wrapped__("cpu") == fast_bfloat16
