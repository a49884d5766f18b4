"""Calls an attention that a user has written, in the ways in which people write one.

Shapes: B texts, T length, D width of the tokens, H heads, K head width, E width of the output.
"""

import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from model.attention import merge_heads, split_heads
from model.masks import causal_mask, padding_mask
from model.mistakes import Mistake

# Of the largest value, what may be rounding; and if the output is float16 or bfloat16, or bfloat16 is used inside,
# whose scores are rounded too.
ROUNDING = 1e-3
HALF_ROUNDING = 0.1
# Of the inputs: so large that a hidden score of -10 can be seen, and so small for some tokens that a wrong scale can.
SCALE = 3.0
Arguments = dict[str, Tensor]


class Layout(NamedTuple):
    """The axes in which an attention takes and returns tokens.

    letters: their names. given: makes them of (B, T, D). back: the way back. num_heads: that are cut already.
    """

    letters: str
    given: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]
    num_texts: int = 2
    num_heads: int = 1


HEADS = Layout("(B, H, T, K)", lambda x: split_heads(x, 3), merge_heads, num_heads=3)
HEADS_SECOND = Layout("(B, T, H, K)", lambda x: x.unflatten(-1, (3, -1)), lambda x: x.flatten(-2), num_heads=3)
TOKENS = Layout("(B, T, D)", lambda x: x, lambda x: x)
TOKENS_FIRST = Layout(
    "(T, B, D), as without batch_first=True,", lambda x: x.transpose(0, 1), lambda x: x.transpose(0, 1)
)
ONE_TEXT = Layout("(T, D)", lambda x: x[0], lambda x: x[None], num_texts=1)


class Seen(TorchFunctionMode):
    """Notes the names of PyTorch's functions that are called, `is_causal`, and the types of the returned numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: set[Any] = set()

    def __torch_function__(self, function, types, inputs=(), options=None) -> Any:
        options = options or {}
        result = function(*inputs, **options)
        self.noted |= {function.__name__, getattr(result, "dtype", None), options.get("is_causal") and "is_causal"}
        return result


@dataclass
class Attempt:
    """A call of an attention that has worked.

    Raises:
        Mistake: if it does not work.
    """

    function: Callable[..., Any]
    layout: Layout
    inputs: Arguments  # tokens, or queries, keys and values, (B, T, D) each
    mask: Arguments  # empty without a mask
    meanings: list[Tensor]  # what each query may be meant to see, (B or 1, 1, T or 1, T)
    changed: set[str] = field(default_factory=set)  # the arguments that a call has changed in place

    def __post_init__(self) -> None:
        self.output = self(self.inputs)
        with Seen() as self.seen:  # again: in the traceback of an error, `Seen` would follow the user's line
            self(self.inputs)
        is_half = self.output.dtype.itemsize == 2 or torch.bfloat16 in self.seen.noted
        largest = self.output.float().nan_to_num().abs().amax(-1, keepdim=True)
        self.rounding = largest * (HALF_ROUNDING if is_half else ROUNDING)

    def __call__(self, inputs: Arguments) -> Tensor:
        """Returns the output (B, T, E)."""
        given = {name: self.layout.given(x) for name, x in inputs.items()} | self.mask
        passed = {name: x.clone() for name, x in given.items()}
        shapes = [tuple(x.shape) for x in given.values()]
        called = f"called with the shapes {dict(zip(given, shapes, strict=True))}, it"
        try:
            output = self.function(**passed)
        except Exception as error:
            line = _lines_of_user(error)[-1]
            what = f"{type(error).__name__}: {error}"
            raise Mistake(f"{called} fails in line {line.lineno}, `{line.line}`, with {what}") from error
        self.changed |= {name for name, x in given.items() if not torch.equal(passed[name], x)}
        if isinstance(output, (tuple, list)):
            output = output[0]
        if not isinstance(output, Tensor) or output.shape[:-1] != shapes[0][:-1]:
            returned = getattr(output, "shape", type(output))
            begin = shapes[0][:-1]
            raise Mistake(f"{called} returns {returned}: return a tensor that begins with {begin}, or a tuple of it")
        return self.layout.back(output)


def attempts(
    function: Callable[..., Any],
    layouts: Iterable[Layout],
    widths: Iterable[int],
    lengths: Iterable[int],
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
    for layout, width in product([*layouts, ONE_TEXT], widths):
        if layout is ONE_TEXT and working:
            break
        for T, masks, meanings in _masks(mask_name, lengths, layout.num_texts):
            these = []
            for mask in masks:
                shape = layout.num_texts, T, layout.num_heads * width
                inputs = {name: SCALE * torch.randn(T, 1) * torch.randn(shape) for name in names}
                try:
                    these.append(Attempt(function, layout, inputs, mask, meanings))
                except Mistake as failure:
                    failures.append(failure)
            working += these
            if these:
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
        is_other = p.default is None and re.search("context|memory|encoder", p.name)
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
    lengths: Iterable[int],
    num_texts: int,
) -> Iterator[tuple[int, list[Arguments], list[Tensor]]]:
    """Yields lengths, and for each shape that a mask may have: what can be passed, and what it may mean."""
    for T in lengths:
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
                (both[:, 0].movedim(0, -1), [both]),
                (causal[0, 0], [causal]),
                (padding[:, 0, 0], [padding, both]),
            ):
                given = [mask, mask.float(), mask.float().log()]
                if "key_padding" in name:  # True may mean hidden, as in PyTorch
                    given.append(~mask)
                yield T, [{name: each} for each in given], meanings


def _lines_of_user(error: BaseException) -> list[traceback.FrameSummary]:
    return [line for line in traceback.extract_tb(error.__traceback__) if "site-packages" not in line.filename]


def _line_reached(failure: Mistake) -> float:
    """Returns the line at which a call has failed; infinity if it came to its end."""
    error = failure.__cause__
    if error is None:
        return torch.inf
    lines = _lines_of_user(error)[1:]
    return lines[0].lineno if lines else 0
