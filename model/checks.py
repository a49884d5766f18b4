"""Checks of options: each raises ValueError with a sentence that says what is wrong and what would be right."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args, get_origin, get_type_hints


def check_choices(config: Any) -> None:
    """Raises ValueError if a field of a dataclass that is annotated with a Literal has another value."""
    for name, kind in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if get_origin(kind) is Literal and value not in get_args(kind):
            *others, last = map(repr, get_args(kind))
            choices = f"{', '.join(others)} or {last}" if others else last
            raise ValueError(f"{name} must be {choices}, not {value!r}")


def check_range(
    name: str,
    value: float,
    low: float,
    high: float = math.inf,
    *,
    low_open: bool = False,
    high_open: bool = False,
) -> None:
    """Raises ValueError unless `value` lies between `low` and `high`. NaN and infinity never do.

    Args:
        name: the option's full name, for the message.
        value: what was given.
        low, high: the bounds; an infinite `high` means that any finite number will do.
        low_open, high_open: whether the bound itself is excluded.
    """
    above_low = value > low if low_open else value >= low
    below_high = value < high if high_open or high == math.inf else value <= high
    if above_low and below_high:
        return
    if high < math.inf:
        wanted = f"{'above' if low_open else 'at least'} {low} and {'below' if high_open else 'at most'} {high}"
    else:
        wanted = f"above {low}" if low_open else f"{low} or more"
        wanted += " (and finite)" if isinstance(value, float) else ""
    raise ValueError(f"{name} must be {wanted}, not {value}")
