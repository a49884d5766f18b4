"""The attention formula and the general layer against worked numbers and PyTorch's; what does not fit is refused."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from model.masks import causal_mask, padding_mask
from model.multihead import MultiHeadAttention, scaled_dot_product_attention
from tests.attentions import random, values_and_gradients

SEEDS = st.integers(0, 2**32 - 1)


def test_six_words_as_published():
    """The figures of Raschka's "Build a Large Language Model (From Scratch)", section 3.5, with PyTorch's seed 123.

    They hold only if the projections are created in the order of query, key, value and output.
    """
    words = [[0.43, 0.15, 0.89], [0.55, 0.87, 0.66], [0.57, 0.85, 0.64], [0.22, 0.58, 0.33]]
    words = torch.tensor([*words, [0.77, 0.25, 0.10], [0.05, 0.80, 0.55]])
    torch.manual_seed(123)
    output, weights = MultiHeadAttention(3, 2, head_dim=1, output_dim=2)(words.expand(2, 6, 3), is_causal=True)
    expected = torch.tensor(
        [[0.3190, 0.4858], [0.2943, 0.3897], [0.2856, 0.3593], [0.2693, 0.3873], [0.2639, 0.3928], [0.2575, 0.4028]]
    )
    assert_close(output, expected.expand(2, 6, 2), atol=1e-4, rtol=0)
    assert weights is None


# The leading shapes of query, key and value.
LEADING = st.sampled_from([((), (), ()), ((2, 3),) * 3, ((2, 1), (3,), (1, 3)), ((), (2,), (3, 2))])


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@given(SEEDS, LEADING, st.integers(1, 6), st.integers(1, 6), st.integers(1, 8), st.integers(1, 5), st.data())
@settings(max_examples=60)
def test_formula_and_kernel_agree_with_pytorch(seed, leading, T, S, K, Kv, data):
    """A query that may attend to nothing gets zeros, without a NaN even in between."""
    torch.manual_seed(seed)
    sizes = ((T, K), (S, K), (S, Kv))
    inputs = [random(*before, *size) for before, size in zip(leading, sizes, strict=True)]
    leading = torch.broadcast_shapes(*leading)
    scale = data.draw(st.sampled_from([None, 0.3, 1.0]))
    masks = [torch.rand(*shape) < 0.6 for shape in ((S,), (T, S), (*leading, T, S))]
    mask = data.draw(st.sampled_from([None, *masks, torch.zeros(*leading, T, S) > 0]))
    is_causal = data.draw(st.booleans())

    def ours(need_weights):
        def attend(*inputs):
            options = {"is_causal": is_causal, "scale": scale, "need_weights": need_weights}
            values, weights = scaled_dot_product_attention(*inputs, mask, **options)
            assert weights is None or torch.equal(weights @ inputs[2], values)
            return values

        with torch.autograd.detect_anomaly(check_nan=True):
            return values_and_gradients(attend, inputs)

    def pytorch(*inputs):
        inputs = [x.expand(*leading, *x.shape[-2:]) for x in inputs]
        allowed = torch.ones(T, S, dtype=torch.bool) if mask is None else torch.atleast_2d(mask)
        if is_causal:
            allowed = allowed & torch.ones(T, S).tril(S - T).bool()
        # A mask of finite numbers, which PyTorch adds, keeps rows without a key finite.
        added = torch.where(allowed, 0.0, -1e30).double()
        values = F.scaled_dot_product_attention(*inputs, attn_mask=added, scale=scale)
        return values * allowed.any(-1, keepdim=True)

    expected = values_and_gradients(pytorch, inputs)
    assert_close(ours(need_weights=True), expected, atol=1e-10, rtol=1e-10)
    assert_close(ours(need_weights=False), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_attention_of_padded_texts_equals_pytorchs(bias):
    sizes = {"bias": bias, "kdim": 10, "vdim": 14, "batch_first": True}
    reference = nn.MultiheadAttention(24, 4, **sizes, dtype=torch.float64)
    widths = {"key_dim": 10, "value_dim": 14}
    ours = MultiHeadAttention(24, 4, **widths, qkv_bias=bias, output_bias=bias, dropout=0.5).double()
    projections = ours.query_proj, ours.key_proj, ours.value_proj
    reference.q_proj_weight, reference.k_proj_weight, reference.v_proj_weight = (each.weight for each in projections)
    reference.out_proj = ours.output_proj
    if bias:
        reference.in_proj_bias = nn.Parameter(torch.cat([each.bias for each in projections]))
    inputs, mask = (random(2, 5, 24), random(2, 5, 10), random(2, 5, 14)), padding_mask(torch.tensor([3, 5]), 5)
    hidden = {"key_padding_mask": ~mask[:, 0, 0], "attn_mask": ~causal_mask(5)}  # True: may not attend
    expected = values_and_gradients(lambda *x: reference(*x, **hidden)[0], inputs)
    for need_weights in (False, True):
        options = {"mask": mask, "is_causal": True, "need_weights": need_weights}
        actual = values_and_gradients(lambda *x, options=options: ours.eval()(*x, **options)[0], inputs)
        assert_close(actual, expected, atol=1e-10, rtol=1e-10)
        assert not torch.allclose(ours.train()(*inputs, **options)[0], expected[0])  # dropout, in training only


@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_drops_and_rescales(need_weights):
    T = 200
    # With the identity as values, the output is the weights themselves: all 1/T without dropout.
    q, v = torch.zeros(T, 4), torch.eye(T)
    values, weights = scaled_dot_product_attention(q, q, v, dropout_p=0.25, need_weights=need_weights)
    dropped = values == 0
    assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert_close(values[~dropped], torch.full_like(values[~dropped], 1 / T / 0.75))
    if need_weights:
        assert_close(weights, values)  # the weights that were used, not those before dropout


q, layer = torch.zeros(2, 4, 8), MultiHeadAttention(8, 2)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: scaled_dot_product_attention(q, q, q, torch.ones(4, 4)), TypeError, "boolean.*float32"),
        (lambda: layer(q, mask=torch.ones(2, 4, 4).bool()), ValueError, r"\b3\b"),
        (lambda: MultiHeadAttention(10, 3), ValueError, "num_heads=3 .*query_dim=10"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
