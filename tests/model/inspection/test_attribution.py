"""The parts of a logit are what each part writes, by hand, and their sum is the model's own logit."""

import math

import pytest
import torch

from model.inspection.reading import read
from tests.by_hand import ByHand
from tests.gpts import TOKENS


def parts_by_hand(gpt):
    """What each part writes into the residual stream, through the final norm and the row of the next token."""
    exact = ByHand(gpt, TOKENS.tolist())
    stream = exact.layers[-1]["stream after the block"]
    rows = gpt.head.weight.double()[TOKENS[1:]]
    expected = {
        part: (exact.share_of_norm(x, stream, "final_norm")[:-1] * rows).sum(-1) for part, x in exact.written().items()
    }
    if getattr(gpt.final_norm, "bias", None) is not None:
        expected["final norm bias"] = rows @ gpt.final_norm.bias.double()
    return expected


@torch.no_grad()
def test_the_parts_are_what_each_writes_and_add_up_to_the_models_own_logit(each_gpt):
    found = read(each_gpt, TOKENS)
    expected = parts_by_hand(each_gpt)
    told = found.to_json()
    for at in range(len(TOKENS) - 1):
        parts = found.attribution(at)
        assert parts == pytest.approx({name: part[at].item() for name, part in expected.items()}, abs=1e-5)
        rounded = dict(zip(told["parts"], [part[at] for part in told["attribution"]], strict=True))
        assert rounded == pytest.approx(parts, rel=6e-4, abs=1e-9)
    cap = each_gpt.config.logit_soft_cap
    target = 7
    for at in (0, -1):
        logit = found.logits[at, target].item()
        total = sum(found.attribution(at, of=target).values())
        assert total == pytest.approx(logit if cap is None else cap * math.atanh(logit / cap), abs=1e-5)
    assert 0 < told["attribution_error"] <= 1e-5 and told["attribution"][0][-1] is None
