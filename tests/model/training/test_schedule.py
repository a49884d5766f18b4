"""Properties of the learning-rate schedule for random configs, and its closed forms."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from model.training.schedule import ScheduleConfig, learning_rate_factor

configs = st.builds(
    ScheduleConfig,
    warmup_steps=st.integers(0, 50),
    decay=st.sampled_from(["linear", "cosine", "none"]),
    decay_fraction=st.floats(0, 1),
    final_factor=st.floats(0, 1),
)


def factors(config, max_steps):
    return [learning_rate_factor(step, max_steps, config) for step in range(max_steps)]


@given(configs, st.integers(1, 200))
def test_the_factor_rises_stays_and_falls_within_its_limits(config, max_steps):
    assume(config.warmup_steps < max_steps)
    values = factors(config, max_steps)
    assert all(0 < value <= 1 for value in values)
    warmup, rest = values[: config.warmup_steps], values[config.warmup_steps :]
    assert warmup == sorted(warmup)
    assert rest == sorted(rest, reverse=True)
    assert rest[0] == 1 or config.decay_fraction * max_steps >= max_steps - config.warmup_steps
    assert all(value >= config.final_factor - 1e-12 for value in rest)
    if config.decay != "none" and round(config.decay_fraction * max_steps) > 0:  # one step after the last
        assert learning_rate_factor(max_steps, max_steps, config) == pytest.approx(config.final_factor)


def test_cosine_decay_is_that_of_nanogpt():
    """lr = min + (1 + cos(pi (step - warmup) / (max - warmup))) / 2 * (1 - min), after the warm-up."""
    config = ScheduleConfig(warmup_steps=5, decay="cosine", decay_fraction=1.0, final_factor=0.1)
    expected = [0.1 + 0.45 * (1 + math.cos(math.pi * (step - 5) / 15)) for step in range(5, 20)]
    assert factors(config, 20)[5:] == pytest.approx(expected)


def test_without_decay_no_last_step_is_needed():
    assert learning_rate_factor(10**6, -1, ScheduleConfig(decay="none")) == 1
