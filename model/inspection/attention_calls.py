"""Calls an attention that a user has written, in the ways in which people write one.

Shapes: T length, D width of the tokens, H heads, K head width, E width of the output. There are two texts.
"""

import inspect
import re
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor

from model.attention import merge_heads
from model.masks import causal_mask, padding_mask
from model.mistakes import Mistake

SCALE = 3.0  # of the inputs, so large that a hidden score of -10 can be seen
Arguments = dict[str, Tensor]
Order = Literal["texts first", "tokens first", "one text"]  # of the axes; "one text" has no axis for texts


@dataclass
class Call:
    """A way to call an attention, with inputs for it."""

    function: Callable[..., Any]
    inputs: Arguments  # tokens (2, T, D); or queries, keys and values, (2, T, K) or (2, H, T, K)
    mask: Arguments  # empty without a mask
    meanings: list[Tensor]  # what each query may be meant to see, (2 or 1, 1, T or 1, T)
    order: Order = "texts first"  # in which the function takes and returns the axes
    changed: set[str] = field(default_factory=set)  # the arguments that a call has changed in place

    def __call__(self, inputs: Arguments) -> Tensor:
        """Returns the output with its heads merged, (2, T, E)."""
        given = inputs | self.mask
        copies = {name: x.clone() for name, x in given.items()}
        if self.order == "one text":
            texts = [{name: x[text] if len(x) == 2 else x for name, x in copies.items()} for text in range(2)]
            output = torch.stack([self._output(**text) for text in texts])
        elif self.order == "tokens first":
            tokens_first = {name: copies[name].transpose(0, 1) for name in inputs}
            output = self._output(**copies | tokens_first).transpose(0, 1)
        else:
            output = self._output(**copies)
        self.changed |= {name for name, x in given.items() if not torch.equal(copies[name], x)}
        return merge_heads(output) if output.ndim == 4 else output

    def _output(self, **passed: Tensor) -> Tensor:
        shapes = {name: tuple(x.shape) for name, x in passed.items()}
        called = f"called with the shapes {shapes}, it"
        try:
            output = self.function(**passed)
        except Exception as error:
            line = _lines_of_user(error)[-1]
            what = f"{type(error).__name__}: {error}"
            raise Mistake(f"{called} fails in line {line.lineno}, `{line.line}`, with {what}") from error
        if isinstance(output, (tuple, list)):
            output = output[0]
        expected = next(iter(shapes.values()))[:-1]
        if not isinstance(output, Tensor) or output.shape[:-1] != expected:
            returned = getattr(output, "shape", type(output))
            raise Mistake(f"{called} returns {returned}, which does not begin with {expected}")
        return output

    @cached_property
    def output(self) -> Tensor:
        return self(self.inputs)


def calls(
    function: Callable[..., Any],
    shapes: Iterable[tuple[int, ...]],
    order: Order = "texts first",
) -> list[Call]:
    """Returns the calls that work, with the first shape of inputs and of a mask for which one does.

    Raises:
        Mistake: if none works.
    """
    needed, others, mask_name = arguments(function)
    if not needed:
        raise Mistake("no argument without a default: an attention takes tokens, or queries, keys and values")
    problems = []
    for names, shape in product(dict.fromkeys([needed + others, needed]), shapes):
        for given, meanings in _masks(shape[-2], mask_name):
            found = []
            for mask in given:
                inputs = {name: SCALE * torch.randn(shape) for name in names}
                call = Call(function, inputs, mask, meanings, order)
                try:
                    call(call.inputs)
                    found.append(call)
                except Mistake as problem:
                    problems.append(problem)
            if found:
                return found
    furthest = max(problems, key=line_reached)
    raise Mistake(f"no way of calling it works; the one that came furthest: {furthest}") from furthest.__cause__


def arguments(function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Returns the names of an attention's arguments: those that it needs, with queries, keys and values in this order;
    other tokens that keys and values may be made of; and the mask, "" without one.
    """
    masks = [""]
    tokens = []
    others = []
    try:
        signature = inspect.signature(function)
    except ValueError:  # written in C
        raise Mistake("its arguments are not known: pass a Python function (q, k, v, mask) that calls it") from None
    for p in signature.parameters.values():
        if re.search("mask|valid|len", p.name) and not isinstance(p.default, int):
            masks.insert(-1, p.name)
        elif p.default is p.empty and "*" not in str(p):
            tokens.append(p.name)
        elif p.default is None and re.search("context|memory|encoder", p.name):
            others.append(p.name)
    tokens.sort(key=lambda name: "kv".find(name[0].lower()))
    return (*tokens,), (*others,), masks[0]


def _masks(
    T: int,
    name: str,
) -> list[tuple[list[Arguments], list[Tensor]]]:
    """Returns for each shape that a mask may have: what can be passed, and what it may mean."""
    lengths = torch.tensor([3, T])
    padding = padding_mask(lengths, T)
    causal = causal_mask(T)[None, None]
    both = causal & padding
    if not name:
        return [([{}], [causal, torch.ones_like(causal)])]
    if re.search("valid|len", name):
        return [([{name: lengths}], [padding, both])]
    shapes = [
        (both, [both]),
        (both[:, 0], [both]),
        (both[:, 0].movedim(0, -1), [both]),
        (causal[0, 0], [causal]),
        (padding[:, 0, 0], [padding, both]),
    ]
    found = []
    for mask, meanings in shapes:
        given = [mask, mask.float(), mask.float().log()]
        if "key_padding" in name:  # True may mean hidden, as in PyTorch
            given.append(~mask)
        found.append(([{name: each} for each in given], meanings))
    return found


def _lines_of_user(error: BaseException) -> list[traceback.FrameSummary]:
    return [line for line in traceback.extract_tb(error.__traceback__) if "site-packages" not in line.filename]


def line_reached(problem: Mistake) -> float:
    """Returns the line at which a call has failed; infinity if it came to its end."""
    error = problem.__cause__
    if error is None:
        return torch.inf
    lines = _lines_of_user(error)[1:]
    return lines[0].lineno if lines else 0
