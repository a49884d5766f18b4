"""A reading tells what the forward pass by hand gives, of the model as it was; reading changes nothing."""

import copy
import math
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from model.inspection.reading import as_json, read
from model.inspection.recording import Recording, take_snapshot
from model.inspection.texts import Texts
from tests.by_hand import ByHand
from tests.command_lines import mistake
from tests.gpts import CONFIGS, MODERN, TOKENS, random_gpt
from tests.measurements import new_recording
from tests.watching import before_call

GROUPED, TEXT = CONFIGS["grouped heads"], Texts.of(TOKENS)


# ---- what a reading tells


def test_surprise_next_tokens_and_lens_are_those_of_the_forward_pass_by_hand(each_gpt):
    """The lens reads the residual stream after each sublayer."""
    exact = ByHand(each_gpt, TOKENS.tolist())
    streams = [layer[f"stream after {part}"] for layer in exact.layers for part in ("attention", "the block")]
    found = read(each_gpt, TEXT)
    logs = torch.stack([exact.read(x).log_softmax(-1) for x in (exact.stops["residual stream"], *streams)])
    final = logs[-1]
    true = logs[:, range(len(TOKENS) - 1), TOKENS[1:]]
    assert_close(found.surprise.double(), -true[-1] / math.log(2), atol=1e-5, rtol=0)
    top = final.exp().topk(5)
    told = found.figures
    assert told["rank"] == [*(final[:-1] > true[-1][:, None]).sum(1).tolist(), None]
    assert told["top"] == top.indices.tolist() and told["bits"][-1] is None
    for place, probabilities in enumerate(top.values):
        assert [str(id) for id in top.indices[place].tolist()] == [token for token, _ in found.top(place)]
        assert [p for _, p in found.top(place)] == pytest.approx(probabilities.tolist(), abs=1e-5)
    divergence = F.kl_div(logs, final.expand_as(logs), log_target=True, reduction="none").sum(-1) / math.log(2)
    lens = found.lens
    assert lens["token"] == logs.argmax(-1).tolist()
    assert_close(lens["probability"][:, :-1].double(), true.exp(), atol=2e-5, rtol=0)
    assert_close(lens["divergence"].double(), divergence, atol=2e-5, rtol=0)


@torch.no_grad()
def test_the_attribution_of_a_logit_to_parts_is_what_each_writes_and_adds_up_to_the_logit(each_gpt):
    """Each part passes through the final norm and lm_head's row of the next token."""
    found = read(each_gpt, TEXT)
    exact = ByHand(each_gpt, TOKENS.tolist())
    stream = exact.layers[-1]["stream after the block"]
    rows = exact.weights["lm_head.weight"][TOKENS[1:]]
    expected = {}
    for part, x in exact.written().items():
        expected[part] = (exact.share_of_norm(x, stream, "final_norm")[:-1] * rows).sum(-1)
    if "final_norm.bias" in exact.weights:
        expected["final norm bias"] = rows @ exact.weights["final_norm.bias"]
    whole = torch.stack([*found.parts.values()]).sum(0)
    assert_close(whole, found.residual[-1], atol=1e-5, rtol=1e-5)
    told = found.figures
    for at in range(len(TOKENS) - 1):
        parts = found.attribution(at)
        assert parts == pytest.approx({name: part[at].item() for name, part in expected.items()}, abs=1e-5)
        rounded = dict(zip(told["parts"], [part[at] for part in told["attribution"]], strict=True))
        assert rounded == pytest.approx(parts, rel=6e-4, abs=1e-9)
    cap = each_gpt.config.logit_soft_cap
    for at in (0, -1):
        logit = found.logits[at, 7].item()
        total = sum(found.attribution(at, of=7).values())
        assert total == pytest.approx(logit if cap is None else cap * math.atanh(logit / cap), abs=1e-5)
    assert 0 < told["attribution_error"] <= 1e-5 and told["attribution"][0][-1] is None
    each_gpt.lm_head.bias = torch.nn.Parameter(torch.ones(50))  # of one's own: no part adds it
    assert read(each_gpt, TEXT).figures["attribution_error"] > 1e-3


def test_a_parallel_block_is_read_and_a_shared_or_missing_attention_is_refused():
    gpt = random_gpt(CONFIGS["one layer"])
    [block] = gpt.blocks
    block.forward = lambda x, **inputs: x + block.attention(x, **inputs) + block.feed_forward(x)
    found = read(gpt, TEXT)
    assert_close(found.residual[1] - found.residual[0], found.parts["head 0.0"])
    block.forward = lambda x, **_: x
    with mistake("1 .* 0 "):
        read(gpt, TEXT)
    gpt.blocks.append(block)
    with mistake("share"):
        read(gpt, TEXT)


def test_a_text_of_one_token_and_a_vocabulary_of_three_are_measured():
    """Such a text has no next token to predict."""
    probes = {"text": Texts.of([1]), "repeated": Texts.of([1, 2, 1, 2], kind="repeated")}
    gpt = random_gpt(replace(MODERN, vocab_size=3, num_layers=1))
    snapshot = take_snapshot(gpt, 7, Recording(probes), with_losses=True)
    text = snapshot.readings["text"]
    assert snapshot.checks.causality == 0 and (text.maps == 1).all()
    assert math.isnan(snapshot.loss["text"]) and np.isnan([*snapshot.ablation["text"].values()]).all()
    assert text.figures["attribution_error"] is None and len(text.figures["top"][0]) == 3
    change = snapshot.ablation["repeated"]["head 0.3"]
    assert change.rise != 0 and math.isnan(change.error)  # of a single text


# ---- what reading changes


@pytest.mark.parametrize("family", ["gpt2", "modern", "grouped heads", "window"])
def test_measurements_are_made_in_float32_even_under_autocast_or_with_bfloat16_weights(family):
    """In bfloat16 the parts of a logit would not add up. The model's own weights stay in bfloat16."""
    gpt = random_gpt(CONFIGS[family])
    measured = new_recording()
    plain = take_snapshot(gpt, 0, measured, with_losses=True)
    with torch.autocast("cpu", torch.bfloat16):
        coarse = take_snapshot(gpt, 0, measured, with_losses=True, autocast=torch.bfloat16)
    assert plain.loss == coarse.loss
    for kind, one in plain.readings.items():
        assert one.figures == coarse.readings[kind].figures
    stored = take_snapshot(gpt.bfloat16(), 0, measured)
    assert stored.readings["text"].figures["attribution_error"] <= 1e-5
    assert {parameter.dtype for parameter in gpt.parameters()} == {torch.bfloat16}
    for one in (coarse, stored):  # the maps are those of the model as it runs, summed in float32
        checks = one.checks
        assert checks.precision == "bfloat16" and 1e-5 < checks.fidelity <= 2e-2 and checks.causality == 0
        np.testing.assert_allclose(one.readings["text"].maps.sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize("calls", [1, 5, 10, 11, 15, 40])  # of a layer, until an error: in each kind of measurement
def test_measuring_leaves_the_model_unchanged_even_after_an_error(calls, monkeypatch):
    gpt = random_gpt(replace(GROUPED, value_embeddings=True, ngram_sizes=[2, 3], ngram_buckets=31, dropout=0.3)).train()
    gpt.blocks[1].eval()  # a frozen part must stay frozen
    gpt.blocks[2].attention.attend = own = gpt.blocks[2].attention.attend
    gpt.blocks[0].feed_forward.register_forward_hook(lambda _, args, result: result + 0 * torch.rand(1))

    def state():
        hooks = [hook for module in gpt.modules() for hook in (*module._forward_hooks, *module._forward_pre_hooks)]
        changed = [name for module in gpt.modules() for name in ("attend", "forward") if name in vars(module)]
        weights = [(weight.tolist(), weight.grad) for weight in gpt.parameters()]
        return hooks, changed, weights, [module.training for module in gpt.modules()], torch.get_rng_state().tolist()

    before = state()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="in the middle"):
        error = Mock(side_effect=OSError("in the middle"))
        before_call(patch.setattr, gpt.blocks[1].feed_forward, "activation", error, calls)
        take_snapshot(gpt, 0, new_recording(), with_losses=True)
    assert state() == before
    take_snapshot(gpt, 0, new_recording(), with_losses=True)
    assert state() == before and gpt.blocks[2].attention.attend is own


def test_reading_a_compiled_model_neither_uses_nor_causes_compilation():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    expected = read(random_gpt(GROUPED), TEXT).maps
    gpt = random_gpt(GROUPED)
    blocks = random_gpt(GROUPED)
    gpt.compile(backend=backend)
    for block in blocks.blocks:
        block.compile(backend=backend)
    for model in (gpt, blocks, torch.compile(random_gpt(GROUPED), backend=backend)):
        assert torch.equal(read(model, TEXT).maps, expected)
    assert not compiled
    gpt = random_gpt(GROUPED)
    features = torch.compile(gpt.features, backend=backend)
    for _ in range(2):  # a snapshot between compiled steps
        features(TEXT.tokens)
        take_snapshot(gpt, 0, new_recording(), with_losses=True)
    assert len(compiled) == 1


# ---- what changes a reading


def told_by(reading_):
    """All that a reading tells besides its tensors."""
    told = {name: getattr(reading_, name) for name in ("surprise", "loss", "lens", "figures")}
    told |= {"top": reading_.top(), "attribution": reading_.attribution(3), "other": reading_.attribution(-1, of=7)}
    return as_json(told, ".17g")


@torch.no_grad()
def test_later_changes_of_the_model_do_not_change_a_reading(each_gpt):
    """Nor does the end of a hook, which has its effect while the text is read."""
    plain = told_by(read(each_gpt, TEXT))
    hook = each_gpt.blocks[0].feed_forward.register_forward_hook(lambda _, args, result: 2 * result)
    expected = told_by(read(copy.deepcopy(each_gpt), TEXT))
    found = read(each_gpt, TEXT)
    hook.remove()
    for parameter in each_gpt.parameters():
        parameter.normal_()
    for layer in each_gpt.blocks:
        layer.attention.attend = lambda q, k, v, mask=None: 2 * q
    assert told_by(found) == expected != plain
    found.ids.zero_()
    assert TEXT.tokens[0].tolist() == TOKENS.tolist()
