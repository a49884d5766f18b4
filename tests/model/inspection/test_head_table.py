"""What heads do over many windows: figures as of each window by itself, and texts that show what they should."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from model.gpt import GPTConfig
from model.inspection import heads
from model.inspection.heads import measure_heads
from model.inspection.reading import read
from model.inspection.texts import Texts, repeated_windows, spread_starts
from tests.gpts import random_gpt
from tests.measurements import causal_softmax, heads_of, text_of, uniform_maps

T = 32
CONFIG = GPTConfig(vocab_size=60, context_length=T, num_layers=2, num_heads=4, num_kv_heads=2, embed_dim=32)
LABELS = ["a", "\n", "b", "(", "c ", " d"]


def label(token: int) -> str:
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


@pytest.fixture(scope="module")
def maps(gpt):
    """(N, L, H, T, T) of each kind."""
    return {kind: torch.stack([read(gpt, row).maps for row in texts.tokens]) for kind, texts in WINDOWS.items()}


def rows_of(texts, rows):
    """Some of the texts, the others left out."""
    labels = [texts.labels[row] for row in rows]
    documents = None if texts.document_ids is None else texts.document_ids[rows]
    return Texts(texts.tokens[rows], labels, texts.kind, documents, texts.attention_window)


@pytest.mark.parametrize("limit", [heads.MAX_WEIGHTS, 3 * 4 * T * T])  # all windows together, or three at a time
def test_scores_are_means_over_windows_with_their_standard_error_and_reach(limit, gpt, maps, monkeypatch):
    monkeypatch.setattr(heads, "MAX_WEIGHTS", limit)
    found = measure_heads(gpt, WINDOWS)
    alone = []
    for i in range(len(WINDOWS["text"])):
        rows = {"text": i, "repeated": i % 8}
        of_rows = {kind: maps[kind][row] for kind, row in rows.items()}
        alone.append(heads_of(of_rows, {kind: rows_of(WINDOWS[kind], [row]) for kind, row in rows.items()}).scores)
    for name, score in heads.SCORES.items():
        each = np.stack([one[name] for one in alone[: len(WINDOWS[score.probe])]])
        close(found.scores[name], each.mean(0))
        close(found.errors[name], each.std(0, ddof=1) / len(each) ** 0.5)
        assert found.counts[name] == len(each)
    tokens = torch.distributions.Categorical(probs=maps["text"]).entropy().exp().mean(0)  # over which weight spreads
    close(found.reach, tokens[..., 1:].mean(-1), atol=2e-3)
    assert found.windows == {"text": [len(WINDOWS["text"]), T], "repeated": [8, T]}


@pytest.mark.parametrize("showing", [1, 5])
def test_the_standard_error_is_of_the_windows_that_can_show_the_pattern(gpt, showing):
    """Lines begin in some of 16 windows only: what is told of these does not depend on how many others there are."""
    tokens = torch.randint(60, (16, T), generator=torch.Generator().manual_seed(1))
    tokens[:, ::4] = 6 * (tokens[:, ::4] // 6) + 1  # line breaks
    tokens[showing:] = 6 * (tokens[showing:] // 6)  # and none in the others
    some = Texts.of(tokens, label)
    found, alone = (measure_heads(gpt, WINDOWS | {"text": of}) for of in (some, rows_of(some, range(showing))))
    assert found.counts["line_start"] == showing and found.counts["sink"] == 16
    assert np.isnan(found.errors["line_start"]).all() == (showing == 1)
    close(found.errors["line_start"], alone.errors["line_start"])
    close(found.scores["line_start"], alone.scores["line_start"])


@pytest.mark.parametrize("window", [None, 5])
def test_documents_are_measured_as_if_each_were_read_alone(window):
    """Two documents of equal length in one window count as two windows do, but for what repeats and what is halves."""
    gpt = random_gpt(replace(CONFIG, window=window))
    cut = T // 2
    halves = Texts.of(WINDOWS["text"].tokens.reshape(-1, cut), label, attention_window=window)
    documents = torch.arange(T).expand(len(WINDOWS["text"]), -1) // cut
    whole = Texts.of(WINDOWS["text"].tokens, label, document_ids=documents, attention_window=window)
    found, expected = (measure_heads(gpt, WINDOWS | {"text": texts}) for texts in (whole, halves))
    for name in ("previous_token", "sink", "current_token", "entropy"):  # for which each query counts
        close(found.scores[name], expected.scores[name])
        assert found.uniform[name] == pytest.approx(expected.uniform[name], abs=1e-6)
    close(found.reach, expected.reach, atol=1e-4)


BACK = {"before": torch.eye(64).roll(-1, -1).tril(), "itself": torch.eye(64), None: uniform_maps(64)}


@pytest.mark.parametrize(
    ("first", "second", "formed"),
    [("before", "before", True), ("before", None, False), (None, "before", False), ("before", "itself", False)],
)
def test_what_holds_in_one_half_of_the_window_only_has_not_formed(first, second, formed):
    """Its score over the whole window is above the threshold nevertheless."""
    weights = torch.cat([BACK[first][:32], BACK[second][32:]])[None, None]
    probes = {kind: text_of(range(64), kind=kind) for kind in ("text", "repeated")}
    found = heads_of(dict.fromkeys(probes, weights), probes)
    assert found.scores["previous_token"].item() > heads.threshold(found.uniform["previous_token"])
    assert found.formed["previous_token"].item() is formed


def test_a_pattern_that_one_half_cannot_show_may_form_in_the_other():
    """The only line break stands in the second half."""
    labels = ["x"] * 40 + ["\n"] + ["x"] * 23
    probes = {kind: text_of(range(64), labels, kind) for kind in ("text", "repeated")}
    weights = causal_softmax(20.0 * heads.SCORES["line_start"].keys(probes["text"]).float())
    formed = heads_of(dict.fromkeys(probes, weights[None]), probes).formed
    assert [name for name in ("line_start", "delimiter", "sink") if formed[name].item()] == ["line_start"]


@pytest.mark.parametrize("window", [1, 3, 8, 20, 99])
def test_chance_is_uniform_attention_within_the_window_of_the_model(window):
    """In plain loops; and heads that have learned nothing, whose queries and keys are 0, have formed no pattern."""
    gpt = random_gpt(replace(CONFIG, window=window))
    for block in gpt.blocks:
        torch.nn.init.zeros_(block.attention.qkv_proj.weight)
    windows = {kind: replace(texts, attention_window=window) for kind, texts in WINDOWS.items()}
    found = measure_heads(gpt, windows)
    for name, score in heads.SCORES.items():
        if score.keys:
            means = []
            texts = windows[score.probe]
            for looked_at in score.keys(texts).expand(len(texts), -1, -1).tolist():
                shares = []
                for query in range(1, T):
                    seen = range(max(0, query - window + 1), query + 1)
                    hits = sum(looked_at[query][key] for key in seen)
                    shares += [hits / len(seen)] if 0 < hits < len(seen) else []
                means += [np.mean(shares)] if shares else []
            assert found.uniform[name] == pytest.approx(np.mean(means) if means else 0, abs=1e-6), name
        close(found.scores[name], np.full((2, 4), found.uniform[name]))
    assert found.uniform["entropy"] == pytest.approx(float(window > 1))
    assert not any(formed.any() for formed in found.formed.values())
