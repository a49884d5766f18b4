"""Head scores: their definitions in plain loops, the stated baseline for uniform heads, and within [0, 1] for all."""

import math
from statistics import mean

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.inspection import heads
from model.inspection.texts import Texts
from tests.measurements import causal_softmax, heads_of, text_of

TEXT = ["def", " f", "(", "x", "):", "\n    ", "return", " x", "\n", "print", "(", "f", "(", "1", "))", "\n\n"]
TEXT += ["x", " +", "y"]


def probes_of(period: int, first: int, labels=TEXT) -> dict[str, Texts]:
    """Ordinary text, and `period` distinct tokens that are repeated, with or without one token before them."""
    tokens = [99] * first + 2 * list(range(period))
    return {
        "text": text_of([labels.index(label) for label in labels], labels),
        "repeated": text_of(tokens, [f"r{token}" for token in tokens], "repeated"),
    }


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    period=st.integers(2, 8),
    first=st.integers(0, 1),
    temperature=st.sampled_from([0.0, 2.0, 100.0]),
    total=st.sampled_from([1.0, 2.0]),
)
def test_scores_are_their_definitions_written_as_loops_and_at_most_1(seed, period, first, temperature, total):
    """total: what the weights of a query add up to, which an attention of one's own may choose."""
    probes = probes_of(period, first)
    generator = torch.Generator().manual_seed(seed)
    length = len(TEXT)
    repeated_length = first + 2 * period
    noise = {"text": torch.randn(2, 3, length, length, generator=generator)}
    noise["repeated"] = torch.randn(2, 3, repeated_length, repeated_length, generator=generator)
    maps = {name: causal_softmax(temperature * values) for name, values in noise.items()}
    scores = heads_of({name: total * of_probe for name, of_probe in maps.items()}, probes).scores
    assert {(score.shape, score.dtype) for score in scores.values()} == {((2, 3), np.dtype(np.float32))}
    signs = [q for q in range(length) if TEXT[q] in {"(", "):", "\n    ", "\n", "))", "\n\n", " +"}]
    starts = {q: max((s for s in (6, 9, 16) if s < q), default=None) for q in range(length) if q not in (6, 9, 16)}
    for layer, head in [(0, 0), (1, 2)]:
        a = maps["text"][layer, head].tolist()
        r = maps["repeated"][layer, head].tolist()
        later = range(1, length)
        second_half = range(first + period, repeated_length)
        expected = {
            "previous_token": [a[q][q - 1] for q in later],
            "duplicate": [r[q][q - period] for q in second_half],
            "induction": [r[q][q - period + 1] for q in second_half],
            "sink": [a[q][0] for q in later],
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


def test_delimiters_have_no_letter_digit_or_mark():
    letters = ["(e", " 1", "\u00e9", "\u0939\u093f", "\u093f", "\\xe2"]
    assert not list(filter(heads.is_delimiter, letters))
    signs = ["\n", "  ", ' ("', "_", " =", "):\n"]
    assert list(filter(heads.is_delimiter, signs)) == signs


@pytest.mark.parametrize(("score", "uniform"), [(0.9, 0.1), (1.0, 0.3), (0.4, 0.4), (0.1, 0.4), (math.nan, 0.2)])
def test_information_is_the_divergence_of_a_query_from_uniform_attention(score, uniform):
    """Of a query with ten keys, of which those of the pattern share `score`."""
    hits = round(10 * uniform)
    weights = torch.tensor([score / hits] * hits + [(1 - score) / (10 - hits)] * (10 - hits))
    divergence = torch.xlogy(weights, weights * 10).sum().item() if score > uniform else 0.0
    assert heads.information(score, uniform) == pytest.approx(divergence, abs=1e-6)
