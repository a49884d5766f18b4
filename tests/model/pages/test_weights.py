"""The packed weights of a page that holds a model."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from model.inspection.recording import take_snapshot
from model.pages import weights
from model.pages.page import run_page
from tests.attentions import with_scores
from tests.command_lines import mistake
from tests.gpts import MODERN, TOKENS, random_gpt, repeating_gpt
from tests.html_pages import Page
from tests.model.pages.model_pages import LETTERS, OPENING, PROBE, TOKENIZER, pack, plain_gpt, recording_of
from tests.small_runs import assert_same


@torch.no_grad()
def test_the_cost_of_rounding_the_weights_is_packed(monkeypatch):
    """test_engine.py runs them."""
    exact = random_gpt(MODERN)(TOKENS[None])[0].log_softmax(-1)
    for limit, kind in ((weights.EXACT_BYTES, "bfloat16"), (0, "int8")):
        monkeypatch.setattr(weights, "EXACT_BYTES", limit)
        packed = pack(random_gpt(MODERN))
        assert packed.manifest["kind"] == kind
        rounded = random_gpt(MODERN)
        for weight in rounded.parameters():
            step = weight.abs().amax(1, keepdim=True) / 127
            weight.copy_(weight.bfloat16() if kind == "bfloat16" else (weight / step).round() * step)
        cost = F.kl_div(rounded(TOKENS[None])[0].log_softmax(-1), exact, reduction="batchmean", log_target=True)
        assert packed.manifest["parity"]["bits"] == [pytest.approx(cost.item() / math.log(2), rel=1e-3)]


def test_packing_does_not_change_the_model_of_any_type():
    """Also with a parameter of a user's own that is a single number."""
    gpt = random_gpt(MODERN).bfloat16().train()
    gpt.blocks[0].attention.gate = torch.nn.Parameter(torch.tensor(0.5))
    before = copy.deepcopy(gpt.state_dict())
    assert pack(gpt).manifest["parity"]["bits"] == [0.0]  # nothing is rounded
    assert_same(gpt.state_dict(), before)
    assert gpt.training


def test_an_attention_that_differs_only_beyond_the_probe_is_refused(replace_attend):
    gpt = random_gpt(replace(MODERN, context_length=3 * PROBE.length))
    gpt.blocks[1].attention.window = PROBE.length
    with mistake("masks"):
        pack(gpt)
    gpt.blocks[1].attention.window = None
    nearest = with_scores(lambda scores: scores - torch.full_like(scores, 99.0).tril(-PROBE.length))
    replace_attend(nearest)
    with mistake("attend"):
        pack(gpt)


def test_weights_of_ones_own_that_change_the_logits_are_refused():
    gpt = random_gpt(MODERN)
    gpt.lm_head.bias = torch.nn.Parameter(torch.ones(50))
    with mistake("weights"):
        pack(gpt)


def test_a_page_measures_the_steps_whose_weights_it_holds_if_they_were_not_recorded():
    gpt, recording = repeating_gpt(), recording_of(*LETTERS)
    untrained = random_gpt(gpt.config)
    for step, model in ((0, untrained), (3, gpt), (8, gpt)):
        recording.append(take_snapshot(model, step, recording))
    page = Page(run_page("tiny", recording, models=[(0, untrained), (5, gpt), (8, gpt)], tokenizer=TOKENIZER))
    snapshots = page.data["run"]["snapshots"]
    held = {shown["step"]: shown.get("weights") for shown in snapshots}
    assert held == {0: 0, 3: None, 5: 1, 8: 2} and page.json("manifest")["steps"] == [0, 5, 8]
    assert [bool(shown["ablation"]) for shown in snapshots] == [True, False, True, True]
    assert page.data["text"] == LETTERS[0]
    assert page.data["experiments"]["effects"]


def test_the_page_of_a_model_that_is_too_large_says_so_and_has_what_was_recorded(monkeypatch):
    monkeypatch.setattr(weights, "EXACT_BYTES", 1000)
    monkeypatch.setattr(weights, "MAX_BYTES", 1000)
    gpt, recording = plain_gpt(3), recording_of(OPENING)
    recording.append(take_snapshot(gpt, 0, recording))
    page = Page(run_page("tiny", recording, models=[(0, gpt)], tokenizer=TOKENIZER))
    (note,) = page.data["notes"]
    assert "0 MB" in note  # what it would take, and the limit
    assert "text" not in page.data and "manifest" not in page.scripts
    # Nothing is measured either: for a model too large for a page that would take hours on a CPU.
    (shown,) = page.data["run"]["snapshots"]
    assert not shown["ablation"]
