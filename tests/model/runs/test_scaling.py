"""The scaling law: exact losses give back their numbers, and the errors are those of repeated measurements."""

import re

import numpy as np
import pytest

from model.runs.scaling import power_law
from tests.command_lines import mistake, tells

COMPUTE = np.array([1e12, 3e12, 1e13, 3e13, 1e14, 3e14])
MIDDLE = np.exp(np.log(COMPUTE).mean())


def law(a=2.0, b=0.5, c=0.3):
    return a + b * (COMPUTE / MIDDLE) ** -c


def fitted(loss):
    """a, b, c, each with its error."""
    return np.array(re.findall(r"\((\S+) ± (\S+)\)", power_law(COMPUTE, loss, "val/loss")), dtype=float)


def test_exact_losses_give_back_their_numbers():
    assert fitted(law())[:, 0] == pytest.approx([2.0, 0.5, 0.3], rel=5e-3)
    assert tells(power_law(COMPUTE, law(), "bits"), f"bits {MIDDLE:.4g}")


def test_the_errors_are_the_spread_of_fits_to_repeated_measurements():
    draw = np.random.default_rng(0)
    fits = np.stack([fitted(law() + 0.002 * draw.standard_normal(len(COMPUTE))) for _ in range(20)])
    numbers, errors = fits[..., 0], fits[..., 1]
    assert np.sqrt(np.square(errors).mean(0)) == pytest.approx(numbers.std(0, ddof=1), rel=0.35)


@pytest.mark.parametrize("compute, loss", [(COMPUTE[:3], law()[:3]), (COMPUTE, law()[::-1]), (COMPUTE, law(b=-0.5))])
def test_too_few_sizes_and_losses_that_do_not_fall_are_refused(compute, loss):
    with mistake("fit"):
        power_law(compute, loss, "val/loss")
