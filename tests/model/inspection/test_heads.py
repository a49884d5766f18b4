"""Head scores: 1 for perfect heads, the stated baseline for uniform heads, and within [0, 1] for every head."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.inspection import heads


def one_hot_map(targets: list[int]) -> torch.Tensor:
    """A head that puts all of query q's weight on key targets[q]."""
    return torch.eye(len(targets))[targets]


def perfect_heads(period: int, first: int) -> dict[str, torch.Tensor]:
    length = first + 2 * period
    return {
        "previous_token": one_hot_map([max(q - 1, 0) for q in range(length)]),
        "duplicate": one_hot_map([q - period if q >= first + period else q for q in range(length)]),
        "induction": one_hot_map([q - period + 1 if q >= first + period else q for q in range(length)]),
        "sink": one_hot_map([0] * length),
        "entropy": torch.tril(torch.ones(length, length)) / torch.arange(1, length + 1)[:, None],
    }


def random_maps(seed: int, length: int, temperature: float, dtype=torch.float32) -> torch.Tensor:
    scores = temperature * torch.randn(2, 3, length, length, generator=torch.Generator().manual_seed(seed))
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1).to(dtype)


@pytest.mark.parametrize("name", heads.SCORES)
@given(period=st.integers(3, 12), first=st.integers(0, 1))
def test_a_perfect_head_scores_one_and_no_other_perfect_head_does(name, period, first):
    perfect = perfect_heads(period, first)
    scores = {other: heads.score_heads(weights, weights, period)[name].item() for other, weights in perfect.items()}
    assert scores[name] == pytest.approx(1, abs=1e-6)
    assert all(score < 0.9 for other, score in scores.items() if other != name)


@given(
    seed=st.integers(0, 10_000),
    length=st.integers(4, 24),
    temperature=st.floats(0, 100),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    data=st.data(),
)
def test_scores_lie_between_zero_and_one(seed, length, temperature, dtype, data):
    period = data.draw(st.integers(2, length // 2))
    weights = random_maps(seed, length, temperature, dtype)
    scores = heads.score_heads(weights, weights, period)
    assert list(scores) == list(heads.SCORES)
    for score in scores.values():
        assert score.shape == (2, 3) and score.dtype == torch.float32
        assert ((score >= 0) & (score <= 1)).all()


@given(seed=st.integers(0, 10_000), period=st.integers(2, 8), first=st.integers(0, 1))
def test_scores_agree_with_their_definitions_written_as_loops(seed, period, first):
    length = first + 2 * period
    weights = random_maps(seed, length, 2.0)
    scores = heads.score_heads(weights, weights, period)
    for layer, head in [(0, 0), (1, 2)]:
        a = weights[layer, head].tolist()
        later, second_half = range(1, length), range(first + period, length)
        expected = {
            "previous_token": sum(a[q][q - 1] for q in later) / len(later),
            "duplicate": sum(a[q][q - period] for q in second_half) / period,
            "induction": sum(a[q][q - period + 1] for q in second_half) / period,
            "sink": sum(a[q][0] for q in later) / len(later),
            "entropy": sum(sum(-p * math.log(p) for p in a[q] if p > 0) / math.log(q + 1) for q in later) / len(later),
        }
        for name, value in expected.items():
            assert scores[name][layer, head].item() == pytest.approx(value, abs=1e-5), name


def test_the_uniform_values_are_the_closed_forms():
    uniform = heads.uniform_scores(text_len=32, repeated_len=17, period=8)
    harmonic = sum(1 / (q + 1) for q in range(1, 32)) / 31
    second_half = sum(1 / (q + 1) for q in range(9, 17)) / 8
    assert uniform == pytest.approx(
        {"previous_token": harmonic, "duplicate": second_half, "induction": second_half, "sink": harmonic, "entropy": 1}
    )


@pytest.mark.parametrize(
    ("scores", "formed"),
    [
        ([0.1, 0.2, 0.8, 0.9, 0.9], 20),
        ([0.1, 0.8, 0.2, 0.9, 0.9], 40),  # one capture alone is noise
        ([0.1, 0.1, 0.1, 0.1, 0.9], None),  # no later capture confirms it
        ([0.55, 0.55, 0.55, 0.55, 0.55], None),  # half-way, but not past it
        ([0.9, 0.9, 0.1, 0.1, 0.1], 0),
    ],
)
def test_a_head_forms_when_it_passes_half_way_and_stays(scores, formed):
    assert heads.formation_step([0, 10, 20, 40, 80], scores, uniform=0.1) == formed


def test_entropy_never_forms():
    assert heads.formation_step([0, 1, 2], [1.0, 1.0, 1.0], uniform=1.0) is None


@pytest.mark.parametrize("shape", [(4,), (3, 4), (1, 1), (2, 5, 4)])
def test_arrays_that_are_not_maps_are_refused(shape):
    with pytest.raises(ValueError, match="an attention map is"):
        heads.sink(torch.zeros(shape))


@pytest.mark.parametrize("period", [-1, 0, 1, 5])
def test_a_period_that_does_not_fit_is_refused(period):
    with pytest.raises(ValueError, match=f"a period of {period} does not fit twice into a map of 9 tokens"):
        heads.induction(torch.zeros(9, 9), period)


def test_steps_and_scores_must_match():
    with pytest.raises(ValueError, match="3 steps and 2 scores"):
        heads.formation_step([0, 1, 2], [0.5, 0.5], uniform=0.1)
