"""When heads formed. Needs no torch, so that many runs can be compared in little time."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike


def head_name(head: Iterable[int]) -> str:
    """Returns such as "2.1" for (2, 1), head 1 of layer 2."""
    return "{}.{}".format(*head)


def formation(flags: Iterable[tuple[int, Mapping[str, ArrayLike]]]) -> dict[str, dict[str, int]]:
    """By score, the heads that have formed: "LAYER.HEAD" -> since which step the head follows the score's pattern.

    A head that has formed follows the pattern at every later step.

    flags: (step, `HeadTable.formed`) in the order of the steps.
    """
    formed: dict[str, dict[str, int]] = {}
    for step, by_score in flags:
        for name, heads in by_score.items():
            since = formed.get(name, {})
            names = [head_name(head) for head in np.argwhere(heads)]
            formed[name] = {head: since.get(head, step) for head in names}
    return formed
