"""Checks of options and inputs: each raises an error with one sentence that says what is wrong and what may be.

Shapes: T query length, S key length.
"""

import math
import typing
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor


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
    if isinstance(value, int) and abs(value) >= 2**53:  # torch's sizes have 64 bits
        raise ValueError(f"{name} must be below 2^53, not {value}")
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
        prefix: stands before the field's name in the message, as on the command line ("model.optimizer.").
    """
    for name, annotation in typing.get_type_hints(type(config)).items():
        if typing.get_origin(annotation) is Literal and getattr(config, name) not in typing.get_args(annotation):
            allowed = listed([repr(choice) for choice in typing.get_args(annotation)], "or")
            raise ValueError(f"{prefix}{name} must be {allowed}, not {getattr(config, name)!r}")


def listed(parts: Sequence[str], word: str = "and") -> str:
    """Such as "a, b and c"."""
    return f" {word} ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def check_divides(divisor_name: str, divisor: int, name: str, value: int) -> None:
    """Refuses a divisor that leaves a remainder."""
    if value % divisor:
        raise ValueError(f"{divisor_name}={divisor} does not divide {name}={value}: change one to divide the other")


def check_sizes(**sizes: int | None) -> None:
    """Refuses a size below 1."""
    for name, size in sizes.items():
        check_range(name, size, 1)


def check_integers(name: str, ids: Tensor) -> None:
    """Refuses a tensor of anything but integers, with a TypeError."""
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise TypeError(f"{name} must hold integers, not {ids.dtype}")


def check_mask(mask: Tensor, shape: tuple[int, ...]) -> None:
    """Refuses a mask that cannot say which of `shape` (..., T, S) scores count.

    Raises:
        TypeError: if it is not boolean.
        ValueError: if it does not broadcast to `shape`.
    """
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean (True = may attend), not {mask.dtype}")
    padded = (1,) * (len(shape) - mask.ndim) + tuple(mask.shape)
    if len(padded) > len(shape) or any(m not in (1, n) for m, n in zip(padded, shape, strict=True)):
        raise ValueError(f"mask has shape {tuple(mask.shape)}, which does not broadcast to (..., T, S) = {shape}")


def check_attention_inputs(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """Refuses tensors that `scaled_dot_product_attention` cannot take.

    Raises:
        TypeError: if they are not floating-point of one type, unless autocast makes them so.
        ValueError: if their shapes do not fit together.
    """
    mixed = not query.dtype == key.dtype == value.dtype and not torch.is_autocast_enabled(query.device.type)
    if mixed or not all(x.is_floating_point() for x in (query, key, value)):
        raise TypeError(f"attention needs floats of one type, not {query.dtype}, {key.dtype} and {value.dtype}")
    shapes = [tuple(x.shape) for x in (query, key, value)]
    if min(map(len, shapes)) < 2:
        raise ValueError(f"query, key and value need 2 axes or more, not the shapes {shapes}")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query has width {query.shape[-1]}, but key has width {key.shape[-1]}")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"there are {key.shape[-2]} keys, but {value.shape[-2]} values")
    try:
        leading = torch.broadcast_shapes(*(shape[:-2] for shape in shapes))
    except RuntimeError:
        raise ValueError(f"the leading dimensions of query, key and value do not broadcast: {shapes}") from None
    if mask is not None:
        check_mask(mask, (*leading, query.shape[-2], key.shape[-2]))
