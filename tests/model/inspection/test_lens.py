"""Surprise and lens are those of the forward pass written out by hand, however large the vocabulary."""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F

from model.inspection.reading import read
from tests.by_hand import ByHand
from tests.gpts import MODERN, TOKENS, random_gpt

TOLERANCE = {"atol": 1e-5, "rtol": 1e-4}


def test_surprise_and_lens_are_those_of_the_forward_pass_by_hand(each_gpt):
    """The lens reads the sum of what was added so far."""
    exact = ByHand(each_gpt, TOKENS.tolist())
    streams = [layer[f"stream after {part}"] for layer in exact.layers for part in ("attention", "the block")]
    found = read(each_gpt, TOKENS)
    rows = [exact.read(stream).double().log_softmax(-1) for stream in (exact.stops["residual stream"], *streams)]
    logs = torch.stack(rows)
    final = rows[-1].expand(len(rows), -1, -1)
    true = logs[:, range(len(TOKENS) - 1), TOKENS[1:]]
    top = rows[-1].exp().topk(5)
    torch.testing.assert_close(found.surprise.double(), -true[-1] / math.log(2), atol=1e-5, rtol=0)
    told = found.to_json()
    assert told["rank"] == [*(rows[-1][:-1] > true[-1][:, None]).sum(1).tolist(), None]
    assert told["top"] == top.indices.tolist() and told["bits"][-1] is None
    for place, probabilities in enumerate(top.values):
        assert [str(id) for id in top.indices[place].tolist()] == [token for token, _ in found.top(place)]
        torch.testing.assert_close(torch.tensor([p for _, p in found.top(place)]).double(), probabilities, **TOLERANCE)
    divergence = F.kl_div(logs, final, log_target=True, reduction="none").sum(-1) / math.log(2)
    lens = found.lens
    assert lens["token"] == logs.argmax(-1).tolist()
    torch.testing.assert_close(lens["probability"][:, :-1].double(), true.exp(), atol=2e-5, rtol=0)
    torch.testing.assert_close(lens["divergence"].double(), divergence, atol=2e-5, rtol=0)


def test_fewer_tokens_than_are_shown():
    told = read(random_gpt(replace(MODERN, vocab_size=3)), [1]).to_json()
    assert len(told["top"][0]) == len(told["top_probability"][0]) == 3 and told["rank"] == [None]
