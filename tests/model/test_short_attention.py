"""Attention over short contexts in bfloat16: against the formula in float64, and beside PyTorch's own kernel."""

import pytest
import torch
import torch.nn.functional as F

from model.attention import CausalSelfAttention
from model.short_attention import MAX_LENGTH, is_faster_short, short_causal_attention


def inputs(*shape, scale=1.0):
    """Queries, keys, values and the gradient of the result; in bfloat16, and the very same numbers in float64."""
    rounded = [(torch.randn(shape) * factor).bfloat16() for factor in (scale, scale, 1.0, 1.0)]
    return rounded, [x.double() for x in rounded]


def values_and_gradients(attend, q, k, v, values_grad):
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    values = attend(*leaves)
    values.backward(values_grad)
    return [values.detach(), *(x.grad for x in leaves)]


def formula(q, k, v):
    future = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(future, -torch.inf).softmax(-1) @ v


def kernel(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def errors(actual, exact):
    return [((a.double() - e).norm() / e.norm()).item() for a, e in zip(actual, exact, strict=True)]


@pytest.mark.parametrize("scale", [1.0, 4.0], ids=["flat", "sharp"])  # scores of about 1, and of about 16
@pytest.mark.parametrize("shape", [(2, 64, 32), (3, 2, 128, 16), (1, 2, 256, 64), (2, 7)], ids=str)
def test_values_and_gradients_are_as_exact_as_those_of_pytorchs_kernel(shape, scale):
    rounded, exact = inputs(*shape, scale=scale)
    expected = values_and_gradients(formula, *exact)
    ours = values_and_gradients(short_causal_attention, *rounded)
    assert [x.dtype for x in ours] == [torch.bfloat16] * 4 and ours[0].shape == shape
    theirs = errors(values_and_gradients(kernel, *rounded), expected)
    for our, their in zip(errors(ours, expected), theirs, strict=True):
        assert our < max(1.5 * their, 0.01)


def test_scores_are_not_rounded_even_under_autocast():
    # The scores 128 and 128.5 are one number in bfloat16; the weights must differ by the factor exp(0.5).
    q = torch.tensor([[[0.0, 0.0], [2.0, 2.0]]]).bfloat16() * 2**0.5
    k = torch.tensor([[[64.0, 64.0], [64.0, 64.5]]]).bfloat16()
    v = torch.eye(2)[None].bfloat16()
    exact = formula(q.double(), k.double(), v.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = short_causal_attention(q, k, v)
    assert values[0, 1, 1] / values[0, 1, 0] > 1.5
    torch.testing.assert_close(values.double(), exact, atol=4e-3, rtol=0)


def test_the_future_has_no_part_in_anything():
    (q, k, v, values_grad), _ = inputs(2, 12, 8)
    values_grad[:, 6:] = 0
    before = values_and_gradients(short_causal_attention, q, k, v, values_grad)
    q[:, 6:], k[:, 6:], v[:, 6:] = 9, 9, 9
    after = values_and_gradients(short_causal_attention, q, k, v, values_grad)
    for x, y in zip(before, after, strict=True):
        assert torch.equal(x[:, :6], y[:, :6])
    assert all(not gradient[:, 6:].any() for gradient in after[1:])


def attended(layer, x, monkeypatch, mask=None):
    """What the layer gives in bfloat16, and how often it asks PyTorch's kernel."""
    calls, asked = [], F.scaled_dot_product_attention
    with monkeypatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", lambda *a, **kw: (calls.append(a), asked(*a, **kw))[1])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            values = layer(x, mask=mask)
    return values, len(calls)


def test_a_layer_gives_the_same_either_way(monkeypatch):
    layer, x = CausalSelfAttention(32, 4), torch.randn(2, 24, 32)
    ours, calls = attended(layer, x, monkeypatch)
    assert calls == 0
    monkeypatch.setattr("model.attention.is_faster_short", lambda q: False)
    kernels, calls = attended(layer, x, monkeypatch)
    assert calls == 1
    assert errors([ours], [kernels.double()])[0] < 0.01


@pytest.mark.parametrize(
    ("options", "length", "mask"),
    [
        ({"dropout": 0.5}, 24, None),
        ({"num_kv_heads": 2}, 24, None),
        ({"window": 5}, 24, None),
        ({}, 24, torch.ones(24, 24, dtype=torch.bool)),
        ({}, MAX_LENGTH + 1, None),
    ],
    ids=["dropout", "grouped", "window", "mask", "long"],
)
def test_what_it_was_not_made_for_goes_to_the_kernel(options, length, mask, monkeypatch):
    _, calls = attended(CausalSelfAttention(32, 4, **options), torch.randn(1, length, 32), monkeypatch, mask)
    assert calls == 1


def test_float32_and_single_queries_go_to_the_kernel():
    assert is_faster_short(torch.zeros(1, 2, 8, dtype=torch.bfloat16))
    assert not is_faster_short(torch.zeros(1, 2, 8))
    assert not is_faster_short(torch.zeros(1, 1, 8, dtype=torch.bfloat16))


def test_compiles_without_a_break():
    layer, x = CausalSelfAttention(32, 4), torch.randn(2, 24, 32)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(x)

    compiled(x).sum().backward()
    gradient = layer.qkv_proj.weight.grad.clone()
    layer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(x).sum().backward()
    torch.testing.assert_close(gradient, layer.qkv_proj.weight.grad)
