"""No token influences earlier ones, by gradients and by perturbation; both methods find leaks that are put in."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from model import attention
from model.attention import CausalSelfAttention
from model.inspection.check_attention import influence
from model.masks import causal_mask, sliding_window_mask
from model.rotary import rotary_angles
from tests.attentions import with_scores
from tests.gpts import CONFIGS, random_gpt

GPT2, MODERN = CONFIGS["gpt2"], CONFIGS["tables"]
FAMILIES = pytest.mark.parametrize("config", [GPT2, MODERN], ids=["gpt2", "modern"])


@torch.no_grad()
def moved_logits(gpt, document_ids=None):
    """How far a change of token s moves any logit at position t, (t, s), 12 x 12."""
    tokens = torch.randint(50, (1, 12))
    logits, rows = gpt(tokens, document_ids=document_ids), []
    for position in range(12):
        changed = tokens.clone()
        changed[0, position] = (tokens[0, position] + 1) % 50
        rows.append((gpt(changed, document_ids=document_ids) - logits).abs().amax(-1)[0])
    return torch.stack(rows, dim=1)


HEADS = st.sampled_from([(1, 1), (2, 2), (4, 2), (4, 1)])
SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS, st.integers(1, 7), HEADS, st.sampled_from([None, 1, 2, 3, 9]), st.booleans())
@settings(max_examples=40)
def test_each_token_influences_exactly_the_queries_that_may_see_it(seed, T, heads, window, dressed):
    torch.manual_seed(seed)
    width = 4 * heads[0]
    layer = CausalSelfAttention(width, heads[0], num_kv_heads=heads[1], window=window, qk_norm=dressed)
    rotary = rotary_angles(torch.arange(T), 4) if dressed else None
    moved = influence(lambda x: layer(x[None], rotary=rotary)[0], torch.randn(T, width))
    assert_close(moved > 0, sliding_window_mask(T, window))


def one_ahead(make_mask):
    """A mask in which each query also sees the key after its own."""
    return lambda T, *others, **options: make_mask(T, *others[:-1], others[-1] + 1, **options)[:, :-1]


def adds_a_trace_of_the_future(self, q, k, v, mask=None):
    return OWN_ATTEND(self, q, k, v, mask) + 1e-4 * v.mean()


def merged_without_a_transpose(x):
    return x.flatten(-3).unflatten(-1, (x.shape[-2], -1))


def of_one_key(scores):
    """Lets one query of one head, query 5 of head 0, see the last key."""
    future = torch.ones_like(scores, dtype=torch.bool).triu(1)
    future[:, 0, 5, -1] = False
    return scores.masked_fill(future, -torch.inf)


OWN_ATTEND = CausalSelfAttention.attend
LEAKS = {  # what is replaced, by what, and the options of a GPT that uses it
    "the window's mask sees one ahead": ("sliding_window_mask", one_ahead(sliding_window_mask), {"window": 3}),
    "attend sees one key in one head": ("attend", with_scores(of_one_key, seen_ahead=99), {}),
    "attend adds a ten-thousandth of all": ("attend", adds_a_trace_of_the_future, {}),
    "heads are merged without a transpose": ("merge_heads", merged_without_a_transpose, {}),
}


@FAMILIES
@pytest.mark.parametrize("leak", LEAKS)
def test_every_leak_that_is_put_in_is_found_by_gradients_and_by_perturbation(config, leak, monkeypatch):
    """Without the leak both find none, and each token moves its own logits."""
    name, leaking, options = LEAKS[leak]
    gpt, x = random_gpt(replace(config, **options)), torch.randn(12, 32)

    def future():
        layer = gpt.blocks[0].attention
        return influence(lambda x: layer(x[None])[0], x).triu(1).max(), moved_logits(gpt).triu(1).max()

    assert future() == (0, 0) and moved_logits(gpt).diagonal().min() > 0
    monkeypatch.setattr(CausalSelfAttention if name == "attend" else attention, name, leaking)
    assert min(future()) > 0


@FAMILIES
def test_documents_in_one_row_do_not_see_each_other_and_a_leak_between_them_is_found(config, monkeypatch):
    ids = torch.tensor([0] * 4 + [1] * 5 + [2] * 3)
    gpt, visible = random_gpt(config), causal_mask(12) & (ids[:, None] == ids)
    assert torch.equal(moved_logits(gpt, ids[None]) > 0, visible)
    monkeypatch.setattr("model.gpt.document_mask", lambda ids: causal_mask(ids.shape[1])[None, None])
    assert moved_logits(gpt, ids[None])[~visible].max() > 0


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_torch_compile_captures_the_gpt_in_one_graph(packed):
    # GPT-2 with documents, and the modern family with short attention in bfloat16.
    config = GPT2 if packed else replace(MODERN, num_kv_heads=4, logit_soft_cap=15.0)
    gpt = random_gpt(replace(config, num_layers=1))
    tokens = torch.randint(50, (2, 12))
    ids = torch.arange(12).div(5, rounding_mode="floor").expand(2, 12) if packed else None
    # Graph breaks are found before the backend runs; this backend skips the minutes of code generation.
    compiled = torch.compile(gpt, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16, enabled=not packed):
        expected, actual = gpt(tokens, document_ids=ids), compiled(tokens, document_ids=ids)
    assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    gradients, exact = (torch.autograd.grad(x.square().mean(), list(gpt.parameters())) for x in (actual, expected))
    assert_close(gradients, exact, atol=1e-4, rtol=1e-4)
