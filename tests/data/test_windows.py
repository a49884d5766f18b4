"""The order of samples: a permutation in each epoch, a pure function of (seed, step), in constant memory."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.windows import Repeats, TrainingWindows, evenly_spread, permute
from tests.command_lines import mistake

PLAIN = Repeats()


def windows_of(num_tokens, context_length, seed, repeats=PLAIN, vocab_size=301):
    """Windows of a text in which token n is 1,000 + n; random tokens are 1 to vocab_size - 1."""
    text = SimpleNamespace(
        num_tokens=num_tokens, gather=lambda starts, length: 1000 + starts[:, None] + np.arange(length)
    )
    return TrainingWindows(text, context_length, seed, repeats, SimpleNamespace(vocab_size=vocab_size, end_of_text=0))


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
    windows = windows_of(num_tokens, context_length, seed)
    starts = np.sort(windows.starts(epoch * windows.windows_per_epoch + np.arange(windows.windows_per_epoch)))
    assert starts[0] < context_length or windows.windows_per_epoch == 1
    assert (np.diff(starts) == context_length).all()
    assert starts[0] >= 0 and starts[-1] + context_length + 1 <= num_tokens
    # One more window would not fit behind every offset below T.
    assert windows.windows_per_epoch == max((num_tokens - context_length) // context_length, 1)


@pytest.mark.parametrize("fraction", [0.05, 0.25, 1.0])
def test_the_periods_of_repeating_windows_are_log_uniform(fraction):
    """All periods from 8 to 64 occur, and half of them are below the geometric mean."""
    numbers = np.arange(320_000)
    periods = windows_of(10**6, 128, seed=4).periods(numbers[evenly_spread(numbers, fraction)])
    assert len(periods) == pytest.approx(fraction * len(numbers), abs=1)
    assert set(periods.tolist()) == set(range(8, 65))
    assert (np.log(periods + 0.5) < np.log([8, 65]).mean()).mean() == pytest.approx(0.5, abs=0.03)
    for context_length, allowed in ((1, {1}), (8, {4}), (20, {8, 9, 10})):
        assert set(windows_of(1000, context_length, seed=0).periods(numbers[:800]).tolist()) == allowed


def test_text_repeats_from_one_step_to_another_and_random_tokens_from_the_start():
    """A random window repeats distinct tokens of the vocabulary, and differs from other random windows."""
    numbers = np.arange(96).reshape(12, 8)  # 12 steps of 8 windows
    repeating, plain = (windows_of(50_000, 32, 5, repeats) for repeats in (Repeats(0.5, 2, 6, 0.125), PLAIN))
    windows = np.concatenate([repeating.read(row, step) for step, row in enumerate(numbers)])
    plain = plain.read(numbers.flatten(), 0)
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
    windows = windows_of(50_000, 64, 5, Repeats(random_fraction=1), vocab_size=9)
    assert set(np.unique(windows.read(np.arange(96), 0)).tolist()) == set(range(1, 9))


def test_a_stream_too_short_for_a_window_is_refused_with_both_numbers():
    with mistake(r"context_length 64 .*65.* 64"):
        windows_of(64, 64, seed=0)
    assert windows_of(65, 64, seed=0).starts(np.arange(3)).tolist() == [0, 0, 0]


def test_the_order_never_changes():
    """So that a checkpoint of an earlier version resumes with the batches that follow."""
    assert permute(np.arange(6), 1000, key=7).tolist() == [385, 60, 826, 687, 551, 328]
    windows, numbers = windows_of(1000, 100, seed=-3, vocab_size=1001), np.arange(8, 10)
    windows.tokenizer.end_of_text = 1000
    found = windows.starts(numbers), windows.periods(numbers), windows.draw(7)[:2]
    assert np.stack(found).tolist() == [[567, 374], [30, 9], [738, 776]]
