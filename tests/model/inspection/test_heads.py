"""Head scores: 1 for perfect heads, the stated baseline for uniform heads, and within [0, 1] for every head."""

import math
from statistics import mean

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.inspection import heads
from model.inspection.probes import Probe
from tests.measurements import survey_maps

TEXT = ["def", " f", "(", "x", "):", "\n    ", "return", " x", "\n", "print", "(", "f", "(", "1", "))", "\n\n"]
TEXT += ["x", " +", "y"]


def probes_of(period: int, first: int, labels=TEXT) -> dict[str, Probe]:
    """Ordinary text, and `period` distinct tokens that are repeated, with or without one token before them."""
    tokens = [99] * first + 2 * list(range(period))
    return {
        "text": Probe([labels.index(label) for label in labels], labels),
        "repeated": Probe(tokens, [f"r{token}" for token in tokens], period),
    }


def one_hot_map(targets: list[int]) -> torch.Tensor:
    """A head that puts all of query q's weight on key targets[q]."""
    return torch.eye(len(targets))[targets]


def perfect_heads(probe: Probe) -> dict[str, torch.Tensor]:
    """For each score a head that does what it measures wherever it can, and looks at the first token elsewhere."""
    labels, queries = probe.labels, range(len(probe.labels))

    def last(wanted, query):
        return max((key for key in range(query) if wanted(key)), default=0)

    return {
        "previous_token": one_hot_map([max(q - 1, 0) for q in queries]),
        "duplicate": one_hot_map([last(lambda key, q=q: labels[key] == labels[q], q) for q in queries]),
        "induction": one_hot_map([last(lambda key, q=q: key and labels[key - 1] == labels[q], q) for q in queries]),
        "sink": one_hot_map([0 for q in queries]),
        "current_token": one_hot_map(list(queries)),
        "recent": torch.stack([one_hot_map([max(q - back, 0) for q in queries]) for back in range(8)]).mean(0),
        "delimiter": one_hot_map([last(lambda key: not labels[key].strip(" \n()+:"), q) for q in queries]),
        "line_start": one_hot_map([last(lambda key: key and "\n" in labels[key - 1], q) for q in queries]),
        "fixed_distance": one_hot_map([max(q - 3, 0) for q in queries]),
        "entropy": heads.uniform_attention(len(labels)),
    }


def random_maps(seed: int, length: int, temperature: float, dtype=torch.float32) -> torch.Tensor:
    scores = temperature * torch.randn(2, 3, length, length, generator=torch.Generator().manual_seed(seed))
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1).to(dtype)


@given(period=st.integers(3, 12), first=st.integers(0, 1))
def test_a_perfect_head_scores_one_and_no_other_perfect_head_does(period, first):
    probes = probes_of(period, first)
    scores, _ = survey_maps(
        {name: torch.stack([*perfect_heads(probe).values()])[None] for name, probe in probes.items()}, probes
    )
    near = {"previous_token", "current_token", "delimiter", "line_start", "fixed_distance"}
    # What these heads look at is among the last tokens of this text too.
    nearby = {"recent": near, "duplicate": {"fixed_distance"}, "induction": {"fixed_distance"}}
    for name, (found,) in scores.items():
        by_head = dict(zip(heads.SCORES, found, strict=True))
        assert by_head.pop(name) == pytest.approx(1, abs=1e-6)
        assert all(score < 0.9 for other, score in by_head.items() if other not in nearby.get(name, set())), name


@given(
    seed=st.integers(0, 10_000),
    period=st.integers(2, 12),
    first=st.integers(0, 1),
    labels=st.lists(st.sampled_from(["a", "b ", "\n", "(", " "]), min_size=2, max_size=24),
    temperature=st.floats(0, 100),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_scores_lie_between_zero_and_one(seed, period, first, labels, temperature, dtype):
    probes = probes_of(period, first, labels)
    maps = {name: random_maps(seed, len(probe.tokens), temperature, dtype) for name, probe in probes.items()}
    scores, _ = survey_maps(maps, probes)
    assert list(scores) == list(heads.SCORES)
    for score in scores.values():
        assert score.shape == (2, 3) and score.dtype == np.float32
        assert ((score >= 0) & (score <= 1)).all()


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), period=st.integers(2, 8), first=st.integers(0, 1))
def test_scores_agree_with_their_definitions_written_as_loops(seed, period, first):
    probes = probes_of(period, first)
    length, repeated_length = len(TEXT), first + 2 * period
    maps = {"text": random_maps(seed, length, 2.0), "repeated": random_maps(seed, repeated_length, 2.0)}
    scores, _ = survey_maps(maps, probes)
    signs = [q for q in range(length) if TEXT[q] in {"(", "):", "\n    ", "\n", "))", "\n\n", " +"}]
    starts = {q: max((s for s in (6, 9, 16) if s < q), default=None) for q in range(length) if q not in (6, 9, 16)}
    for layer, head in [(0, 0), (1, 2)]:
        a, r = maps["text"][layer, head].tolist(), maps["repeated"][layer, head].tolist()
        later, second_half = range(1, length), range(first + period, repeated_length)
        expected = {
            "previous_token": [a[q][q - 1] for q in later],
            "duplicate": [r[q][q - period] for q in second_half],
            "induction": [r[q][q - period + 1] for q in second_half],
            "sink": [a[q][0] for q in later],
            "current_token": [a[q][q] for q in later],
            "recent": [sum(a[q][q - 7 : q + 1]) for q in range(8, length)],
            "delimiter": [sum(a[q][k] for k in signs if k < q) for q in range(3, length)],
            "line_start": [a[q][start] for q, start in starts.items() if start is not None],
            "fixed_distance": max(
                ([a[q][q - n] for q in range(n, length)] for n in range(2, length - length // 4 + 1)), key=mean
            ),
            "entropy": [sum(-p * math.log(p) for p in a[q] if p > 0) / math.log(q + 1) for q in later],
        }
        assert list(expected) == list(heads.SCORES)
        for name, values in expected.items():
            assert scores[name][layer, head].item() == pytest.approx(mean(values), abs=1e-5), name


def test_the_uniform_values_are_those_of_uniform_maps_and_zero_where_a_text_cannot_show_a_pattern():
    for probes in (probes_of(8, 1), probes_of(2, 0, ["a", "b", "c"])):
        maps = {name: heads.uniform_attention(len(probe.tokens))[None, None] for name, probe in probes.items()}
        scores, habits = survey_maps(maps, probes)
        assert habits.uniform == pytest.approx({name: score.item() for name, score in scores.items()})
    assert habits.uniform["delimiter"] == habits.uniform["line_start"] == habits.uniform["recent"] == 0


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        *[(label, True) for label in ["\n", "  ", ' ("', "_", " =", "):\n"]],
        *[(label, False) for label in ["(e", " 1", "\u00e9", "\u0939\u093f", "\u093f", "\\xe2"]],
    ],
)
def test_a_delimiter_has_no_letter_digit_or_mark(label, expected):
    assert heads.is_delimiter(label) == expected


def test_every_score_has_a_letter_of_its_own_and_two_sentences_in_the_glossary():
    letters = {score.letter or name[0].upper() for name, score in heads.SCORES.items()}
    assert len(letters) == len(heads.SCORES) and all(len(letter) == 1 for letter in letters)
    for score in heads.SCORES.values():
        assert score.glossary.count(". ") == 1 and score.glossary.endswith(".")


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("\n    ", "line breaks"),
        (' ("', "quotes"),
        ("((", "opening brackets"),
        ("):", "closing brackets"),
        (",", "commas and colons"),
        ("  ", "spaces"),
        ("=", "other signs"),
        ("", "other signs"),
    ],
)
def test_delimiters_have_kinds(label, expected):
    assert heads.kind(label) == expected
