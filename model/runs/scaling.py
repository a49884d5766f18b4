"""A scaling law: how the loss falls with the compute, and how certain that is."""

import numpy as np

from model.mistakes import Mistake

SIZES = 4  # at least, because three numbers are fitted
EXPONENTS = np.geomspace(0.01, 3, 2000)


def power_law(compute: np.ndarray, loss: np.ndarray, measure: str) -> str:
    """Fits loss = a + b (C / M)^-c by least squares, where M is the geometric mean of the compute C. Returns text.

    measure: what the loss is called there.

    The standard errors of a, b and c come from the derivatives at the best fit and from the residuals, as in every
    nonlinear least squares. Raises a `Mistake` if there are too few sizes, or if the loss does not fall in this way.
    """
    if len(np.unique(compute)) < SIZES:
        raise Mistake(f"a fit needs comparable runs of at least {SIZES} sizes")
    mean = np.exp(np.log(compute).mean())
    size = compute / mean
    c = EXPONENTS[np.corrcoef(size ** -EXPONENTS[:, None], loss)[-1, :-1].argmax()]  # the best fit to a line
    power = size**-c
    b, a = np.polyfit(power, loss, 1)
    if b <= 0 or c in EXPONENTS[[0, -1]]:
        raise Mistake("the loss does not fall like a power of the FLOPs, so there is no fit")

    residuals = a + b * power - loss
    variance = residuals @ residuals / (len(loss) - 3)
    slopes = np.stack([power**0, power, -b * power * np.log(size)])
    errors = np.sqrt(variance * np.linalg.inv(slopes @ slopes.T).diagonal())
    a, b, c = (f"({value:.4g} ± {error:.2g})" for value, error in zip((a, b, c), errors, strict=True))
    return f"{measure} = {a} + {b} (FLOPs / {mean:.4g})^-{c}, with residuals of {variance**0.5:.2g}"
