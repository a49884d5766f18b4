"""Losses and bits of texts against plain loops, one token at a time."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from data.windows import IGNORED
from model import losses
from model.losses import count_nats, loss_and_bits, next_token_loss, text_logprobs
from tests.gpts import CONFIGS, loss_of, random_gpt


@pytest.mark.parametrize("name", ["gpt2", "tables", "window"])
@pytest.mark.parametrize("length", [2, 11, 17, 18, 59])
def test_each_token_is_scored_once_as_by_a_plain_loop_without_dropout(name, length):
    gpt = random_gpt(replace(CONFIGS[name], dropout=0.5))
    text = torch.randint(50, (length,))
    for stride in (1, 5, 16):
        logprobs = text_logprobs(gpt.train(), text, stride=stride, batch_size=4)
        assert logprobs.shape == (length - 1,) and gpt.training
        gpt.eval()
        for target in range(1, length):
            # The first window that holds the target or ends just before it.
            number = max(0, -(-(target - 16) // stride))
            with torch.no_grad():
                logits = gpt(text[None, number * stride : target])[0, -1].double()
            expected = logits.log_softmax(-1)[text[target]]
            assert abs(logprobs[target - 1] - expected) < 1e-5, (stride, target)


def test_bits_count_targets_that_have_bytes_and_nats_count_all():
    """Token 0 has one byte, 1 has three, and 2, end-of-text, has none. The counts of parts add up to the whole."""
    lengths, targets = torch.tensor([1, 3, 0]), torch.tensor([0, 2, 1, 2, IGNORED, 0])
    nats = torch.tensor([1.0, 10.0, 2.0, 20.0, 0.0, 4.0])
    parts = [count_nats(nats[part], targets[part], lengths) for part in (slice(0, 3), slice(3, 6))]
    assert parts[0].dtype == torch.float64
    assert loss_and_bits(sum(parts)) == (37 / 5, pytest.approx((1 + 2 + 4) / (1 + 3 + 1) / math.log(2)))


@pytest.mark.parametrize("name", ["gpt2", "soft-cap"])  # tied and untied
@pytest.mark.parametrize("logits_at_once", [50, 350, 2**23])
def test_a_loss_in_pieces_and_its_gradients_are_those_of_all_logits_at_once(name, logits_at_once, monkeypatch):
    monkeypatch.setattr(losses, "LOGITS_AT_ONCE", logits_at_once)
    gpt, (tokens, targets) = random_gpt(CONFIGS[name], std=0.15), torch.randint(50, (2, 2, 10))
    targets[0, 3:] = IGNORED
    unembed, gpt.scale = gpt.unembed, torch.nn.Parameter(torch.tensor(1.5))
    gpt.unembed = lambda features: gpt.scale * unembed(features)  # as somebody may change it
    found, nats = loss_of(gpt, tokens, targets), next_token_loss(gpt, gpt.features(tokens), targets, "none")
    logits = gpt(tokens).double()
    expected = F.cross_entropy(logits.mT, targets)
    assert_close(found.double(), expected, atol=1e-6, rtol=1e-6)
    assert_close(nats.sum().double() / 13, expected, atol=1e-6, rtol=1e-6)
    gradients, exact = (torch.autograd.grad(3 * one, list(gpt.parameters())) for one in (found, expected))
    assert_close(gradients, exact, atol=1e-6, rtol=1e-5)
