"""Fixtures for the tests of model/."""

import pytest
import torch
import torch.nn.functional as F

from tests.gpts import CONFIGS, random_gpt


@pytest.fixture(autouse=True)
def same_numbers_every_time():
    """Seeds PyTorch, so that a test draws the same numbers whichever tests ran before."""
    torch.manual_seed(0)


@pytest.fixture(params=CONFIGS)
def each_gpt(request):
    """A random GPT of each architecture."""
    return random_gpt(CONFIGS[request.param])


@pytest.fixture
def fused_calls(monkeypatch):
    """The mask and is_causal of each call of PyTorch's fused attention."""
    calls, fused = [], F.scaled_dot_product_attention

    def spy(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **options):
        calls.append((attn_mask, is_causal))
        return fused(query, key, value, attn_mask, dropout_p, is_causal, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    return calls
