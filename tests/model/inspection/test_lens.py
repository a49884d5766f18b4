"""Surprise and lens are those of the forward pass written out by hand, however large the vocabulary."""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F

from model.gpt import GPT
from model.inspection import lens
from model.inspection.lens import predictions
from model.inspection.trace import trace
from tests.by_hand import ByHand
from tests.gpts import MODERN, TOKENS, random_gpt
from tests.watching import before_call

TOLERANCE = {"atol": 1e-5, "rtol": 1e-4}


def test_surprise_and_lens_are_those_of_the_forward_pass_by_hand(each_gpt):
    """The lens reads the sum of what was added so far."""
    exact = ByHand(each_gpt, TOKENS.tolist())
    streams = [layer[f"stream after {part}"] for layer in exact.layers for part in ("attention", "the block")]
    found = predictions(each_gpt, trace(each_gpt, TOKENS))
    rows = [exact.read(stream).double().log_softmax(-1) for stream in (exact.stops["residual stream"], *streams)]
    logs, final = torch.stack(rows), rows[-1].expand(len(rows), -1, -1)
    true, top = logs[:, range(len(TOKENS) - 1), TOKENS[1:]], rows[-1].exp().topk(5)
    torch.testing.assert_close(found["bits"][:-1].double(), -true[-1] / math.log(2), atol=1e-5, rtol=0)
    assert found["rank"] == [*(rows[-1][:-1] > true[-1][:, None]).sum(1).tolist(), None]
    assert found["bits"][-1].isnan()
    assert found["top"] == top.indices.tolist()
    torch.testing.assert_close(found["top_probability"].double(), top.values, **TOLERANCE)
    divergence = F.kl_div(logs, final, log_target=True, reduction="none").sum(-1) / math.log(2)
    lens = found["lens"]
    assert lens["token"] == logs.argmax(-1).tolist()
    torch.testing.assert_close(lens["probability"][:, :-1].double(), true.exp(), atol=2e-5, rtol=0)
    torch.testing.assert_close(lens["divergence"].double(), divergence, atol=2e-5, rtol=0)


def test_a_large_vocabulary_is_read_in_small_pieces(monkeypatch):
    gpt, sizes = random_gpt(replace(MODERN, vocab_size=100_000, embed_dim=8)), []
    traced = trace(gpt, TOKENS)
    whole = predictions(gpt, traced)
    monkeypatch.setattr(lens, "MAX_LOGITS", 500_000)
    before_call(monkeypatch.setattr, GPT, "unembed", lambda _, x: sizes.append(x.shape[0] * 100_000))
    found = predictions(gpt, traced)
    assert max(sizes) == 500_000 and found["top"] == whole["top"] and found["rank"] == whole["rank"]
    assert found["lens"]["token"] == whole["lens"]["token"]
    torch.testing.assert_close(found["lens"]["divergence"], whole["lens"]["divergence"], **TOLERANCE)


def test_fewer_tokens_than_are_shown():
    found = predictions(gpt := random_gpt(replace(MODERN, vocab_size=3)), trace(gpt, torch.tensor([1])))
    assert found["top_probability"].shape == (1, 3) and found["rank"] == [None]
