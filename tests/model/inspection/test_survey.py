"""What heads do over many windows: figures as of each window by itself, and texts that show what they should."""

import json
import math

import numpy as np
import pytest
import torch

from model.attention import CausalSelfAttention
from model.gpt import GPTConfig
from model.inspection import heads, survey
from model.inspection.archive import as_json
from model.inspection.probes import PERIODS, repeated_windows, text_windows
from model.inspection.recorder import capture
from model.inspection.survey import Habits, windows_of
from tests.gpts import random_gpt

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


def test_scores_are_means_over_windows_with_their_spread_and_halves(gpt):
    scores, habits = survey.survey(gpt, windows_of(TEXTS))
    maps = {name: [capture(gpt, text.tokens).weights for text in texts] for name, texts in TEXTS.items()}
    for name, score in heads.SCORES.items():
        texts = TEXTS[score.probe]
        if name != "fixed_distance":  # whose distance is that of all windows together
            each = torch.stack(
                [score.of(of_text, text) for of_text, text in zip(maps[score.probe], texts, strict=True)]
            )
            torch.testing.assert_close(scores[name], each.mean(0), atol=1e-5, rtol=0)
            torch.testing.assert_close(habits.spread[name], each.std(0, correction=0), atol=1e-5, rtol=0)
    before = torch.stack(maps["text"]).mean(0).diagonal(-1, -2, -1)  # (L, H, T - 1): at q - 1 the weight of query q
    expected = torch.stack([before[..., : T // 2 - 1].mean(-1), before[..., T // 2 - 1 :].mean(-1)])
    torch.testing.assert_close(habits.halves["previous_token"], expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(habits.weaker("previous_token"), expected.amin(0), atol=1e-5, rtol=0)
    back = {n: torch.stack(maps["text"]).mean(0).diagonal(-n, -2, -1).mean(-1) for n in range(2, T - T // 4 + 1)}
    for at in np.ndindex(2, 4):
        best = max(back, key=lambda n: back[n][at])
        assert habits.distance[0][at] == best
        assert scores["fixed_distance"][at] == pytest.approx(back[best][at].item(), abs=1e-5)


def test_reach_is_the_number_of_tokens_over_which_the_weight_spreads(gpt):
    _, habits = survey.survey(gpt, windows_of(TEXTS))
    weights = torch.stack([capture(gpt, text.tokens).weights for text in TEXTS["text"]])  # (N, L, H, T, T)
    nats = torch.distributions.Categorical(probs=weights).entropy().exp().mean(0)
    torch.testing.assert_close(habits.reach[0], nats[..., 1:].mean(-1), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(habits.reach[2], nats[..., T // 2 :].mean(-1), atol=1e-3, rtol=1e-3)


def test_windows_that_do_not_fit_into_memory_together_give_the_same(gpt, monkeypatch):
    scores, habits = survey.survey(gpt, windows_of(TEXTS))
    monkeypatch.setattr(survey, "MAX_WEIGHTS", 3 * 4 * T * T)
    pieces, of_pieces = survey.survey(gpt, windows_of(TEXTS))
    for name, score in scores.items():
        torch.testing.assert_close(pieces[name], score)
        torch.testing.assert_close(of_pieces.halves[name], habits.halves[name], equal_nan=True)
    assert torch.equal(of_pieces.distance, habits.distance)


def test_habits_can_be_read_back(gpt):
    _, habits = survey.survey(gpt, windows_of(TEXTS))
    read = Habits.from_json(json.loads(json.dumps(as_json(habits.to_json(), ".5f"), allow_nan=False)))
    assert (read.keys, read.offsets, read.kinds, read.queries) == (
        habits.keys,
        habits.offsets,
        habits.kinds,
        habits.queries,
    )
    for name in heads.SCORES:
        torch.testing.assert_close(read.halves[name], habits.halves[name], atol=1e-5, rtol=0, equal_nan=True)


def test_an_attention_with_a_sink_without_a_key_is_measured(gpt, monkeypatch):
    attend = CausalSelfAttention.attend
    monkeypatch.setattr(CausalSelfAttention, "attend", lambda *args, **options: attend(*args, **options) / 4)
    scores, habits = survey.survey(gpt, windows_of(TEXTS))
    assert scores["recent"].max() <= 0.25 and scores["entropy"].min() > 0.25
    assert all(score.isfinite().all() for score in scores.values()) and habits.reach.isfinite().all()


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


def test_a_diverged_model_has_no_habits(gpt):
    broken = random_gpt(CONFIG)
    torch.nn.init.constant_(broken.blocks[0].attention.qkv_proj.weight, math.nan)
    scores, habits = survey.survey(broken, windows_of(TEXTS))
    assert all(score.isnan().all() for score in scores.values())
    json.dumps(as_json(habits.to_json(), ".5f"), allow_nan=False)
