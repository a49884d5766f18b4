"""Maps are those of the attention that runs; what makes them untrue gets a warning with layers and figures."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from model.attention import CausalSelfAttention
from model.gpt import GPT, GPTConfig
from model.inspection.maps import weights_of, weights_of_blocks
from model.inspection.passes import observed
from model.inspection.reading import read
from model.inspection.recording import Recording, take_snapshot
from model.inspection.texts import Texts
from tests.attentions import ALIBI, LEAK, UNIFORM, with_scores
from tests.command_lines import tells
from tests.gpts import CONFIGS, TOKENS, random_gpt
from tests.measurements import snapshot_of, text_of, uniform_maps

TEXT = Texts.of(TOKENS)
T = len(TOKENS)


def differs_with_a_cache(self, q, k, v, mask=None):
    return ALIBI(self, q if q.shape[-2] == k.shape[-2] else -q, k, v, mask)


REPLACED = {
    "the layer's own": CausalSelfAttention.attend,
    "ALiBi": ALIBI,
    "another with a cache": differs_with_a_cache,
    "a sink": with_scores(lambda scores: F.pad(scores, (0, 1), value=0.3)),  # a further key without value
    "a leak of a single token": with_scores(lambda scores: scores, seen_ahead=1),
}
FAMILIES = [("the layer's own", "grouped heads"), ("the layer's own", "window")]
FAMILIES += [(name, family) for name in REPLACED for family in ("modern", "gpt2")]


@pytest.mark.parametrize("name, config", FAMILIES)
def test_maps_are_the_derivatives_of_any_attend_by_its_values(name, config, replace_attend):
    """d(output at query) / d(value at key), computed by autograd for the layer as the model runs it.

    The rows of two blocks of queries are those of the whole map.
    """
    gpt = random_gpt(replace(CONFIGS[config], dropout=0.3))
    leaks = name.startswith("a leak")
    replace_attend(REPLACED[name])
    found = read(gpt.train(), TEXT)  # dropout does not change the maps
    maps = found.maps
    with observed(gpt) as calls:
        gpt.eval()(TEXT.tokens)
    assert found.checks.precision == "float32" and found.checks.fidelity <= 1e-5
    assert (found.checks.causality > 1e-3) if leaks else (found.checks.causality == 0)
    assert maps.shape == (3, 4, T, T) and maps.dtype == torch.float32
    assert leaks or maps.std() > 0.05  # uniform heads would hide mistakes
    blocks = torch.tensor([[1, 2, 3, 4], [T - 4, T - 3, T - 2, T - 1]])
    for call, weights in zip(calls, maps, strict=True):
        rows = weights_of_blocks(call, blocks)[0]
        assert_close(rows, weights[:, blocks.flatten()], atol=1e-5, rtol=1e-5)
        group = call.q.shape[1] // call.v.shape[1]
        for head, query in ((0, 0), (1, 7), (3, T - 1)):
            values = call.v.detach().requires_grad_()
            attended = call.attend(call.q.detach(), call.k.detach(), values, call.mask)
            attended[0, head, query, 0].backward()
            assert_close(weights[head, query], values.grad[0, head // group, :, 0], atol=1e-6, rtol=1e-4)
    seen = maps.sum(-1)
    assert (seen.max() < 0.99) if name == "a sink" else torch.allclose(seen, torch.ones(()))


def test_an_attend_with_further_arguments_is_observed():
    gpt = random_gpt(CONFIGS["one layer"])
    x = torch.ones(1, 1, 2, 3)
    layer = gpt.blocks[0].attention
    layer.attend = lambda q, k, v, mask, *, scale: scale * v
    with observed(gpt) as calls:
        layer.attend(x, x, x, None, scale=3.0)
    [call] = calls
    assert torch.equal(call.attended, 3 * x) and torch.equal(weights_of(call)[0, 0], 3 * torch.eye(2))


# ---- what is out of bounds

PROBES = {"text": text_of(range(9)), "repeated": text_of([1, 2, 3, 1, 2, 3], kind="repeated")}
CONFIG = GPTConfig(vocab_size=30, context_length=40, num_layers=2, num_heads=2, embed_dim=32)
UNTRAINED = {name: uniform_maps(probe.length).expand(2, 2, -1, -1) for name, probe in PROBES.items()}
GOOD = snapshot_of(UNTRAINED, PROBES)


def changed(step=0, by_layer=None, **figures):
    """GOOD with other figures."""
    by_layer = GOOD.checks.by_layer | (by_layer or {})
    return replace(GOOD, step=step, checks=replace(GOOD.checks, by_layer=by_layer, **figures))


def taken(gpt, probes=PROBES, **options):
    return take_snapshot(gpt, 5, Recording(probes), **options)


def warnings(*snapshots):
    return [*Recording(PROBES, snapshots=[*snapshots]).problems.values()]


LEAKING = changed(8, {"future": [0.0, 0.4]}, causality=7.13)
UNFAITHFUL = changed(9, {"fidelity": [0.5, 0.2]}, fidelity=0.5)


def test_a_warning_names_layers_and_figures_of_the_last_step_with_the_problem():
    [leak, unfaithful] = warnings(LEAKING, UNFAITHFUL, GOOD)
    assert tells(leak, "8 layer 1 future 7.1") and tells(unfaithful, "9 layers 0 1 0.5 1e-05")
    assert warnings(GOOD) == [] and warnings(LEAKING, replace(LEAKING, step=9)) == warnings(replace(LEAKING, step=9))


@pytest.mark.parametrize(
    "problem, figure, precision, size, good, bad",
    [
        ("faithful", "fidelity", "float32", 20, 1e-7, 2e-5),
        ("faithful", "fidelity", "bfloat16", 20, 1.9e-2, 3e-2),
        ("causal", "causality", "float32", 1, 6e-6, 2e-5),
        ("causal", "causality", "float32", 20, 1e-4, 4e-4),
        ("causal", "causality", "float16", 20, 0.1, 0.4),
    ],
)
def test_limits_of_checks_depend_on_precision_and_on_the_largest_logit(problem, figure, precision, size, good, bad):
    judged = changed(precision=precision, logits=size).checks
    found = [problem in replace(judged, **{figure: error}).problems for error in (0.0, good, bad, math.nan)]
    assert found == [False, False, True, True]


@pytest.mark.parametrize(
    "change",
    [lambda values: values + 0.5, torch.tanh, lambda values: values.roll(1, dims=1)],
    ids=["shifted", "not linear in the values", "heads that take each other's values"],
)
def test_an_attend_without_weights_is_unfaithful_and_only_logits_show_its_leak(change, replace_attend):
    for attend, leak in ((CausalSelfAttention.attend, set()), (LEAK, {"causal"})):
        replace_attend(lambda *x, attend=attend: change(attend(*x)))
        problems = read(random_gpt(CONFIGS["gpt2"]), TEXT).checks.problems
        assert problems.keys() - {"in_range"} == {"faithful"} | leak


def test_fidelity_is_relative_to_large_values(replace_attend):
    """The rounding error of bfloat16 grows with the values. A kernel that is wrong by a tenth is still found."""
    gpt = random_gpt(CONFIGS["modern"])
    with torch.no_grad():
        for block in gpt.blocks:
            block.attention.qkv_proj.weight[-gpt.config.embed_dim :] *= 100
    assert read(gpt, TEXT, autocast=torch.bfloat16).checks.fidelity <= 1e-2
    attend = CausalSelfAttention.attend
    replace_attend(lambda *x: attend(*x) + 0.1 * attend(*x).abs())
    assert read(gpt, TEXT, autocast=torch.bfloat16).checks.fidelity > 2e-2


def less_their_mean(attend):
    """Subtracts the mean key, which changes all scores of a query alike: only rounding changes the weights."""
    return lambda self, q, k, v, mask=None: attend(self, q, k - k.mean(-2, keepdim=True), v, mask)


def dropped_out(attend):
    """As written by a user who forgets `if self.training`."""
    return lambda *x: F.dropout(attend(*x), 0.2)


def leaking_a_little(attend):
    return lambda self, q, k, v, mask=None: attend(self, q, k, v, mask) + 1e-3 * v.roll(-1, -2)


PROBLEMS = {less_their_mean: set(), leaking_a_little: {"causal"}, dropped_out: {"repeatable"}}


@pytest.mark.parametrize("change", PROBLEMS)
@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [random_gpt, GPT])  # in a new model attention reaches no logit
def test_rounding_is_no_leak_a_small_leak_is_found_and_noise_is_named(change, autocast, make, replace_attend):
    replace_attend(change(CausalSelfAttention.attend))
    checks = taken(make(CONFIG), autocast=autocast).checks
    assert checks.problems.keys() == PROBLEMS[change]
    assert checks.causality > 0 or change is not less_their_mean or make is GPT


def in_blocks_of_eight(scores):
    places = torch.arange(scores.shape[-1])
    return scores.masked_fill(places >= (places[:, None] // 8 + 1) * 8, -torch.inf)


@pytest.mark.parametrize("length", [17, 33])  # the two tokens that the check replaces then begin a block
@pytest.mark.parametrize("make", [random_gpt, GPT])
def test_a_leak_that_moves_no_logit_is_found_by_weights_on_later_tokens(length, make, replace_attend):
    probes = {name: text_of([*range(length // 2)] * 2 + [0], kind=name) for name in PROBES}
    replace_attend(with_scores(in_blocks_of_eight, seen_ahead=99))
    snapshot = taken(make(CONFIG), probes)
    assert snapshot.checks.causality == 0 and "causal" in snapshot.checks.problems
    largest = snapshot.readings["text"].maps.triu(1).max().item()
    [sentence] = warnings(snapshot)
    assert tells(sentence, f"layers 0 1 future {largest:.2g}")


def test_an_attend_that_computes_something_else_with_a_cache_gets_a_warning(replace_attend):
    replace_attend(differs_with_a_cache)
    assert taken(random_gpt(CONFIG)).checks.problems.keys() == {"cached"}


def test_weights_outside_0_to_1_which_pages_cannot_show_get_a_warning(replace_attend):
    """The attention subtracts a share of the mean of all visible values."""
    usual = CausalSelfAttention.attend
    replace_attend(lambda *x: 1.5 * usual(*x) - 0.5 * UNIFORM(*x))
    snapshot = taken(random_gpt(CONFIG))
    weights = snapshot.readings["text"].maps
    [sentence] = warnings(snapshot)
    farthest = max(-weights.min().item(), weights.max().item() - 1)
    assert farthest > 0.1 and tells(sentence, f"layers 0 1 {farthest:.2g} maps.csv")
