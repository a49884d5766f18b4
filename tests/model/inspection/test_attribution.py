"""The parts of a logit are what each part writes, by hand, and their sum is the model's own logit."""

from dataclasses import replace

import torch

from model.inspection.attribution import attribution
from model.inspection.trace import trace
from tests.by_hand import ByHand
from tests.gpts import CONFIGS, TOKENS, random_gpt


def parts_by_hand(gpt):
    """What each part writes into the residual stream, through the final norm and the row of the next token."""
    exact = ByHand(gpt, TOKENS.tolist())
    stream, rows = exact.layers[-1]["stream after the block"], gpt.head.weight.double()[TOKENS[1:]]
    expected = {
        part: (exact.share_of_norm(x, stream, "final_norm")[:-1] * rows).sum(-1) for part, x in exact.written().items()
    }
    if getattr(gpt.final_norm, "bias", None) is not None:
        expected["final norm bias"] = rows @ gpt.final_norm.bias.double()
    return expected


@torch.no_grad()
def test_the_parts_are_what_each_writes_and_add_up_to_the_models_own_logit(each_gpt):
    parts, error = attribution(each_gpt, trace(each_gpt, TOKENS))
    found = {part: of_part[:-1].double() for part, of_part in parts.items()}
    torch.testing.assert_close(found, parts_by_hand(each_gpt), atol=1e-5, rtol=0)
    logits = each_gpt(TOKENS[None])[0, :-1].double().gather(1, TOKENS[1:, None])[:, 0]
    cap = each_gpt.config.logit_soft_cap
    total, logits = sum(parts.values()), logits if cap is None else cap * torch.atanh(logits / cap)
    assert 0 < error <= 1e-5 and total[-1].isnan()
    torch.testing.assert_close(total[:-1], logits, atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_error_is_relative_to_large_logits():
    """A head that is larger by a power of two rounds alike."""
    gpt, errors = random_gpt(CONFIGS["modern"]), []
    for _ in range(2):
        gpt.head.weight *= 2**12
        traced = trace(gpt, TOKENS)
        errors.append(attribution(gpt, traced)[1])
    assert errors[0] == errors[1] <= 1e-5
    assert attribution(gpt, replace(traced, heads=0 * traced.heads))[1] > 0.01  # parts that are missing
