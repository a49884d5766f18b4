"""The key-value cache: reading a text in any chunks gives the logits of reading it at once.

tests/model/test_generation.py has texts that a GPT writes with it.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from model.attention import CausalSelfAttention
from model.cache import KVCache
from model.generation import new_cache
from tests.gpts import CONFIGS, random_gpt


def test_tokens_that_do_not_fit_are_refused_and_change_nothing():
    cache, tokens = KVCache(torch.empty(1, 2, 2, 3, 8, 4)), torch.randint(31, (2, 6))
    cache.append(tokens)
    with pytest.raises(ValueError, match=r"6 of 8.* 3 "):
        cache.append(torch.zeros(2, 3))
    assert cache.length == 6 and cache.tokens[:, :6].equal(tokens)


def test_no_gradient_flows_through_the_cache():
    layer, cache = CausalSelfAttention(16, 4), KVCache(torch.empty(1, 2, 2, 4, 8, 4))
    for _ in range(2):  # the second backward pass must not reach the graph of the first
        x = torch.randn(2, 3, 16, requires_grad=True)
        layer(x, cache=cache.append(torch.zeros(2, 3))[0]).sum().backward()
        assert x.grad.abs().max() > 0  # through the queries
    assert not cache.memory.requires_grad


@torch.no_grad()
def test_under_autocast_the_cache_may_have_another_type():
    gpt, tokens = random_gpt(CONFIGS["modern"]), torch.randint(50, (2, 9))
    cache = new_cache(gpt, 2, 16)
    with torch.autocast("cpu", torch.bfloat16):
        pieces = [gpt(piece, cache=cache) for piece in tokens.split([5, 1, 3], dim=1)]
    assert_close(torch.cat(pieces, dim=1), gpt(tokens), atol=0.1, rtol=0.1)


@given(
    config=st.sampled_from([*CONFIGS.values()]),
    window=st.sampled_from([None, 1, 2, 7, 40]),
    chunks=st.lists(st.integers(1, 5), min_size=1, max_size=6),
)
@settings(max_examples=60)
@torch.no_grad()
def test_a_text_read_in_any_chunks_has_the_logits_of_the_text_at_once(config, window, chunks):
    gpt = random_gpt(replace(config, context_length=30, window=config.window or window)).double()
    tokens, cache = torch.randint(50, (2, sum(chunks))), new_cache(gpt, 2, 30)
    pieces = [gpt(piece, cache=cache) for piece in tokens.split(chunks, dim=1)]
    assert_close(torch.cat(pieces, dim=1), gpt(tokens), atol=1e-5, rtol=1e-5)
