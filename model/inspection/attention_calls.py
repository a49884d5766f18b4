"""Calls an attention that a user has written, in the ways in which people write one.

Shapes: B texts, T length, D width of the tokens, H heads, K width of a head, or of the tokens if they are not cut into
heads, E width of the output.
"""

import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from model.masks import causal_mask, padding_mask
from model.mistakes import Mistake

# Of the largest value, what may be rounding; and if it computes in 16 bits, whose scores are rounded too.
ROUNDING = 1e-3
HALF_ROUNDING = 0.1
# Of the inputs: so large that a hidden score of -10 can be seen, and so small for some tokens that a wrong scale can.
SCALE = 3.0
# The axes in which an attention takes and returns tokens.
HEADS = "BHTK"
HEADS_SECOND = "BTHK"
TOKENS = "BTK"
TOKENS_FIRST = "TBK"
ONE_TEXT = "TK"
LENGTHS = (5, 4)  # in tokens, the first that works
Tensors = dict[str, Tensor]


class Seen(TorchFunctionMode):
    """Notes the names of PyTorch's functions that are called, `is_causal`, and the types and sizes of their results."""

    noted: list[Any]

    def __torch_function__(self, function, types, inputs=(), options=None) -> Any:
        options = options or {}
        result = function(*inputs, **options)
        self.noted += [function.__name__, options.get("is_causal") and "is_causal"]
        if type(result) is Tensor:
            self.noted += [result.dtype, *result.shape]
        return result


@dataclass
class Attempt:
    """A call of an attention that has worked.

    Raises:
        Mistake: if it does not work.
    """

    function: Callable[..., Any]
    layout: str
    width: int  # K
    inputs: Tensors  # tokens, or queries, keys and values, (B, T, D) each
    mask: Tensors  # empty without a mask
    meanings: list[Tensor]  # what each query may be meant to see, (B or 1, 1, T or 1, T)
    changed: set[str]  # the arguments that it or a call like it has changed in place

    def __post_init__(self) -> None:
        self.tokens = [*self.inputs.values()]
        self.noted: list[Any] = []
        seen = Seen()
        seen.noted = self.noted
        with seen:
            output = self(self.inputs)
        self.is_half = torch.float16 in self.noted or torch.bfloat16 in self.noted
        # Of the output, 8 sums with random factors are compared: they differ if a number does.
        self.identity = torch.randn(output.shape[-1], 8, generator=torch.Generator().manual_seed(0))
        self.output = (output.to(self.identity.dtype) @ self.identity).nan_to_num(1e30)
        self.rounding = (HALF_ROUNDING if self.is_half else ROUNDING) * self.output.abs().amax(-1, keepdim=True)

    def __call__(self, inputs: Tensors) -> Tensor:
        """Returns the output (B, T, E)."""
        cut = {name: x.unflatten(-1, (-1, self.width)) for name, x in inputs.items()}
        given = {name: torch.einsum(f"BTHK->{self.layout}", x) for name, x in cut.items()} | self.mask
        passed = {name: x.clone() for name, x in given.items()}
        self.given = {name: f"{x.dtype} {tuple(x.shape)}" for name, x in given.items()}
        called = f"called with {self.given}, it"
        try:
            output = self.function(**passed)
        except Exception as error:
            line = _lines_of_user(error)[-1]
            what = f"{type(error).__name__}: {error}"
            raise Mistake(f"{called} fails in line {line.lineno}, `{line.line}`, with {what}") from error
        self.changed |= {name for name, x in given.items() if not torch.equal(passed[name], x)}
        if isinstance(output, (tuple, list)):
            output = output[0]
        begin = next(iter(given.values())).shape[:-1]
        if not isinstance(output, Tensor) or output.shape[:-1] != begin:
            returned = getattr(output, "shape", type(output))
            raise Mistake(f"{called} returns {returned}: return a tensor that begins with {begin}, or a tuple of it")
        axes = [self.layout.index(axis) for axis in "BTHK" if axis in self.layout]
        return output.permute(axes).reshape(*next(iter(inputs.values())).shape[:2], -1)


def attempts(
    function: Callable[..., Any],
    layouts: Iterable[str],
    widths: Iterable[int],
) -> list[Attempt]:
    """Returns the calls that work: for each layout and width, those of the first length and mask for which one does.
    One text at a time is called only if nothing else works.

    Args:
        widths: of the tokens, or of each head if they are cut already.

    Raises:
        Mistake: if none works.
    """
    names, mask_name = arguments(function)
    working: list[Attempt] = []
    failures = []
    changed: set[str] = set()
    for layout, width in product([*layouts, ONE_TEXT], widths):
        if layout is ONE_TEXT and working:
            break
        num_texts = 2 if "B" in layout else 1
        for T, masks, meanings in _masks(mask_name, num_texts):
            shape = num_texts, T, 3 * width if "H" in layout else width
            alike = [0, *range(T - 1)]  # the first two, as `_masks` needs it
            inputs = {name: (SCALE * torch.randn(T, 1) * torch.randn(shape))[:, alike] for name in names}
            for mask in masks:
                try:
                    tried = Attempt(function, layout, width, inputs, mask, meanings, changed)
                except Mistake as failure:
                    failures.append(failure)
                else:  # a mask of numbers may mean the same as one of True and False
                    if not any(torch.equal(tried.output, each.output) for each in working):
                        working.append(tried)
            if any(each.inputs is inputs for each in working):
                break
    if not working:
        furthest = max(failures, key=_line_reached)
        raise Mistake(f"no way of calling it works; the one that came furthest: {furthest}") from furthest
    return working


def arguments(function: Callable[..., Any]) -> tuple[list[str], str]:
    """Returns the names of an attention's arguments: its tokens, or queries, keys and values in this order; and the
    mask, "" without one.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # written in C
        raise Mistake("its arguments are not known: pass a Python function (q, k, v, mask) that calls it") from None
    tokens = []
    masks = []
    for p in signature.parameters.values():
        is_needed = p.default is p.empty and "*" not in str(p)
        is_other = p.default is None and re.search("context|memory|encoder|^xa$", p.name)
        if re.search("mask|valid|len", p.name) and not isinstance(p.default, int | float):
            masks.append(p.name)
        elif is_needed or is_other:
            tokens.append(p.name)
    if not tokens:
        raise Mistake(
            "no argument without a default: an attention takes tokens, or queries, keys and values; pass a module "
            "itself, not its class nor what torch.compile makes of it"
        )
    tokens.sort(key=lambda name: "kv".find(name[0].lower()))
    return tokens, [*masks, ""][0]


def _masks(
    name: str,
    num_texts: int,
) -> Iterator[tuple[int, list[Tensors], list[Tensor]]]:
    """Yields lengths, and for each shape that a mask may have: what can be passed, and what it may mean.

    To tell a mask that is added to the scores from one that is multiplied first, it gives token 0 the weight of both 0
    and 1, which are alike.
    """
    for T in LENGTHS:
        valid_lens = torch.tensor([3, T])[-num_texts:]
        padding = padding_mask(valid_lens, T)
        causal = causal_mask(T)[None, None]
        both = causal & padding
        if not name:
            yield T, [{}], [causal, torch.ones_like(causal)]
        elif "mask" not in name:
            yield T, [{name: valid_lens}], [padding, both]
        else:
            for mask, meanings in (
                (both, [both]),
                (both[:, 0], [both]),
                (causal[0, 0], [causal]),
                (padding[:, 0, 0], [padding, both]),
            ):
                weights = mask.float()
                weights[..., 0] += weights[..., 1]
                weights[..., 1] = 0
                given = [mask, mask.float(), weights.log()]
                if "key_padding" in name:  # True may mean hidden, as in PyTorch
                    given.append(~mask)
                yield T, [{name: each} for each in given], meanings


def _lines_of_user(error: BaseException) -> list[traceback.FrameSummary]:
    lines = traceback.extract_tb(error.__traceback__)
    return [line for line in lines if "site-packages" not in line.filename and line.name != "__torch_function__"]


def _line_reached(failure: Mistake) -> float:
    """Returns the line at which a call has failed; infinity if it came to its end."""
    error = failure.__cause__
    if error is None:
        return torch.inf
    lines = _lines_of_user(error)[1:]
    return lines[0].lineno if lines else 0
