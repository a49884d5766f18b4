"""Warnings: what is out of bounds is said once when first seen, with the layer, the token and the figures."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from model.attention import CausalSelfAttention
from model.gpt import GPT, GPTConfig
from model.inspection.probes import Probe
from model.inspection.recorder import take_maps, take_snapshot
from model.inspection.survey import windows_of
from model.inspection.verdicts import is_causal, is_faithful, new_warnings, warnings
from tests.attentions import with_scores
from tests.gpts import random_gpt
from tests.measurements import snapshot_with

PROBES = {"text": Probe([*range(9)], ["x"] * 9), "repeated": Probe([1, 2, 3, 1, 2, 3], ["x"] * 6, 3)}
GOOD = snapshot_with({"sink": np.zeros((2, 2))}, PROBES)
LEAK = replace(GOOD, step=8, causality=7.13, checks={"fidelity": [0.0, 0.0], "future": [0.0, 0.4], "replaced": 31})
UNFAITHFUL = replace(GOOD, step=9, fidelity=0.5, checks={"fidelity": [0.5, 0.2], "future": [0.0, 0.0], "replaced": 3})


def test_a_warning_names_layers_token_and_figures_and_is_new_once():
    assert warnings([GOOD]) == []
    assert warnings([GOOD, LEAK]) == [
        "At step 8 layer 1 looks into the future: changing token 31 moves the logits before it by 7.1; "
        "the loss means nothing."
    ]
    [sentence] = warnings([UNFAITHFUL])
    assert sentence.startswith("At step 9 the maps of layers 0 and 1 are not what the model computes: ")
    assert "by 0.5, where rounding explains 1e-05" in sentence
    assert new_warnings([GOOD]) == new_warnings([GOOD, LEAK, LEAK]) == new_warnings([LEAK, GOOD]) == []
    assert new_warnings([GOOD, LEAK]) == warnings([LEAK])
    assert new_warnings([LEAK, UNFAITHFUL]) == warnings([UNFAITHFUL])


def test_fidelity_is_judged_by_the_precision_and_causality_is_exact():
    for precision, good, bad in (("float32", 1e-7, 2e-5), ("bfloat16", 1.9e-2, 3e-2), ("float16", 4e-3, 6e-3)):
        found = [is_faithful(replace(GOOD, precision=precision, fidelity=error)) for error in (good, bad, math.nan)]
        assert found == [True, False, False], precision
    assert [is_causal(replace(GOOD, causality=change)) for change in (0.0, 1e-9, math.nan)] == [True, False, False]


@pytest.mark.parametrize("layer", [0, 1])
def test_the_layer_that_leaks_is_named(layer):
    gpt = random_gpt(GPTConfig(vocab_size=30, context_length=9, num_layers=2, num_heads=2, embed_dim=32))
    attention = gpt.blocks[layer].attention
    attention.attend = lambda q, k, v, mask=None: torch.nn.functional.scaled_dot_product_attention(q, k, v)
    snapshot, _, _ = take_snapshot(gpt, PROBES, 5)
    [sentence] = warnings([snapshot])
    assert sentence.startswith(f"At step 5 layer {layer} looks into the future: changing token ")


def in_blocks_of_eight(scores):
    places = torch.arange(scores.shape[-1])
    return scores.masked_fill(places >= (places[:, None] // 8 + 1) * 8, -torch.inf)


@pytest.mark.parametrize("length", [17, 33])  # where the two tokens that are replaced begin a block
@pytest.mark.parametrize("fresh", [True, False])  # the output matrix of a new model is 0, and nothing reaches a logit
def test_a_leak_that_moves_no_logit_is_told_by_the_weights_on_later_tokens(length, fresh, monkeypatch):
    config = GPTConfig(vocab_size=30, context_length=40, num_layers=2, num_heads=2, embed_dim=32)
    gpt = GPT(config) if fresh else random_gpt(config)
    probes = {name: Probe([*range(length // 2)] * 2 + [0], ["x"] * length, length // 2) for name in PROBES}
    monkeypatch.setattr(CausalSelfAttention, "attend", with_scores(in_blocks_of_eight, seen_ahead=99))
    snapshot, maps = take_maps(gpt, probes, 5, windows_of(probes))
    assert snapshot.causality == 0 and not is_causal(snapshot)
    largest = max(np.triu(of_probe, 1).max() for of_probe in maps.values())
    assert warnings([snapshot]) == [
        f"At step 5 layers 0 and 1 look into the future: a later token has a weight of up to {largest:.2g}; "
        "the loss means nothing."
    ]


@pytest.mark.parametrize("leaks", [True, False])
def test_weights_of_an_attend_without_maps_do_not_tell_of_a_leak_but_the_logits_do(leaks, monkeypatch):
    gpt = random_gpt(GPTConfig(vocab_size=30, context_length=9, num_layers=2, num_heads=2, embed_dim=32))
    attend = with_scores(lambda scores: scores, seen_ahead=99 if leaks else 0)
    monkeypatch.setattr(CausalSelfAttention, "attend", lambda *args, **options: attend(*args, **options) + 0.5)
    snapshot, _ = take_maps(gpt, PROBES, 5, windows_of(PROBES))
    assert snapshot.checks["future"].min() > 0.4 and is_causal(snapshot) is not leaks
    assert any("looks into the future" in sentence for sentence in warnings([snapshot])) is leaks


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_weights_that_pages_cannot_show_are_told(share, monkeypatch):
    """Attention less a share of the mean of all that a query sees."""
    gpt = random_gpt(GPTConfig(vocab_size=30, context_length=9, num_layers=2, num_heads=2, embed_dim=32))
    usual, uniform = CausalSelfAttention.attend, with_scores(lambda x: x.masked_fill(x > -torch.inf, 0))
    monkeypatch.setattr(CausalSelfAttention, "attend", lambda *x: (1 + share) * usual(*x) - share * uniform(*x))
    snapshot, maps = take_maps(gpt, PROBES, 5, windows_of(PROBES))
    least = min(of_probe.min() for of_probe in maps.values())
    most = max(of_probe.max() for of_probe in maps.values())
    assert is_faithful(snapshot) and is_causal(snapshot) and bool(share) == (least < -0.1)
    assert warnings([snapshot]) == bool(share) * [
        f"At step 5 weights of layers 0 and 1 are below 0 or above 1, by up to {max(-least, most - 1):.2g}: pages and "
        "pictures show them as 0 or 1; inspect_attention.py --output maps.csv has them as they are."
    ]
