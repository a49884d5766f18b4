"""No path carries the future into the past: by gradients, by perturbation, and shown able to find a leak."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.attention import CausalSelfAttention
from model.gpt import GPTConfig
from model.masks import sliding_window_mask
from model.rotary import rotary_angles
from tests.gpts import GPT2, random_gpt

SIZES = {"vocab_size": 31, "context_length": 12, "num_layers": 2, "num_heads": 4, "embed_dim": 32}
MODERN = GPTConfig(**SIZES, num_kv_heads=2, value_embeddings=True, bigram_buckets=50)
FAMILIES = pytest.mark.parametrize("config", [GPTConfig(**SIZES, **GPT2), MODERN], ids=["gpt2", "modern"])


def influence(function, x):
    """(T, S): the largest |d output[t] / d x[s]|, for a function of x (S, D) that gives (T, anything)."""
    jacobian = torch.autograd.functional.jacobian(function, x)  # (T, ..., S, D)
    return jacobian.abs().amax(dim=(*range(1, jacobian.ndim - 2), jacobian.ndim - 1))


lengths = st.integers(1, 7)


@given(lengths, st.sampled_from([(1, 1), (2, 2), (4, 2), (4, 1)]), st.sampled_from([None, 1, 2, 3, 9]), st.booleans())
@settings(max_examples=40)
def test_each_token_influences_exactly_the_queries_that_may_see_it(T, heads, window, dressed):
    width = 4 * heads[0]
    layer = CausalSelfAttention(width, heads[0], num_kv_heads=heads[1], window=window, qk_norm=dressed)
    rotary = rotary_angles(torch.arange(T), 4) if dressed else None
    moved = influence(lambda x: layer(x[None], rotary=rotary)[0], torch.randn(T, width))
    torch.testing.assert_close(moved > 0, sliding_window_mask(T, window))


@FAMILIES
@pytest.mark.parametrize("window", [None, 3])
@torch.no_grad()
def test_changing_a_token_changes_no_logit_before_it(config, window):
    gpt = random_gpt(dataclasses.replace(config, window=window))
    tokens = torch.randint(31, (1, 12))
    logits = gpt(tokens)
    for position in range(12):
        changed = tokens.clone()
        changed[0, position] = (tokens[0, position] + 1) % 31
        difference = (gpt(changed) - logits).abs().amax(-1)[0]
        assert difference[:position].eq(0).all(), f"token {position} moved an earlier logit"
        assert difference[position] > 0


@FAMILIES
@torch.no_grad()
def test_documents_in_one_sequence_do_not_see_each_other(config):
    gpt = random_gpt(dataclasses.replace(config, position="rotary"))
    tokens = torch.randint(31, (1, 10))
    packed = gpt(tokens, document_ids=torch.tensor([[5] * 4 + [6] * 6]))
    # Rotary scores depend on distances alone, so the second document stands anywhere.
    torch.testing.assert_close(packed[:, :4], gpt(tokens[:, :4]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(packed[:, 4:], gpt(tokens[:, 4:]), atol=1e-5, rtol=1e-5)
    assert (packed[:, 4:] - gpt(tokens)[:, 4:]).abs().max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True], ids=["modern, short attention in bfloat16", "gpt2, documents"])
def test_torch_compile_and_export_capture_the_gpt_in_one_graph(packed):
    config = GPTConfig(**SIZES, **GPT2) if packed else dataclasses.replace(MODERN, num_kv_heads=4)
    gpt = random_gpt(dataclasses.replace(config, num_layers=1))
    tokens = torch.randint(31, (2, 12))
    ids = torch.arange(12).div(5, rounding_mode="floor").expand(2, 12) if packed else None
    # Graph breaks are found before the backend runs; this one skips the minutes of code generation.
    compiled = torch.compile(gpt, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16, enabled=not packed):
        expected, actual = gpt(tokens, document_ids=ids), compiled(tokens, document_ids=ids)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    gradients, exact = (torch.autograd.grad(x.square().mean(), list(gpt.parameters())) for x in (actual, expected))
    torch.testing.assert_close(gradients, exact, atol=1e-4, rtol=1e-4)
    exported = torch.export.export(gpt, (torch.randint(31, (2, 12)),)).module()
    torch.testing.assert_close(exported(tokens), gpt(tokens), atol=1e-5, rtol=1e-5)
