"""Head scores against their definitions in plain loops, over many windows, and for heads that have learned nothing."""

import math
from dataclasses import replace
from itertools import cycle
from statistics import mean

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from model.gpt import GPTConfig
from model.inspection import heads
from model.inspection.heads import measure_heads
from model.inspection.reading import read
from model.inspection.texts import Texts, repeated_windows, spread_starts
from tests.gpts import random_gpt
from tests.measurements import causal_softmax, heads_of, noise, probes_of, text_of, uniform_maps

TEXT = [
    "def",
    " \u093f",
    "(",
    "\u0939\u093f",
    "):",
    "\n    ",
    "\\xe2",
    " x",
    "\n",
    "(e",
    ' ("',
    "é",
    "(",
    "1",
    "))",
    "\n\n",
]
TEXT += [" 1", " +", "_"]
SIGNS = {"(", "):", "\n    ", "\n", ' ("', "))", "\n\n", " +", "_"}  # without a letter, a digit or a combining mark


@pytest.mark.parametrize(
    "period, first, temperature, total",
    [(2, 0, 2.0, 1.0), (3, 1, 100.0, 2.0), (5, 1, 0.0, 1.0), (8, 0, 100.0, 1.0), (8, 1, 2.0, 2.0)],
)
def test_scores_equal_their_definitions_in_loops_and_are_at_most_1(period, first, temperature, total):
    """total: the sum of each query's weights, which a user's own attention may choose."""
    probes, length = probes_of(TEXT, period, first), len(TEXT)
    maps = {name: causal_softmax(temperature * values) for name, values in noise(probes).items()}
    scores = heads_of({name: total * of_probe for name, of_probe in maps.items()}, probes).scores
    signs = [q for q in range(length) if TEXT[q] in SIGNS]
    starts = {q: max((s for s in (6, 9, 16) if s < q), default=None) for q in range(length) if q not in (6, 9, 16)}
    for layer, head in [(0, 0), (1, 2)]:
        a = maps["text"][layer, head].tolist()
        r = maps["repeated"][layer, head].tolist()
        later = range(1, length)
        second_half = range(first + period, first + 2 * period)
        expected = {
            "previous_token": [a[q][q - 1] for q in later],
            "duplicate": [r[q][q - period] for q in second_half],
            "induction": [r[q][q - period + 1] for q in second_half],
            "first_token": [a[q][0] for q in later],
            "current_token": [a[q][q] for q in later],
            "recent": [sum(a[q][q - 7 : q + 1]) for q in range(8, length)],
            "delimiter": [sum(a[q][k] for k in signs if k < q) for q in range(3, length)],
            "line_start": [a[q][start] for q, start in starts.items() if start is not None],
            "entropy": [sum(-p * math.log(p) for p in a[q] if p > 0) / math.log(q + 1) for q in later],
        }
        assert list(expected) == list(heads.SCORES), "write a new score's definition into `expected`"
        for name, values in expected.items():
            value = mean(values) if name == "entropy" else min(1, total * mean(values))
            assert 0 <= scores[name][layer, head] <= 1, name
            assert scores[name][layer, head].item() == pytest.approx(value, abs=1e-5), name


def test_information_is_the_divergence_from_uniform_attention():
    assert heads.information(0.9, 0.1) == pytest.approx(0.8 * math.log(9))
    assert heads.information(1.0, 0.25) == pytest.approx(math.log(4))
    assert all(heads.information(score, 0.4) == 0 for score in (0.4, 0.1, math.nan))


# ---- over many windows

T = 32
CONFIG = GPTConfig(vocab_size=60, context_length=T, num_layers=2, num_heads=4, num_kv_heads=2, embed_dim=32)
LABELS = ["a", "\n", "b", "(", "c ", " d"]


def label(token):
    return LABELS[token % 6]


TOKENS = torch.randint(60, (500,), generator=torch.Generator().manual_seed(0)).tolist()
WINDOWS = {
    "text": Texts.of([TOKENS[start : start + T] for start in spread_starts(500, T)], label),
    "repeated": Texts.of(repeated_windows(range(60), T, first=0), label, kind="repeated"),
}


@pytest.fixture(scope="module")
def gpt():
    return random_gpt(CONFIG)


def close(found, expected, atol=1e-5):
    np.testing.assert_allclose(found, np.asarray(expected), atol=atol, rtol=1e-5)


@pytest.mark.parametrize("limit", [heads.MAX_WEIGHTS, 3 * 4 * T * T])  # all windows together, or three at a time
def test_scores_over_windows_have_mean_standard_error_and_reach(limit, gpt, monkeypatch):
    monkeypatch.setattr(heads, "MAX_WEIGHTS", limit)
    found = measure_heads(gpt, WINDOWS)
    alone, tokens = [], []
    for text, repeated in zip(WINDOWS["text"].pieces(1), cycle(WINDOWS["repeated"].pieces(1)), strict=False):
        windows = {"text": text, "repeated": repeated}
        maps = {kind: read(gpt, window).maps for kind, window in windows.items()}
        alone.append(heads_of(maps, windows).scores)
        tokens.append(Categorical(probs=maps["text"]).entropy().exp())  # perplexity of the weights
    for name, score in heads.SCORES.items():
        each = np.stack([one[name] for one in alone[: len(WINDOWS[score.kind])]])
        close(found.scores[name], each.mean(0))
        close(found.errors[name], each.std(0, ddof=1) / len(each) ** 0.5)
        assert found.counts[name] == len(each)
    close(found.reach, torch.stack(tokens).mean(0)[..., 1:].mean(-1), atol=2e-3)
    assert found.windows == {"text": [len(WINDOWS["text"]), T], "repeated": [8, T]}


def test_of_a_long_window_some_queries_are_measured_in_every_part(gpt, monkeypatch):
    """Their scores estimate those of all queries, within the errors that are told."""
    exact = measure_heads(gpt, WINDOWS)
    monkeypatch.setattr(heads, "WHOLE", T - 1)
    monkeypatch.setattr(heads, "QUERIES", T // 2)
    windows = {kind: replace(texts) for kind, texts in WINDOWS.items()}  # not those whose patterns are cached
    measured = heads.measured_queries(windows["text"])
    assert measured.shape == (15, 4, 4) and (measured // 8 == torch.arange(4)[:, None]).all()
    assert {*measured.flatten().tolist()} == {*range(T)}
    some = measure_heads(gpt, windows)
    for name in ("previous_token", "current_token", "recent", "entropy"):
        assert (np.abs(some.scores[name] - exact.scores[name]) < 4 * some.errors[name]).all(), name
        assert not np.array_equal(some.scores[name], exact.scores[name])


@pytest.mark.parametrize("showing", [1, 5])
def test_only_windows_that_can_show_a_pattern_count_for_its_standard_error(gpt, showing):
    """Lines begin in some of 16 windows only: their score does not depend on the number of other windows."""
    tokens = torch.randint(60, (16, T), generator=torch.Generator().manual_seed(1))
    tokens[:, ::4] = 6 * (tokens[:, ::4] // 6) + 1  # line breaks
    tokens[showing:] = 6 * (tokens[showing:] // 6)  # and none in the others
    found, alone = (measure_heads(gpt, WINDOWS | {"text": Texts.of(tokens[:n], label)}) for n in (16, showing))
    assert found.counts["line_start"] == showing and found.counts["first_token"] == 16
    assert np.isnan(found.errors["line_start"]).all() == (showing == 1)
    close(found.errors["line_start"], alone.errors["line_start"])
    close(found.scores["line_start"], alone.scores["line_start"])


@pytest.mark.parametrize("window", [None, 5])
def test_documents_in_one_window_are_measured_as_if_each_were_read_alone(window):
    """Two documents of equal length in one window count as two windows, for all scores without a repetition."""
    gpt = random_gpt(replace(CONFIG, window=window))
    cut = T // 2
    halves = Texts.of(WINDOWS["text"].tokens.reshape(-1, cut), label, attention_window=window)
    documents = torch.arange(T).expand(len(WINDOWS["text"]), -1) // cut
    whole = Texts.of(WINDOWS["text"].tokens, label, document_ids=documents, attention_window=window)
    found, expected = (measure_heads(gpt, WINDOWS | {"text": texts}) for texts in (whole, halves))
    for name in ("previous_token", "first_token", "current_token", "entropy"):  # each query counts for these
        close(found.scores[name], expected.scores[name])
        assert found.uniform[name] == pytest.approx(expected.uniform[name], abs=1e-6)
    close(found.reach, expected.reach, atol=1e-4)


BACK = {"before": torch.eye(64).roll(-1, -1).tril(), "itself": torch.eye(64), None: uniform_maps(64)}


@pytest.mark.parametrize(
    "first, second, formed",
    [("before", "before", True), ("before", None, False), (None, "before", False), ("before", "itself", False)],
)
def test_a_pattern_in_one_half_of_the_window_only_has_not_formed(first, second, formed):
    """Although its score over the whole window is above the threshold."""
    weights = torch.cat([BACK[first][:32], BACK[second][32:]])[None, None]
    found = heads_of({"text": weights, "repeated": weights}, probes_with(["x"] * 64))
    assert found.scores["previous_token"].item() > heads.threshold(found.uniform["previous_token"])
    assert found.formed["previous_token"].item() is formed


def test_a_pattern_that_only_one_half_can_show_may_form_there():
    """The only line break is in the second half."""
    probes = probes_with(["x"] * 40 + ["\n"] + ["x"] * 23)
    weights = causal_softmax(20.0 * heads.SCORES["line_start"].keys(probes["text"]).float())[None]
    formed = heads_of({"text": weights, "repeated": weights}, probes).formed
    assert [name for name in ("line_start", "delimiter", "first_token") if formed[name].item()] == ["line_start"]


def probes_with(labels):
    return {kind: text_of(range(64), labels, kind) for kind in ("text", "repeated")}


@pytest.mark.parametrize("window", [1, 3, 8, 20, 99])
def test_heads_that_have_learned_nothing_score_chance_and_have_formed_no_pattern(window):
    """Their queries and keys are 0: all keys within the model's window get equal weight."""
    gpt = random_gpt(replace(CONFIG, window=window))
    for block in gpt.blocks:
        torch.nn.init.zeros_(block.attention.qkv_proj.weight)
    found = measure_heads(gpt, {kind: replace(texts, attention_window=window) for kind, texts in WINDOWS.items()})
    for name in heads.SCORES:
        close(found.scores[name], np.full((2, 4), found.uniform[name]))
    assert found.uniform["entropy"] == pytest.approx(float(window > 1))
    assert not any(formed.any() for formed in found.formed.values())
