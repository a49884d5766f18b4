"""What heads do over many windows: figures as of each window by itself, and texts that show what they should."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from model.attention import CausalSelfAttention
from model.gpt import GPTConfig
from model.inspection import heads, survey
from model.inspection.probes import PERIODS, Probe, repeated_windows, text_windows
from model.inspection.recorder import read_maps
from model.inspection.survey import windows_of
from tests.gpts import random_gpt
from tests.measurements import causal_softmax, survey_maps

T = 32
CONFIG = GPTConfig(vocab_size=60, context_length=T, num_layers=2, num_heads=4, num_kv_heads=2, embed_dim=32)
LABELS = ["a", "\n", "b", "(", "c ", " d"]


def label(token: int) -> str:
    return LABELS[token % 6]


TOKENS = torch.randint(60, (500,), generator=torch.Generator().manual_seed(0)).tolist()
TEXTS = {"text": text_windows(TOKENS, T, label), "repeated": repeated_windows(range(60), T, label, first=0)}


@pytest.fixture(scope="module")
def gpt():
    return random_gpt(CONFIG)


def close(found, expected, atol=1e-5):
    np.testing.assert_allclose(found, np.asarray(expected), atol=atol, rtol=1e-5)


@pytest.fixture(scope="module")
def maps(gpt):
    """(N, L, H, T, T) of each kind."""
    return {name: torch.stack([read_maps(gpt, text.tokens)[0] for text in of]) for name, of in TEXTS.items()}


@pytest.mark.parametrize(("length", "rows"), [(8, 16), (200, 5), (2000, 1)])
def test_parts_are_averaged_over_about_a_thousand_tokens(length, rows):
    texts = text_windows(list(range(16 * length)), length, str)
    sample = windows_of({"text": texts})["text"].sample
    assert sample.tolist() == [text.tokens for text in texts[:rows]]


@pytest.mark.parametrize("limit", [survey.MAX_WEIGHTS, 3 * 4 * T * T])  # all windows together, or three at a time
def test_scores_are_means_over_windows_with_their_spread_and_reach(limit, gpt, maps, monkeypatch):
    monkeypatch.setattr(survey, "MAX_WEIGHTS", limit)
    found = survey.survey(gpt, windows_of(TEXTS))
    alone = []
    for i in range(len(TEXTS["text"])):
        kinds = {"text": i, "repeated": i % 8}
        of_kinds = [{kind: of[kind][at] for kind, at in kinds.items()} for of in (maps, TEXTS)]
        alone.append(survey_maps(*of_kinds).scores)
    for name, score in heads.SCORES.items():
        each = np.stack([one[name] for one in alone[: len(TEXTS[score.probe])]])
        close(found.scores[name], each.mean(0))
        close(found.spread[name], each.std(0))
    tokens = torch.distributions.Categorical(probs=maps["text"]).entropy().exp().mean(0)  # over which weight spreads
    close(found.reach, tokens[..., 1:].mean(-1), atol=2e-3)
    assert found.windows == {"text": [len(TEXTS["text"]), T], "repeated": [8, T]}


BACK = {"before": 1, "itself": 0}


@pytest.mark.parametrize(
    ("first", "second", "formed"),
    [("before", "before", True), ("before", None, False), (None, "before", False), ("before", "itself", False)],
)
def test_what_holds_in_one_half_of_the_window_only_has_not_formed(first, second, formed):
    """Its score over the whole window is above the threshold nevertheless."""
    uniform = heads.uniform_attention(64)
    halves = [uniform if one is None else torch.eye(64).roll(-BACK[one], -1).tril() for one in (first, second)]
    weights = torch.cat([halves[0][:32], halves[1][32:]])
    probe = Probe([*range(64)], ["x"] * 64)
    maps = {"text": weights[None, None], "repeated": uniform[None, None]}
    found = survey_maps(maps, {"text": probe, "repeated": probe})
    score, least = found.scores["previous_token"].item(), heads.threshold(found.uniform["previous_token"])
    assert score > least and found.formed["previous_token"].item() is formed


def test_a_pattern_that_one_half_cannot_show_may_form_in_the_other():
    """The only line break stands in the second half."""
    labels = ["x"] * 40 + ["\n"] + ["x"] * 23
    probe = Probe([*range(64)], labels)
    weights = causal_softmax(20.0 * heads.line_start(probe).float())[None, None]
    found = survey_maps({"text": weights, "repeated": weights}, {"text": probe, "repeated": probe})
    assert found.formed["line_start"].item() and not found.formed["delimiter"].item() | found.formed["sink"].item()


@pytest.mark.parametrize("window", [1, 3, 8, 20, 99])
def test_chance_is_uniform_attention_within_the_window_of_the_model(window):
    """In plain loops; and heads that have learned nothing, whose queries and keys are 0, have formed no pattern."""
    gpt = random_gpt(replace(CONFIG, window=window))
    for block in gpt.blocks:
        torch.nn.init.zeros_(block.attention.qkv_proj.weight)
    found = survey.survey(gpt, windows_of(TEXTS, window))
    for name, score in heads.SCORES.items():
        if score.keys:
            means = []
            for text in TEXTS[score.probe]:
                looked_at, shares = score.keys(text).tolist(), []
                for query in range(1, T):
                    seen = range(max(0, query - window + 1), query + 1)
                    hits = sum(looked_at[query][key] for key in seen)
                    shares += [hits / len(seen)] if 0 < hits < len(seen) else []
                means += [np.mean(shares)] if shares else []
            assert found.uniform[name] == pytest.approx(np.mean(means) if means else 0, abs=1e-6), name
        close(found.scores[name], np.full((2, 4), found.uniform[name]))
    assert found.uniform["entropy"] == pytest.approx(float(window > 1))
    assert not any(formed.any() for formed in found.formed.values())


def test_losses_count_every_next_token_of_text_and_those_that_a_repetition_tells():
    windows = windows_of(TEXTS)
    assert windows["text"].predictions.all() and windows["text"].predictions.shape == (len(TEXTS["text"]), T - 1)
    for text, counted in zip(TEXTS["repeated"], windows["repeated"].predictions.tolist(), strict=True):
        assert counted == [text.tokens[at] in text.tokens[:at] for at in range(T - 1)]


def test_an_attention_with_a_sink_without_a_key_is_measured(gpt, monkeypatch):
    attend = CausalSelfAttention.attend
    monkeypatch.setattr(CausalSelfAttention, "attend", lambda *args, **options: attend(*args, **options) / 4)
    found = survey.survey(gpt, windows_of(TEXTS))
    assert found.scores["recent"].max() <= 0.25 + 1e-6 and found.scores["entropy"].min() > 0.25
    assert all(np.isfinite(score).all() for score in found.scores.values()) and np.isfinite(found.reach).all()


def test_text_windows_are_spread_over_the_text():
    windows = text_windows(range(1000), 50, str)
    assert len(windows) == 16 and {len(window.tokens) for window in windows} == {50}
    starts = [window.tokens[0] for window in windows]
    assert starts[0] == 0 and starts[-1] == 950 and max(np.diff(starts)) - min(np.diff(starts)) <= 1
    assert [len(one.tokens) for one in text_windows(range(7), 50, str)] == [7]
    assert len(text_windows(range(120), 50, str)) == 2


@pytest.mark.parametrize("length", [24, 128, 1024])
def test_repeated_windows_have_several_periods_and_none_is_half_a_window(length):
    windows = repeated_windows(range(5000), length, str, first=0)
    assert repeated_windows(range(5000), length, str, first=0) == windows != repeated_windows(range(5000), length, str)
    periods = set()
    for window in windows:
        tokens = window.tokens[1:]
        period = next(p for p in range(1, length) if tokens[p:] == tokens[:-p])
        assert window.tokens[0] == 0 and len(window.tokens) == length and len(set(tokens)) == period
        periods.add(period)
    assert len(periods) == len(PERIODS) and all(abs(period - length / 2) >= 2 for period in periods)
    assert max(periods) < length / 2
