"""A scaling law: how the loss falls with the compute, and how far the law is off."""

import numpy as np

from model.mistakes import Mistake

SIZES = 4  # at least, because three numbers are fitted
EXPONENTS = np.geomspace(0.01, 3, 2000)


def power_law(compute: np.ndarray, loss: np.ndarray, measure: str) -> str:
    """Fits loss = a + b (C / M)^-c by least squares, where M is the geometric mean of the compute C. Returns text.

    measure: what the loss is called there.

    Its error is the root mean square of what the losses are off. Raises a `Mistake` if there are too few sizes, or if
    the loss does not fall in this way.
    """
    if len(np.unique(compute)) < SIZES:
        raise Mistake(f"a fit needs comparable runs of at least {SIZES} sizes")
    mean = np.exp(np.log(compute).mean())
    size = compute / mean
    c = max(EXPONENTS, key=lambda c: np.corrcoef(size**-c, loss)[0, 1])  # the best fit to a line
    b, a = np.polyfit(size**-c, loss, 1)
    if b <= 0 or c in EXPONENTS[[0, -1]]:
        raise Mistake("the loss does not fall like a power of the FLOPs, so there is no fit")
    error = np.sqrt(np.mean((a + b * size**-c - loss) ** 2))
    return f"{measure} = {a:.4g} + {b:.4g} (FLOPs / {mean:.4g})^-{c:.4g} ± {error:.2g}"
