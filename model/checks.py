"""Checks of options: each raises ValueError with one sentence that names the option and what it may be."""

from __future__ import annotations

import math
import typing
from typing import Any, Literal


def check_range(
    name: str,
    value: float | None,
    low: float,
    high: float = math.inf,
    *,
    low_open: bool = False,
    high_open: bool = False,
) -> None:
    """Refuses a number outside low .. high; None, an option that is not set, passes.

    Args:
        low_open, high_open: the bound itself is refused too. Infinity and NaN always are.
    """
    if value is None:
        return
    too_low = value <= low if low_open else value < low
    too_high = value >= high if high_open else value > high
    if math.isfinite(value) and not too_low and not too_high:
        return
    allowed = f"above {low}" if low_open else f"at least {low}"
    if high != math.inf:
        allowed += f" and {'below' if high_open else 'at most'} {high}"
    elif not math.isfinite(value):
        allowed += " and finite"
    raise ValueError(f"{name} must be {allowed}, not {value}")


def check_choices(config: Any, prefix: str = "") -> None:
    """Refuses a dataclass in which a field annotated with a `Literal` has another value.

    Args:
        prefix: stands before the field's name in the message, as on the command line ("optimizer.").
    """
    for name, annotation in typing.get_type_hints(type(config)).items():
        if typing.get_origin(annotation) is Literal and getattr(config, name) not in typing.get_args(annotation):
            *others, last = map(repr, typing.get_args(annotation))
            raise ValueError(f"{prefix}{name} must be {', '.join(others)} or {last}, not {getattr(config, name)!r}")


def check_divides(divisor_name: str, divisor: int, name: str, value: int) -> None:
    """Refuses a divisor that leaves a remainder."""
    if value % divisor:
        raise ValueError(f"{divisor_name}={divisor} does not divide {name}={value}")
