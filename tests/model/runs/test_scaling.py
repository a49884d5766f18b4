"""The scaling law."""

import re

import numpy as np
import pytest

from model.runs.scaling import power_law
from tests.command_lines import mistake

COMPUTE = np.array([1e12, 3e12, 1e13, 3e13, 1e14, 3e14])
MIDDLE = np.exp(np.log(COMPUTE).mean())


def law(a=2.0, b=0.5, c=0.3):
    return a + b * (COMPUTE / MIDDLE) ** -c


def test_exact_losses_give_back_their_numbers_and_others_their_error():
    noise = 0.01 * np.array([1, -1, -1, 1, 1, -1])
    for loss, error in ((law(), 0), (law() + noise, 0.01)):
        said = power_law(COMPUTE, loss, "bits")
        assert said.startswith("bits = ") and f"{MIDDLE:.4g}" in said
        numbers = re.fullmatch(r".* = (\S+) \+ (\S+) \(.*\)\^-(\S+) ± (\S+)", said).groups()
        assert np.array(numbers, float) == pytest.approx([2.0, 0.5, 0.3, error], rel=0.1, abs=2e-4)


@pytest.mark.parametrize("compute, loss", [(COMPUTE[:3], law()[:3]), (COMPUTE, law()[::-1]), (COMPUTE, law(b=-0.5))])
def test_too_few_sizes_and_losses_that_do_not_fall_are_refused(compute, loss):
    with mistake("fit"):
        power_law(compute, loss, "val/loss")
