"""Scores of texts against plain loops, one token at a time."""

import dataclasses

import pytest
import torch

from model.exchange.evaluation import text_logprobs
from model.gpt import GPTConfig
from tests.gpts import GPT2, random_gpt

SIZES = {"vocab_size": 23, "context_length": 10, "num_layers": 2, "num_heads": 4, "embed_dim": 32}
MODERN = GPTConfig(**SIZES, value_embeddings=True, bigram_buckets=50)
CONFIGS = [MODERN, GPTConfig(**SIZES, **GPT2), dataclasses.replace(MODERN, num_kv_heads=2, window=3)]


@torch.no_grad()
def next_token(gpt, before):
    """Log-probabilities (V,) of the token after `before`, from one forward pass."""
    return gpt(before[None])[0, -1].double().log_softmax(-1)


@pytest.mark.parametrize("config", CONFIGS, ids=["modern", "gpt2", "grouped and windowed"])
@pytest.mark.parametrize("length", [2, 7, 11, 12, 38])
def test_each_token_is_scored_once_as_a_plain_loop_scores_it_without_dropout(config, length, monkeypatch):
    monkeypatch.setattr("model.exchange.evaluation.LOGITS_AT_ONCE", 50)  # in pieces of two tokens
    gpt, text = random_gpt(dataclasses.replace(config, dropout=0.5)), torch.randint(23, (length,))
    for stride in (1, 3, 10):
        logprobs = text_logprobs(gpt.train(), text, stride=stride, batch_size=4)
        assert logprobs.shape == (length - 1,) and gpt.training
        gpt.eval()
        for target in range(1, length):
            # The first window from which on the target is not the token after its end.
            number = max(0, -(-(target - 10) // stride))
            expected = next_token(gpt, text[number * stride : target])[text[target]]
            assert abs(logprobs[target - 1] - expected) < 1e-5, (stride, target)
