"""Compares an attention that a user has written with the formula, and names the mistake: `check_attention`.

Nobody says how the attention is to be called (attention_calls.py), nor which of a module's matrices makes the queries
(attention_assignments.py). There are few possibilities, so all are tried: an attention is right if the formula gives
its output in one of them. If not, each change of the formula in attention_mistakes.py is tried: a cause is named only
if the formula with this one change gives the same output. If none does, a symptom is said.

Shapes: B texts, T query length, S key length, D width of the tokens, H heads, K head width.
"""

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from model.attention import CausalSelfAttention
from model.inspection.attention_assignments import Matrices, assignments
from model.inspection.attention_calls import (
    HEADS,
    HEADS_SECOND,
    SCALE,
    TOKENS,
    TOKENS_FIRST,
    Attempt,
    arguments,
    attempts,
)
from model.masks import causal_mask, padding_mask
from model.mistakes import Mistake

BIAS = r"bias|b_?\w?"  # the name of a parameter that is no matrix, even if it has one axis for heads
NUM_HEADS = r"(n|num)?_?(att\w*_)?heads?|h"  # the name of an attribute
LONG = (300, 60, 30, 15)  # in tokens, the first that works: more than a window or a tile has, and no multiple of it
MANY_STEPS = 2000  # noted: an attention that loops over tokens takes too long with many
WIDTHS = (11, 2, 4, 8, 16, 32, 64)  # of heads: an attention that is made for one width is right if one is right
NO_MODULE = nn.Module()
MASKING = {"tril", "triu", "masked_fill", "masked_fill_", "is_causal"}  # what makes or applies a mask


def check_attention(attention: Callable[..., Any]) -> list[str]:
    """Compares an attention with the formula: returns a sentence for each problem, [] if it was compared and is equal.

    Args:
        attention: a function (q, k, v, mask=None) of tensors (B, H, T, K), (B, T, H, K) or (B, T, K); or a module of
            tokens (B, T, D) or (T, B, D), or of queries, keys and values. B may be missing. A mask is boolean, and True
            means may attend; or 0 and -inf, to be added to the scores; or `valid_lens`, the number of tokens of each
            text. If the attention returns a tuple, the first element is the output.

    It is compared with as many queries as keys; the `attend` of a `CausalSelfAttention` with fewer, as with a cache. A
    warning says if it was compared without a mask, without its norms or in 16 bits, and if with fewer queries or with a
    mask of another type it returns something else. With up to 300 tokens, only the order of the tokens is tried.
    """
    # Where it is not needed, torch.device would only make each function of PyTorch slower.
    on_cpu = nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
    with on_cpu, torch.random.fork_rng([]), torch.inference_mode(False):
        torch.default_generator.manual_seed(0)  # not those of GPUs
        try:
            return list(_problems(attention))
        except Mistake as problem:
            return [str(problem)]


def influence(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
) -> Tensor:
    """Returns how much token s changes output t, as (T, S), for a function from x (S, D) to (T, D).

    The measure is the largest absolute gradient of output[t].sum() with respect to the numbers of x[s]. For a batch
    (B, T, D) the result is (B, T, B, T).
    """
    jacobian = torch.autograd.functional.jacobian(lambda x: function(x).sum(-1), x)
    return jacobian.abs().amax(-1)


# ---- what is compared


def _problems(attention: Callable[..., Any]) -> Iterator[str]:
    if isinstance(attention, nn.Module):
        yield from _of_module(attention)
        return
    if names := [name for name in arguments(attention)[0] if re.match("[wW](_|.$)", name)]:
        # A function of its matrices is a module that owns them.
        matrices = nn.ParameterDict([(name, torch.zeros(8, 8)) for name in names])  # in this order
        matrices.forward = partial(attention, **matrices)
        yield from _of_module(matrices)
        return
    is_method = isinstance(getattr(attention, "__self__", None), nn.Module)
    for widths in [WIDTHS] if is_method else ([24], [16]):  # two, because a constant may be right for one
        if problems := [*_compared(attempts(attention, [HEADS, TOKENS, HEADS_SECOND], widths))]:
            yield from problems
            return


def _of_module(module: nn.Module) -> Iterator[str]:
    # deepcopy fails on tensors that a forward pass has left on a module, so the copy shares them.
    shared = {id(held): held for _, held in _plain(module, Tensor)}
    layer = copy.deepcopy(module, {**shared})
    layer.to("cpu", torch.get_default_dtype()).eval()
    if isinstance(layer, CausalSelfAttention):
        yield from _of_attend(layer)
        if type(layer).forward is CausalSelfAttention.forward:
            return
    for name, _ in _plain(layer, (nn.Module, nn.Parameter)):
        yield f"{name} is a plain list or dict: what it holds is not trained, use nn.ModuleList or nn.ParameterList"
        return
    if lazy := [part.out_features for part in layer.modules() if isinstance(part, nn.LazyLinear)]:
        attempts(layer.forward, [TOKENS], lazy)  # the first call makes its matrices
    _prepare(layer)
    sizes = {size for p in layer.parameters() if p.ndim > 1 for size in p.shape}
    if sizes:
        layouts = [TOKENS, TOKENS_FIRST] if getattr(layer, "batch_first", True) else [TOKENS_FIRST]
        calls = attempts(layer.forward, layouts, sizes)
    else:
        calls = attempts(layer.forward, [HEADS, TOKENS], WIDTHS)
    yield from _compared(calls, layer)
    for part in layer.modules():
        for name, value in vars(part).items():
            if id(value) in shared and value.ndim:  # and not what the forward pass keeps for its user
                yield f"{name} is a tensor but no buffer, so `.to` does not move it to a GPU: use register_buffer"


def _plain(module: nn.Module, kind: type | tuple) -> Iterator[tuple[str, Any]]:
    """Yields the names of attributes that hold something of this kind, also in a list or dict, and what they hold.
    Leaves out parameters, buffers and modules that PyTorch knows of.
    """
    known = {*module.modules(), *module.parameters(), *module.buffers()}
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, dict):
                value = [*value.values()]
            for held in value if isinstance(value, list | tuple) else [value]:
                if isinstance(held, kind) and held not in known:
                    yield name, held


def _prepare(layer: nn.Module) -> None:
    """Leaves out what the formula does not have. A square matrix gets rows and columns that are alike, as `assignments`
    needs it. Norms return their input, of queries and keys too; their parameters stay in use.
    """
    norms = [part for part in layer.modules() if "norm" in type(part).__name__.lower()]
    for norm in norms:
        norm.register_forward_hook(lambda norm, inputs, output: inputs[0] + 0 * output)
    if norms:
        _warn("compared without its norms")
    parameters = dict(layer.named_parameters())
    biases = {*map(_bias_of, parameters)}
    for name, p in parameters.items():
        p.requires_grad_()
        if p.ndim == 1 or re.fullmatch(BIAS, name.rpartition(".")[2]):
            nn.init.normal_(p, std=float(p.ndim == 1 and name in biases))
        elif p.ndim > 1:
            nn.init.xavier_normal_(p)
            if p.shape[-1] == p.shape[-2]:
                p.data = (p.data + p.data.mT) / 2


def _bias_of(name: str) -> str:
    """Returns the name that the bias has that belongs to a matrix."""
    return name.removesuffix("weight") + "bias" if name.endswith("weight") else "b" + name[1:]


def _of_attend(layer: CausalSelfAttention) -> Iterator[str]:
    T, S, K = 3, 11, layer.head_dim
    padding = padding_mask(torch.tensor([3, S]), S)
    for mask, meaning in (({"mask": padding}, padding), ({}, causal_mask(T, S)[None, None])):
        q = SCALE * torch.randn(2, T, layer.num_heads * K)
        k, v = SCALE * torch.randn(2, 2, S, layer.num_kv_heads * K)
        call = Attempt(layer.attend, HEADS, K, {"q": q, "k": k, "v": v}, mask, [meaning], set())
        for problem in _compared([call]):
            yield f"attend, with {T} queries, {S} keys and {'a' if mask else 'no'} mask: {problem}"


# ---- what is said


def _warn(text: str) -> None:
    """Warns at the line that has called `check_attention`."""
    names = [frame.function for frame in inspect.stack(0)]
    warnings.warn(text, stacklevel=names.index("check_attention") + 2)


def _compared(
    calls: list[Attempt],
    layer: nn.Module = NO_MODULE,
) -> Iterator[str]:
    """Yields the problems of an attention, which is right if the formula gives its output in one of these calls."""
    parameters = dict(layer.named_parameters(remove_duplicate=False))
    if again := parameters.keys() - dict(layer.named_parameters()):
        yield f"{', '.join(sorted(again))}: not of its own, but the same as another: one module is used several times"
    matrices = {name: p for name, p in parameters.items() if p.ndim > 1 and p.any()}
    nothing = torch.zeros(1)
    made = [(p, parameters.get(_bias_of(name), nothing).flatten()) for name, p in matrices.items()]
    numbers = {name: n for part in layer.modules() for name, n in vars(part).items() if re.fullmatch(NUM_HEADS, name)}
    right = next(_equal(calls, made), None)
    call, num_heads = right or (calls[0], 0)
    for name in call.changed:
        yield f"it changes its argument {name} in place: the caller still needs it"
    if not torch.allclose(call.output, replace(call).output):
        yield "two calls with the same tokens differ, even after .eval(): it has dropout, makes layers or keeps tokens"
        return
    if unused := [*_without_influence(call, parameters, matrices)]:
        yield f"no influence on the output, or no gradient: {', '.join(unused)}"
    if right:
        for name, number in numbers.items():
            if number != num_heads:
                yield f"{name} is {number}, but the number of heads in its output is {num_heads}"
        compared = f"compared with {call.given} and equal, but not with {calls[0].given}"
        if call.layout == TOKENS_FIRST != calls[0].layout:
            yield f"as without batch_first=True: {compared}"
        elif call.given != calls[0].given:
            _warn(compared)
        calls = [call]
        if call.is_half:
            _warn("compared up to the rounding of 16 bits, in which it computes")
        yield from _of_other_lengths(call)
        for part in layer.modules():
            if isinstance(part, nn.Linear):
                part.weight.data *= torch.rand(part.in_features)
        if matrices and not any(_equal([replace(call)], made)):
            yield "a weight of nn.Linear is used as `x @ weight`: its rows make the output, so write `x @ weight.T`"
    else:
        calls = [each for each in calls if each.layout != TOKENS_FIRST or each.layout == call.layout]
        alike = [
            replace(each, inputs=dict.fromkeys(each.inputs, each.tokens[0]))
            for each in calls
            if matrices and len(each.tokens) > 1
        ]
        found = _causes(calls, made, numbers)
        if not found and any(_equal(alike, made)):
            found = ["it takes the wrong tokens: equal only if queries, keys and values are made of the same tokens"]
        found = found or _causes(alike, made, numbers)
        yield from found
        if found:
            return
        if any(assignments(call, made)):
            yield "it differs from the formula; none of the known mistakes gives its output"
        else:
            yield f"it could not be compared with the formula: its output has the width {len(call.identity)}"
        if matrices:
            yield f"if not all of {', '.join(matrices)} make q, k, v or the output, give a function of q, k, v"
    if not call({name: 5 * x for name, x in call.inputs.items()}).isfinite().all():
        yield "with large scores the output is not finite: an exponential overflows, or a sum of weights is 0"
    name, x = [*call.inputs.items()][-1]
    moved = [
        influence(lambda x: each(each.inputs | {name: x})[0, -2:-1], x)[0] > 0  # noqa: B023
        for each in calls
    ]
    if all(each[1:].any() for each in moved):
        yield "the output of one text depends on another text"
    if all(each[0, -1] for each in moved) and not (right and call.mask):  # a mask may show the last token to all
        if call.mask or MASKING.intersection(call.noted):
            yield "a mask is made, but an earlier output depends on the last token: it is not applied, or not to all"
        elif right:
            _warn("compared without a mask: each token sees all tokens, also later ones")


def _of_other_lengths(call: Attempt) -> Iterator[str]:
    """Yields what is wrong with more tokens than an attention was compared with; warns if it is with fewer queries."""
    (name, q), *others = call.inputs.items()
    with suppress(Mistake):  # it needs a mask, or as many queries as keys
        free = replace(call, mask={}, function=partial(call.function, **dict.fromkeys(call.mask)))
        for T in LONG if len(call.noted) < MANY_STEPS else ():
            order = [*range(T - 2, -1, -1), T - 1]  # a sum does not depend on it
            long = {name: SCALE * torch.randn(len(x), T, x.shape[-1]) for name, x in call.inputs.items()}
            turned = {name: x[:, order] for name, x in long.items()}
            with suppress(Mistake):  # it is made for fewer tokens
                if not torch.allclose(free(long)[:, -1], free(turned)[:, -1], 0.1, 0.1, equal_nan=True):
                    yield (
                        f"with {T} tokens, the last depends on the order of the others: it does not see all, or tiles "
                        "are added up wrongly"
                    )
                break
        last = free(call.inputs | {name: q[:, -3:]})
        if others and not torch.allclose(last, free(call.inputs)[:, -3:], 0.1, 0.1, equal_nan=True):
            _warn(
                "compared with as many queries as keys: with fewer, as with a cache, its output differs; a causal "
                "mask that is made inside must be tril(S - T)"
            )


def _equal(
    calls: list[Attempt],
    made: Matrices,
) -> Iterator[tuple[Attempt, int]]:
    """Yields the calls that the formula gives the output of, and the number of heads."""
    for call in calls:
        for H, _, found in assignments(call, made):
            if next(found):
                yield call, H


def _causes(
    calls: list[Attempt],
    made: Matrices,
    numbers: dict[str, int],
) -> list[str]:
    """Returns the known mistakes that give the output of the first of the calls for which one does."""
    for call in calls:
        causes = dict(
            cause
            for H, K, found in assignments(call, made)
            if H in numbers.values() or (not numbers and K in call.noted)  # to try all numbers takes seconds
            for cause in found
            if cause
        )
        if causes:
            return [f"{cause}: {lines}" for cause, lines in causes.items()]
    return []


def _without_influence(
    call: Attempt,
    parameters: Mapping[str, Tensor],
    matrices: Mapping[str, Tensor],
) -> Iterator[str]:
    """Yields the names of inputs, parameters, and parts of matrices that the output does not depend on."""
    inputs = {name: x.clone().requires_grad_() for name, x in call.inputs.items()}
    parts = {**inputs, **parameters}
    needed = {*inputs, *matrices}  # the softmax does not change with a bias of the keys
    try:
        gradients = torch.autograd.grad(call(inputs).square().sum(), [*parts.values()], allow_unused=True)
    except RuntimeError as error:
        raise Mistake(f"it cannot be trained: {error}") from error
    for name, gradient in zip(parts, gradients, strict=True):
        if gradient is None or (name in needed and not gradient.any()):
            yield name
        elif name in matrices and not (gradient.any(0).all() and gradient.any(-1).all()):
            yield f"rows or columns of {name}"
