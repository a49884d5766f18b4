"""Maps that cannot be trusted are told: what is out of bounds, once when first seen, with layers, token and figures."""

import math
from dataclasses import replace

import pytest
import torch

from model.attention import CausalSelfAttention
from model.gpt import GPT, GPTConfig
from model.inspection.recording import Recording, take_snapshot
from tests.attentions import UNIFORM, with_scores
from tests.gpts import random_gpt
from tests.measurements import snapshot_of, text_of, uniform_maps

PROBES = {"text": text_of(range(9)), "repeated": text_of([1, 2, 3, 1, 2, 3], kind="repeated")}
CONFIG = GPTConfig(vocab_size=30, context_length=40, num_layers=2, num_heads=2, embed_dim=32)
UNTRAINED = {name: uniform_maps(probe.length).expand(2, 2, -1, -1) for name, probe in PROBES.items()}
GOOD = snapshot_of(UNTRAINED, PROBES)


def changed(step=0, by_layer=None, **figures):
    """The good one with other figures."""
    by_layer = GOOD.checks.by_layer | (by_layer or {})
    return replace(GOOD, step=step, checks=replace(GOOD.checks, by_layer=by_layer, **figures))


def taken(gpt, probes=PROBES, **options):
    return take_snapshot(gpt, 5, Recording(probes), **options)


def warnings(*snapshots):
    return [*Recording(PROBES, snapshots=[*snapshots]).problems.values()]


LEAK = changed(8, {"future": [0.0, 0.4]}, causality=7.13, changed_token=31)
UNFAITHFUL = changed(9, {"fidelity": [0.5, 0.2]}, fidelity=0.5, changed_token=3)


def test_a_warning_names_layers_token_and_figures_of_the_last_step_that_shows_it():
    [leak, unfaithful] = warnings(LEAK, UNFAITHFUL, GOOD)
    assert all(part in leak for part in ("step 8", "layer 1 ", "future", "token 31", "7.1"))
    assert all(part in unfaithful for part in ("step 9", "layers 0 and 1", "0.5", "1e-05"))
    assert warnings(GOOD) == [] and warnings(LEAK, replace(LEAK, step=9)) == warnings(replace(LEAK, step=9))


@pytest.mark.parametrize(
    ("problem", "figure", "precision", "size", "good", "bad"),
    [
        ("faithful", "fidelity", "float32", 20, 1e-7, 2e-5),
        ("faithful", "fidelity", "bfloat16", 20, 1.9e-2, 3e-2),
        ("causal", "causality", "float32", 1, 6e-6, 2e-5),
        ("causal", "causality", "float32", 20, 1e-4, 4e-4),
        ("causal", "causality", "float16", 20, 0.1, 0.4),
    ],
)
def test_checks_are_judged_by_the_precision_and_the_largest_logit(problem, figure, precision, size, good, bad):
    judged = changed(precision=precision, logits=size).checks
    found = [problem in replace(judged, **{figure: error}).problems for error in (0.0, good, bad, math.nan)]
    assert found == [False, False, True, True]


def less_their_mean(attend):
    """The mean of all keys is the same for every query, and so for the softmax: only rounding changes."""
    return lambda self, q, k, v, mask=None: attend(self, q, k - k.mean(-2, keepdim=True), v, mask)


def dropped_out(attend):
    """As a person writes it who forgets `if self.training`."""
    return lambda *x: torch.nn.functional.dropout(attend(*x), 0.2)


def leaking_a_little(attend):
    return lambda self, q, k, v, mask=None: attend(self, q, k, v, mask) + 1e-3 * v.roll(-1, -2)


SAID = {less_their_mean: {}, leaking_a_little: {"causal"}, dropped_out: {"repeatable"}}


@pytest.mark.parametrize("change", SAID)
@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [random_gpt, GPT])  # nothing of the attention of a new model reaches a logit
def test_rounding_is_no_leak_a_small_leak_is_one_and_noise_is_called_noise(change, autocast, make, monkeypatch):
    monkeypatch.setattr(CausalSelfAttention, "attend", change(CausalSelfAttention.attend))
    checks = taken(make(CONFIG), autocast=autocast).checks
    assert checks.problems.keys() == set(SAID[change])
    assert all("layers 0 and 1" in problem for problem in checks.problems.values())
    assert checks.causality > 0 or change is not less_their_mean or make is GPT


def test_a_model_that_is_random_elsewhere_is_not_said_to_leak():
    gpt = random_gpt(CONFIG)
    gpt.blocks[1].feed_forward.register_forward_hook(lambda _, args, x: torch.nn.functional.dropout(x, 0.2))
    [sentence] = warnings(taken(gpt))
    assert "the model is random" in sentence


def in_blocks_of_eight(scores):
    places = torch.arange(scores.shape[-1])
    return scores.masked_fill(places >= (places[:, None] // 8 + 1) * 8, -torch.inf)


@pytest.mark.parametrize("length", [17, 33])  # where the two tokens that are replaced begin a block
@pytest.mark.parametrize("make", [random_gpt, GPT])
def test_a_leak_that_moves_no_logit_is_told_by_the_weights_on_later_tokens(length, make, monkeypatch):
    probes = {name: text_of([*range(length // 2)] * 2 + [0], kind=name) for name in PROBES}
    monkeypatch.setattr(CausalSelfAttention, "attend", with_scores(in_blocks_of_eight, seen_ahead=99))
    snapshot = taken(make(CONFIG), probes)
    assert snapshot.checks.causality == 0 and "causal" in snapshot.checks.problems
    largest = max(one.maps.triu(1).max().item() for one in snapshot.readings.values())
    [sentence] = warnings(snapshot)
    assert all(part in sentence for part in ("layers 0 and 1 ", "future", f"{largest:.2g}"))


@pytest.mark.parametrize("leaks", [True, False])
def test_weights_of_an_attend_without_maps_do_not_tell_of_a_leak_but_the_logits_do(leaks, monkeypatch):
    attend = with_scores(lambda scores: scores, seen_ahead=99 if leaks else 0)
    monkeypatch.setattr(CausalSelfAttention, "attend", lambda *args, **options: attend(*args, **options) + 0.5)
    checks = taken(random_gpt(CONFIG)).checks
    assert min(checks.by_layer["future"]) > 0.4 and ("causal" in checks.problems) is leaks


def test_weights_that_pages_cannot_show_are_told(monkeypatch):
    """Attention less a share of the mean of all that a query sees."""
    usual = CausalSelfAttention.attend
    monkeypatch.setattr(CausalSelfAttention, "attend", lambda *x: 1.5 * usual(*x) - 0.5 * UNIFORM(*x))
    snapshot = taken(random_gpt(CONFIG))
    weights = torch.cat([one.maps.flatten() for one in snapshot.readings.values()])
    [sentence] = warnings(snapshot)
    farthest = max(-weights.min().item(), weights.max().item() - 1)
    assert farthest > 0.1 and all(part in sentence for part in ("layers 0 and 1", f"{farthest:.2g}", "maps.csv"))
