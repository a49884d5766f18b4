"""Calls an attention that a user has written, in the ways in which people write one.

Shapes: B batch, T query length, S key length, H heads, K head width or width of tokens, E width of the output.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from model.attention import merge_heads
from model.masks import causal_mask, padding_mask
from model.mistakes import Mistake

SCALE = 3.0  # of queries and keys, so large that a hidden score of -10 can be seen


@dataclass
class Call:
    """A way to call an attention, and inputs for it."""

    function: Callable[..., Any]
    names: list[str]  # of its arguments
    layout: str  # the order of their axes, TBK for tokens first; letters that are missing have the size 1
    options: dict[str, Tensor]
    inputs: list[Tensor]  # (B, H, T, K) each
    masks: list[Tensor]  # what each query may be meant to see, (B or 1, 1, T, S)

    def __call__(self, inputs: list[Tensor]) -> Tensor:
        """(B, T, E)"""
        passed = [torch.einsum(f"BHTK->{self.layout}", x).clone() for x in inputs]
        called = f"called with the shapes {[tuple(x.shape) for x in (*passed, *self.options.values())]}, it"
        try:
            output = self.function(**dict(zip(self.names, passed, strict=True)), **self.options)
        except Exception as error:
            hint = ": write `if mask is not None`" if "ambiguous" in str(error) else ""
            raise Mistake(f"{called} fails with {type(error).__name__}: {error}{hint}") from error
        if isinstance(output, (tuple, list)):
            output = output[0]
        if output.shape[:-1] != passed[0].shape[:-1]:
            raise Mistake(f"{called} returns the shape {tuple(output.shape)}")
        axes = "".join(letter for letter in "BHTK" if letter in self.layout)
        whole = torch.einsum(f"{self.layout}->{axes}", output).reshape(*inputs[0].shape[:-1], -1)
        return merge_heads(whole).float()


def calls(
    function: Callable[..., Any],
    groups: Iterable[Iterable[str]],
    lengths: Iterable[int],
    widths: Iterable[int],
) -> list[Call]:
    """Returns the calls that work: of each group of layouts those with the first layout, length, widths and mask.

    Raises:
        Mistake: if none works.
    """
    found: list[Call] = []
    problems = []
    for layouts in groups:
        for attempts in _attempts(function, layouts, lengths, widths):
            working = []
            for call in attempts:
                try:
                    call(call.inputs)
                    working.append(call)
                except Mistake as problem:
                    problems.append(problem)
            if working:
                found += working
                break
    if not found:
        raise problems[0]
    return found


def _attempts(
    function: Callable[..., Any],
    layouts: Iterable[str],
    lengths: Iterable[int],
    widths: Iterable[int],
) -> Iterator[list[Call]]:
    names, mask_name = _arguments(function)
    for layout, T, sizes in product(layouts, lengths, product(widths, repeat=len(names))):
        B, H = 1 + ("B" in layout), 1 + 2 * ("H" in layout)
        inputs = [SCALE * torch.randn(B, H, T, K) for K in sizes]
        causal = causal_mask(T)[None, None]
        if not mask_name:
            yield [Call(function, names, layout, {}, inputs, [causal, torch.ones_like(causal)])]
            continue
        for forms in _mask_forms(mask_name, B, T):
            yield [
                Call(function, names, layout, {mask_name: given}, inputs, [mask, mask & causal])
                for mask, given in forms
            ]


def _arguments(function: Callable[..., Any]) -> tuple[list[str], str]:
    """Returns the names of the tokens, or of queries, keys and values in this order; and the mask's, "" without one."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # PyTorch's kernel
        return ["query", "key", "value"], "attn_mask"
    named = [p for p in parameters if "*" not in str(p)]
    masks = [p.name for p in named if re.search("mask|valid|len", p.name) and not isinstance(p.default, int)]
    tokens = [p.name for p in named if p.default is p.empty and p.name not in masks]
    masks += [*tokens[3:], ""]
    return sorted(tokens[:3], key=lambda name: "kv".find(name[0].lower())), masks[0]


def _mask_forms(
    name: str,
    B: int,
    T: int,
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yields for each shape that a mask may have: what it means, (B or 1, 1, T or 1, S), and what is passed."""
    lengths = 1 + (3 * torch.arange(T) + 2 * torch.arange(B)[:, None]) % T  # others for each query of each text
    each, padding = padding_mask(lengths, T), padding_mask(lengths[:, -1], T)
    if re.search("valid|len", name):
        yield [(padding, lengths[:, -1]), (each, lengths)]
        return
    for mask, given in (
        (each, each),
        (each, each[:, 0]),
        (each[:1], each[0, 0]),
        (padding, padding[:, 0, 0]),
        (each, each[:, 0].movedim(0, -1)),
    ):
        yield [(mask, given), (mask, given.float()), (mask, given.float().log())]
