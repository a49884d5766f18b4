"""Captured maps are those that the model used, and capturing does not change the model."""

import copy
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from model.attention import CausalSelfAttention
from model.gpt import GPT
from model.inspection import recorder, trace
from model.inspection.lens import predictions
from model.inspection.probes import Probe, draw_repeated_probe
from model.inspection.recorder import metrics_of, read_maps, take_snapshot
from model.inspection.recording import Recording, as_json
from model.inspection.survey import windows_of
from model.inspection.verdicts import warnings
from tests.attentions import ALIBI, LEAK, with_scores
from tests.gpts import CONFIGS, TOKENS, random_gpt

GROUPED, TEXT = CONFIGS["grouped heads"], TOKENS.tolist()
FAMILIES = ["gpt2", "modern", "grouped heads", "window"]


@pytest.fixture(params=FAMILIES)
def gpt(request) -> GPT:
    return random_gpt(CONFIGS[request.param])


def new_recording(folder=None, text=TEXT) -> Recording:
    """Resumed where there is one in the folder."""
    repeated = draw_repeated_probe(range(50), 7, lambda token: f"[{token}]", first=0)
    probes = {"text": Probe(text, [f"<{t}>" for t in text]), "repeated": repeated}
    windows = windows_of({"text": [probes["text"], Probe(text[::-1], ["x"] * len(text))], "repeated": repeated})
    return Recording(probes) if folder is None else Recording.resume(folder, probes, windows, "fingerprint")


def record(folder, gpt, step, **options):
    recording = new_recording(folder)
    recording.append(take_snapshot(gpt, step, recording, **options))
    return recording


def replace_attend(monkeypatch, change) -> None:
    """Replaces every layer's attention by one that changes the values."""
    attend = CausalSelfAttention.attend
    monkeypatch.setattr(CausalSelfAttention, "attend", lambda *args, **options: change(attend(*args, **options)))


def test_fidelity_is_relative_to_large_values(monkeypatch):
    """The rounding error of bfloat16 grows with the values. A kernel that is wrong by a tenth is still detected."""
    gpt = random_gpt(CONFIGS["modern"])
    with torch.no_grad():
        for block in gpt.blocks:
            block.attention.qkv_proj.weight[-gpt.config.embed_dim :] *= 100
    assert read_maps(gpt, TEXT, autocast=torch.bfloat16)[1].fidelity <= 1e-2
    replace_attend(monkeypatch, lambda values: values + 0.1 * values.abs())
    assert read_maps(gpt, TEXT, autocast=torch.bfloat16)[1].fidelity > 2e-2


@pytest.mark.parametrize(
    "change",
    [lambda values: values + 0.5, torch.tanh, lambda values: values.roll(1, dims=1)],
    ids=["shifted", "not linear in the values", "heads that take each other's values"],
)
def test_an_attend_without_weights_is_not_faithful(change, monkeypatch):
    replace_attend(monkeypatch, change)
    _, checks = read_maps(random_gpt(CONFIGS["gpt2"]), TEXT)
    assert checks.fidelity > 1e-2 and checks.causality == 0


REPLACED = {
    "ALiBi": ALIBI,
    "a sliding window": with_scores(lambda scores: scores.masked_fill(~torch.ones(12, 12).bool().triu(-4), -math.inf)),
    "a sink": with_scores(lambda scores: nn.functional.pad(scores, (0, 1), value=0.3)),  # a further key without value
    "a leak": LEAK,
    "a leak of a single token": with_scores(lambda scores: scores, seen_ahead=1),
}  # fmt: skip
OF_TWO_FAMILIES = [(name, family) for name in REPLACED for family in ("modern", "gpt2")]


@pytest.mark.parametrize(("name", "config"), [*(("the layer's own", config) for config in FAMILIES), *OF_TWO_FAMILIES])
def test_maps_are_those_of_the_attend_that_runs_whatever_it_computes(name, config, monkeypatch):
    """Against d(output at q) / d(value at k), which autograd takes from the layer as the model runs it."""
    gpt, calls, leaks = random_gpt(replace(CONFIGS[config], dropout=0.3)), [], name.startswith("a leak")
    monkeypatch.setattr(CausalSelfAttention, "attend", REPLACED.get(name, CausalSelfAttention.attend))
    maps, checks = read_maps(gpt.train(), TEXT)  # dropout does not change the maps
    with trace.observed([block.attention for block in gpt.blocks], calls.append):
        gpt.eval()(torch.tensor([TEXT]))
    assert checks.precision == "float32" and checks.fidelity <= 1e-5
    assert (checks.causality > 1e-3) if leaks else (checks.causality == 0)
    assert maps.shape == (3, 4, len(TEXT), len(TEXT)) and maps.dtype == torch.float32
    assert leaks or maps.std() > 0.05  # uniform heads would hide a mistake
    for call, weights in zip(calls, maps, strict=True):
        H, H_kv = call.q.shape[1], call.v.shape[1]
        for head, query in ((0, 0), (1, 7), (3, len(TEXT) - 1)):
            values = call.v.detach().requires_grad_()
            attended = call.attend(call.q.detach(), call.k.detach(), values)
            attended[0, head, query, 0].backward()
            expected = values.grad[0, head * H_kv // H, :, 0]
            torch.testing.assert_close(weights[head, query], expected, atol=1e-6, rtol=1e-4)
    seen = maps.sum(-1)
    assert (seen.max() < 0.99) if name == "a sink" else torch.allclose(seen, torch.ones(()))


def test_an_attend_with_further_arguments_is_observed():
    layer, x = random_gpt(GROUPED).blocks[0].attention, torch.ones(1, 1, 2, 3)
    calls = []
    layer.attend = lambda q, k, v, mask, shift, *, scale: scale * v + shift
    with trace.observed([layer], calls.append):
        layer.attend(x, x, x, None, 0.0, scale=3.0)
    assert torch.equal(calls[0].attended, 3 * x) and torch.equal(calls[0].weights()[0, 0], 3 * torch.eye(2))


def test_measurements_are_made_in_float32_under_autocast_and_of_coarser_weights(gpt, monkeypatch):
    """In bfloat16 the parts of a logit would not add up, and the model itself must stay as it is."""
    recording = new_recording()
    plain = take_snapshot(gpt, 0, recording, with_losses=True)
    coarse = take_snapshot(gpt, 0, recording, with_losses=True, autocast=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        inside = take_snapshot(gpt, 0, recording, with_losses=True)
    assert plain.details == coarse.details == inside.details and plain.loss == coarse.loss == inside.loss
    copied = []
    monkeypatch.setattr(recorder, "in_float32", lambda gpt: copied.append(gpt) or trace.in_float32(gpt))
    stored = take_snapshot(gpt.bfloat16(), 0, recording)
    assert len(copied) == 1
    assert stored.details["probes"]["text"]["attribution_error"] <= 1e-5
    assert {parameter.dtype for parameter in gpt.parameters()} == {torch.bfloat16}
    for checks in (coarse.checks, stored.checks):  # but the maps are those of the model as it runs
        assert checks.precision == "bfloat16" and 1e-5 < checks.fidelity <= 2e-2 and checks.causality == 0
    for maps in (read_maps(gpt, TEXT)[0], coarse.maps["text"], plain.maps["text"]):  # of float32 all the same
        np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize("failing", ["read_maps", "survey", "trace", "part_means", "losses_without_each"])
def test_measuring_does_not_change_the_model(failing, monkeypatch):
    gpt = random_gpt(replace(GROUPED, value_embeddings=True, ngram_sizes=[2, 3], ngram_buckets=31, dropout=0.3)).train()
    gpt.blocks[1].eval()  # a frozen part must stay frozen
    gpt.blocks[2].attention.attend = own = gpt.blocks[2].attention.attend
    gpt.blocks[0].feed_forward.register_forward_hook(lambda _, args, result: result + 0 * torch.rand(1))
    modes = [module.training for module in gpt.modules()]
    weights, generator = copy.deepcopy(gpt.state_dict()), torch.get_rng_state()
    measure = getattr(recorder, failing)

    def interrupted(x):
        raise OSError("in the middle")

    def fails(*args, **options):
        with monkeypatch.context() as patch:
            patch.setattr(gpt.blocks[1].feed_forward, "activation", interrupted)
            return measure(*args, **options)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="in the middle"):
        patch.setattr(recorder, failing, fails)
        take_snapshot(gpt, 0, new_recording(), with_losses=True)
    take_snapshot(gpt, 0, new_recording(), with_losses=True)
    hooks = [hook for module in gpt.modules() for hook in (*module._forward_hooks, *module._forward_pre_hooks)]
    assert len(hooks) == 1  # that of this test
    assert torch.equal(torch.get_rng_state(), generator)
    assert [module.training for module in gpt.modules()] == modes
    assert all(torch.equal(weights[name], value) for name, value in gpt.state_dict().items())
    assert gpt.blocks[2].attention.attend is own and "attend" not in vars(gpt.blocks[0].attention)
    assert not any("forward" in vars(block) for block in gpt.blocks)
    assert all(parameter.grad is None for parameter in gpt.parameters())


def test_a_compiled_model_is_captured_without_its_compiled_code_and_is_not_compiled_again():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    expected, gpt, blocks = read_maps(random_gpt(GROUPED), TEXT)[0], random_gpt(GROUPED), random_gpt(GROUPED)
    gpt.compile(backend=backend)
    for block in blocks.blocks:
        block.compile(backend=backend)
    for model in (gpt, blocks, torch.compile(random_gpt(GROUPED), backend=backend)):
        assert torch.equal(read_maps(model, TEXT)[0], expected)
    assert not compiled
    gpt, tokens = random_gpt(GROUPED), torch.tensor([TEXT])
    loss = torch.compile(gpt.loss, backend=backend)
    for _ in range(3):  # a capture between compiled steps
        loss(tokens, tokens)
        take_snapshot(gpt, 0, new_recording(), with_losses=True)
    assert len(compiled) == 1


def test_probes_of_one_and_two_tokens_are_measured():
    gpt = random_gpt(replace(GROUPED, num_layers=1))
    probes = {"text": Probe([7], ["a"]), "repeated": Probe([1, 2, 1, 2], ["x"] * 4, 2)}
    snapshot = take_snapshot(gpt, 7, Recording(probes), with_losses=True)
    assert snapshot.step == 7 and snapshot.checks.causality == 0 and (snapshot.maps["text"] == 1).all()
    assert torch.equal(torch.from_numpy(snapshot.maps["repeated"]), read_maps(gpt, [1, 2, 1, 2])[0])
    # One token predicts nothing that is known.
    assert math.isnan(snapshot.loss["text"]) and np.isnan([*snapshot.ablation["text"].values()]).all()
    found = snapshot.details["probes"]["text"]
    assert found["attribution_error"] is None and {*map(tuple, found["attribution"])} == {(None,)}
    snapshot = take_snapshot(gpt, 7, Recording(probes | {"text": Probe([1, 2], ["a", "b"])}), with_losses=True)
    assert snapshot.details["probes"]["text"]["bits"][0] > 0 and snapshot.ablation["repeated"]["head 0.3"].rise != 0


def test_a_repeated_probe_has_distinct_tokens_that_are_repeated_once():
    some = range(0, 100, 2)
    probe = draw_repeated_probe(some, 10, str, first=0)
    assert probe.period == 10 and probe.labels == [str(token) for token in probe.tokens]
    tokens = probe.tokens
    assert tokens[0] == 0 and tokens[1:11] == tokens[11:] and len(set(tokens)) == 11 and set(tokens) <= set(some)
    assert draw_repeated_probe(some, 10, str, first=0) == probe
    assert len(draw_repeated_probe(range(5), 5, str).tokens) == 10
    few = draw_repeated_probe(range(4), 8, str, first=0)
    assert few.period == 3 and sorted(few.tokens) == [0, 1, 1, 2, 2, 3, 3]


def test_a_snapshot_and_its_details_can_be_read_back(tmp_path, gpt):
    recorded = new_recording(tmp_path)
    written = take_snapshot(gpt, 8, recorded, lambda token: f"({token})", with_losses=True)
    recorded.append(written)
    found = Recording.open(tmp_path, "demo")
    read, repeated = found.at(8), found.probes["repeated"]
    assert (found.tokenizer, found.name, found.steps, found.mapped) == ("fingerprint", "demo", [8], [8])
    assert found.probes == recorded.probes and found.windows["text"].texts[0] == found.probes["text"]
    for name, maps in found.maps(8).items():
        assert maps.dtype == np.float16
        np.testing.assert_allclose(maps, read_maps(gpt, found.probes[name].tokens)[0], atol=5e-4)
    with torch.no_grad():  # the first token of the second copy is told by nothing
        second_copy = gpt(torch.tensor([repeated.tokens]))[0, -7:-1]
    loss = nn.functional.cross_entropy(second_copy, torch.tensor(repeated.tokens[-6:])).item()
    assert read.loss["repeated"] == pytest.approx(loss, abs=1e-5)
    assert as_json(read.to_json(), ".4f") == as_json(written.to_json(), ".4f")
    assert read.checks.fidelity <= 1e-5 and read.checks.causality == 0 < written.checks.fidelity
    best = {(name, layer): heads.max() for name, score in written.scores.items() for layer, heads in enumerate(score)}
    expected = {f"attention/{name}/layer_{layer}": score for (name, layer), score in best.items()}
    expected |= {"attention/causality": 0, "attention/fidelity": written.checks.fidelity}
    assert metrics_of(written) == pytest.approx(expected)
    assert read.ablation["text"].keys() == read.ablation["repeated"].keys()
    assert all(change.error >= 0 for change in read.ablation["text"].values())
    assert all(math.isnan(change.error) for change in read.ablation["repeated"].values())  # of a single window
    details, shown = found.details(8), set()
    assert details["sublayers"][:3] == ["embeddings", "attention 0", "feed-forward 0"]
    assert {"token embedding", "head 0.0", "head 2.3", "feed-forward 2"} <= set(details["parts"])
    for name, probe in found.probes.items():
        measured, exact = details["probes"][name], predictions(gpt, trace.trace(gpt, torch.tensor(probe.tokens)))
        np.testing.assert_allclose(measured["bits"][:-1], exact["bits"][:-1], rtol=6e-4)
        assert measured["rank"] == exact["rank"] and measured["lens"]["token"] == exact["lens"]["token"]
        for column in (measured["bits"], *measured["attribution"], *measured["lens"]["probability"]):
            assert column[-1] is None and None not in column[:-1]
        assert measured["attribution_error"] <= 1e-5
        shown.update(*measured["top"], *measured["lens"]["token"])
    assert details["tokens"] == {str(token): f"({token})" for token in shown}
    numbers = re.findall(r"\d+\.\d+", found.path(8, ".json").read_text())
    assert all(len(number.replace(".", "").strip("0")) <= 4 for number in numbers)


def test_a_diverged_model_is_recorded_as_valid_json_and_told(tmp_path):
    gpt = random_gpt(GROUPED)
    nn.init.constant_(gpt.blocks[0].attention.qkv_proj.weight, math.nan)
    record(tmp_path, gpt, 0, with_losses=True)
    assert not any("NaN" in path.read_text() for path in tmp_path.glob("*.json*"))
    found = Recording.open(tmp_path)
    (snapshot,) = found.snapshots
    assert [sentence.endswith("the model diverged.") for sentence in warnings([snapshot])] == [True, True]
    assert math.isnan(snapshot.loss["text"]) and np.isnan([*snapshot.ablation["text"].values()]).all()
    assert set(found.details(0)["probes"]["text"]["bits"]) == {None}
    shown = [name for name, uniform in snapshot.heads.uniform.items() if uniform]  # this text has no delimiters
    assert math.isnan(snapshot.checks.fidelity) and math.isnan(snapshot.checks.causality)
    # On some processors PyTorch's kernel takes a NaN in a short text for a key that may not be attended to.
    assert not any(np.nan_to_num(snapshot.scores[name]).any() for name in shown)
    assert {"previous_token", "induction", "entropy"} < set(shown)
    assert not any(formed.any() for formed in snapshot.heads.formed.values())
