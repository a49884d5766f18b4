"""The order of samples: a permutation in each epoch, a pure function of (seed, step), in constant memory."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.windows import Repeats, TrainingWindows, WindowSampler, evenly_spread, permute
from tests.command_lines import mistake


def epoch_windows(sampler, epoch):
    """The first token of each window of an epoch."""
    first = epoch * sampler.windows_per_epoch
    return sampler.starts(np.arange(first, first + sampler.windows_per_epoch))


def test_permutations_are_uniform_and_their_images_are_not_correlated():
    """All 6 orders of 3 things are equally frequent: chi-squared with 5 degrees of freedom, below its 99.99% point.

    The images of neighbours correlate by less than five standard deviations.
    """
    orders = [tuple(permute(np.arange(3), 3, key * 1_000_003)) for key in range(1200)]
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 6 and ((counts - 200) ** 2 / 200).sum() < 25.7
    images = permute(np.arange(10_000), 10_000, key=7)
    assert abs(np.corrcoef(images[:-1], images[1:])[0, 1]) < 5 / 100


@settings(max_examples=50)
@given(
    num_tokens=st.integers(2, 3000),
    context_length=st.integers(1, 40),
    seed=st.integers(0, 2**32),
    epoch=st.integers(0, 100),
)
def test_an_epoch_has_every_window_once(num_tokens, context_length, seed, epoch):
    context_length = min(context_length, num_tokens - 1)
    sampler = WindowSampler(num_tokens, context_length, seed)
    starts = np.sort(epoch_windows(sampler, epoch))
    assert starts[0] < context_length or sampler.windows_per_epoch == 1
    assert (np.diff(starts) == context_length).all()
    assert starts[0] >= 0 and starts[-1] + context_length + 1 <= num_tokens
    # One more window would not fit behind every offset below T.
    assert sampler.windows_per_epoch == max((num_tokens - context_length) // context_length, 1)


@pytest.mark.parametrize("fraction", [0.05, 0.25, 1.0])
def test_the_periods_of_repeating_windows_are_log_uniform(fraction):
    """All periods from 8 to 64 occur, and half of them are below the geometric mean."""
    numbers = np.arange(320_000)
    periods = WindowSampler(10**6, 128, seed=4).periods(numbers[evenly_spread(numbers, fraction)])
    assert len(periods) == pytest.approx(fraction * len(numbers), abs=1)
    assert set(periods.tolist()) == set(range(8, 65))
    assert (np.log(periods + 0.5) < np.log([8, 65]).mean()).mean() == pytest.approx(0.5, abs=0.03)
    for context_length, allowed in ((1, {1}), (8, {4}), (20, {8, 9, 10})):
        assert set(WindowSampler(1000, context_length, seed=0).periods(numbers[:800]).tolist()) == allowed


TEXT = SimpleNamespace(gather=lambda starts, length: 1000 + starts[:, None] + np.arange(length))


def training_windows(repeats, first=0, rows=range(8)):
    """12 batches of 8 windows. Token n of the text is 1,000 + n, and random tokens are 1 to 300."""
    sampler = WindowSampler(50_000, 32, seed=5)
    return np.stack([*TrainingWindows(TEXT, sampler, first, repeats, 301, 0, 8, rows, range(12))])


@pytest.mark.parametrize("share", [8, 4, 1])
def test_devices_share_the_batch_and_reading_continues_after_any_window(share):
    """The windows of all devices are those of one, and those after window 20 do not depend on earlier batch sizes."""
    repeats = Repeats(0.5, random_fraction=0.125)
    shares = [training_windows(repeats, 20, range(first, first + share)) for first in range(0, 8, share)]
    expected = training_windows(repeats).reshape(96, 33)[20:]
    assert np.array_equal(np.concatenate(shares, axis=1).reshape(96, 33)[:76], expected)


def test_text_repeats_from_one_step_to_another_and_random_tokens_from_the_start():
    """A random window repeats distinct tokens of the vocabulary, and differs from other random windows."""
    windows, plain = (training_windows(repeats).reshape(96, 33) for repeats in (Repeats(0.5, 2, 6, 0.125), Repeats()))
    random = np.arange(96) % 8 == 7
    text = (np.arange(96) % 2 == 1) & (np.arange(96) >= 16) & (np.arange(96) < 48) & ~random
    assert np.array_equal(windows[~random & ~text], plain[~random & ~text])
    for number in np.flatnonzero(random | text):
        [period, *_] = [p for p in range(8, 34) if np.array_equal(windows[number], np.resize(windows[number][:p], 33))]
        first = windows[number][:period]
        assert period <= 16 and len(set(first)) == period
        if text[number]:
            assert np.array_equal(first, plain[number][:period])
        else:
            assert ((first >= 1) & (first <= 300)).all()
    firsts = windows[random][:, 0]
    assert len(set(firsts)) > len(firsts) / 2


def test_random_windows_hold_no_text_even_if_half_the_context_has_more_tokens_than_the_vocabulary():
    sampler = WindowSampler(50_000, 64, seed=5)
    windows = [*TrainingWindows(TEXT, sampler, 0, Repeats(random_fraction=1), 9, 0, 8, range(8), range(12))]
    assert set(np.unique(windows).tolist()) == set(range(1, 9))


def test_a_stream_too_short_for_a_window_is_refused_with_both_numbers():
    with mistake(r"context_length 64 .*65.* 64"):
        WindowSampler(64, 64, seed=0)
    assert WindowSampler(65, 64, seed=0).starts(np.arange(3)).tolist() == [0, 0, 0]


def test_the_order_never_changes():
    """So that a checkpoint of an earlier version resumes with the batches that follow."""
    assert permute(np.arange(6), 1000, key=7).tolist() == [385, 60, 826, 687, 551, 328]
    sampler, numbers = WindowSampler(1000, 100, seed=-3), np.arange(8, 10)
    found = sampler.starts(numbers), sampler.periods(numbers), sampler.draw(7, 1001, 1000)[:2]
    assert np.stack(found).tolist() == [[567, 374], [30, 9], [738, 776]]
