"""Scores of texts against plain loops, one token at a time."""

from dataclasses import replace

import pytest
import torch

from model.exchange.evaluation import text_logprobs
from tests.gpts import CONFIGS, random_gpt


@pytest.mark.parametrize("name", ["gpt2", "tables", "window"])
@pytest.mark.parametrize("length", [2, 11, 17, 18, 59])
def test_each_token_is_scored_once_as_a_plain_loop_scores_it_without_dropout(name, length, monkeypatch):
    monkeypatch.setattr("model.exchange.evaluation.LOGITS_AT_ONCE", 100)  # in pieces of two tokens
    gpt, text = random_gpt(replace(CONFIGS[name], dropout=0.5)), torch.randint(50, (length,))
    for stride in (1, 5, 16):
        logprobs = text_logprobs(gpt.train(), text, stride=stride, batch_size=4)
        assert logprobs.shape == (length - 1,) and gpt.training
        gpt.eval()
        for target in range(1, length):
            # The first window from which on the target is not the token after its end.
            number = max(0, -(-(target - 16) // stride))
            with torch.no_grad():
                logits = gpt(text[None, number * stride : target])[0, -1].double()
            expected = logits.log_softmax(-1)[text[target]]
            assert abs(logprobs[target - 1] - expected) < 1e-5, (stride, target)
