"""What heads do over many windows: figures as of each window by itself, and texts that show what they should."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from model.attention import CausalSelfAttention
from model.gpt import GPTConfig
from model.inspection import heads, survey
from model.inspection.probes import PERIODS, repeated_windows, text_windows
from model.inspection.recorder import capture
from model.inspection.survey import windows_of
from model.pages.describe import find_patterns
from tests.gpts import random_gpt
from tests.measurements import survey_maps

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
    return {name: torch.stack([capture(gpt, text.tokens).weights for text in of]) for name, of in TEXTS.items()}


@pytest.mark.parametrize(("length", "rows"), [(8, 16), (200, 5), (2000, 1)])
def test_parts_are_averaged_over_about_a_thousand_tokens(length, rows):
    texts = text_windows(list(range(16 * length)), length, str)
    sample = windows_of({"text": texts})["text"].sample
    assert sample.tolist() == [text.tokens for text in texts[:rows]]


def test_scores_are_means_over_windows_with_their_spread_halves_and_reach(gpt, maps):
    scores, habits = survey.survey(gpt, windows_of(TEXTS))
    alone = [
        survey_maps(
            {"text": maps["text"][i], "repeated": maps["repeated"][i % 8]},
            {"text": TEXTS["text"][i], "repeated": TEXTS["repeated"][i % 8]},
        )[0]
        for i in range(len(TEXTS["text"]))
    ]
    for name, score in heads.SCORES.items():
        if name != "fixed_distance":  # whose distance is that of all windows together
            each = np.stack([one[name] for one in alone[: len(TEXTS[score.probe])]])
            close(scores[name], each.mean(0))
            close(habits.spread[name], each.std(0))
    before = maps["text"].mean(0).diagonal(-1, -2, -1)  # (L, H, T - 1): at q - 1 the weight of query q
    expected = torch.stack([before[..., : T // 2 - 1].mean(-1), before[..., T // 2 - 1 :].mean(-1)])
    close(habits.halves["previous_token"], expected)
    back = {n: maps["text"].mean(0).diagonal(-n, -2, -1).mean(-1) for n in range(2, T - T // 4 + 1)}
    for at in np.ndindex(2, 4):
        best = max(back, key=lambda n: back[n][at])
        assert habits.distance[0][at] == best
        assert scores["fixed_distance"][at] == pytest.approx(back[best][at].item(), abs=1e-5)
    tokens = torch.distributions.Categorical(probs=maps["text"]).entropy().exp().mean(0)  # over which weight spreads
    close(habits.reach[0], tokens[..., 1:].mean(-1), atol=2e-3)
    close(habits.reach[2], tokens[..., T // 2 :].mean(-1), atol=2e-3)


@pytest.mark.parametrize("window", [1, 3, 8, 20, 99])
def test_chance_is_uniform_attention_within_the_window_of_the_model(window):
    """In plain loops; and heads that have learned nothing, whose queries and keys are 0, have formed no pattern."""
    gpt = random_gpt(replace(CONFIG, window=window))
    for block in gpt.blocks:
        torch.nn.init.zeros_(block.attention.qkv_proj.weight)
    scores, habits = survey.survey(gpt, windows_of(TEXTS))
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
            assert habits.uniform[name] == pytest.approx(np.mean(means) if means else 0, abs=1e-6), name
        close(scores[name], np.full((2, 4), habits.uniform[name]))
    assert habits.uniform["entropy"] == pytest.approx(float(window > 1)) and habits.attention_window == window
    assert not any(pattern.holds.any() for pattern in find_patterns(habits))


def test_windows_that_do_not_fit_into_memory_together_give_the_same(gpt, monkeypatch):
    scores, habits = survey.survey(gpt, windows_of(TEXTS))
    monkeypatch.setattr(survey, "MAX_WEIGHTS", 3 * 4 * T * T)
    pieces, of_pieces = survey.survey(gpt, windows_of(TEXTS))
    for name, score in scores.items():
        close(pieces[name], score)
        close(of_pieces.halves[name], habits.halves[name])
    assert (of_pieces.distance == habits.distance).all()
    assert (of_pieces.kinds, [*map(len, of_pieces.keys)]) == (habits.kinds, [*map(len, habits.keys)])


def test_an_attention_with_a_sink_without_a_key_is_measured(gpt, monkeypatch):
    attend = CausalSelfAttention.attend
    monkeypatch.setattr(CausalSelfAttention, "attend", lambda *args, **options: attend(*args, **options) / 4)
    scores, habits = survey.survey(gpt, windows_of(TEXTS))
    assert scores["recent"].max() <= 0.25 + 1e-6 and scores["entropy"].min() > 0.25
    assert all(np.isfinite(score).all() for score in scores.values()) and np.isfinite(habits.reach).all()


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
