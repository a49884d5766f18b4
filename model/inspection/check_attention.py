"""Finds the mistake in an attention that somebody has written: `check_attention`.

Two kinds of answers. What was seen: which output moves when which token changes (by gradients), tokens that are all
alike, a query that may see nothing. And what the cause is: the formula of model/multihead.py is computed with one
mistake after the other, and a cause is named only where the figures are the same.

Shapes: B batch, T length, D model width, H heads, K head width.
"""

import inspect
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from model.attention import merge_heads, split_heads
from model.masks import causal_mask
from model.multihead import scaled_dot_product_attention

B, T = 2, 5
HEADS, HEAD_DIM = 3, 8  # with which a function is tried
TOLERANCE = 1e-4


def check_attention(attention: Callable[..., Any], *, width: int | None = None) -> list[str]:
    """What is wrong with an attention, a sentence for each thing; an empty list if nothing is.

    Args:
        attention: a function (q, k, v, mask=None) of tensors (B, H, T, K), or a module (x, mask=None) of (B, T, D).
            The mask is boolean, and True means may attend. A module without a mask is taken for causal. Of a result
            that is a tuple the first part counts.
        width: D; by default that of the module's first matrix.
    """
    if isinstance(attention, nn.Module):
        layer, D = attention, width or next(p.shape[-1] for p in attention.parameters() if p.ndim > 1)
    else:
        layer, D = _LayerOf(attention), HEADS * HEAD_DIM
    problems = [
        f"{name} is a tensor but no buffer, so it stays behind when the module moves to a GPU: use register_buffer"
        for module in layer.modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor)
    ]
    modes = {module: module.training for module in layer.modules()}
    try:
        with torch.random.fork_rng([]), torch.enable_grad():
            torch.manual_seed(0)
            return problems + _problems(layer.eval(), torch.randn(B, T, D))
    except _Wrong as error:
        return [*problems, str(error)]
    finally:
        for module, training in modes.items():
            module.training = training


def influence(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """(T, S): the largest |d output[t] / d x[s]|, for a function of x (S, D) that gives (T, anything)."""
    jacobian = torch.autograd.functional.jacobian(function, x)  # (T, ..., S, D)
    return jacobian.abs().amax(dim=(*range(1, jacobian.ndim - 2), jacobian.ndim - 1))


class _Wrong(Exception):
    """What stops the check. Its text is a sentence for the person."""


class _LayerOf(nn.Module):
    """A function of q, k and v as a layer whose heads and projections are known."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        with torch.random.fork_rng([]):
            torch.manual_seed(1)
            self.query, self.key, self.value = (nn.Linear(HEADS * HEAD_DIM, HEADS * HEAD_DIM) for _ in range(3))

    def forward(self, x: Tensor, **mask: Tensor) -> Tensor:
        q, k, v = (split_heads(part(x), HEADS) for part in (self.query, self.key, self.value))
        output = self.function(q, k, v, *mask.values())
        output = output[0] if isinstance(output, tuple) else output
        _check_shape(output, q.shape)
        return merge_heads(output)


def _check_shape(output: Any, expected: tuple[int, ...]) -> None:
    shape = tuple(getattr(output, "shape", ())) or type(output).__name__
    if shape != tuple(expected):
        raise _Wrong(f"shapes: {shape} where {tuple(expected)} is expected")


def _mask_name(layer: nn.Module) -> str | None:
    """The parameter that takes the mask, if there is one."""
    if isinstance(layer, _LayerOf):
        return "mask" if len(inspect.signature(layer.function).parameters) > 3 else None
    names = [name for name in inspect.signature(layer.forward).parameters if "mask" in name.lower()]
    return "attn_mask" if "attn_mask" in names else next(iter(names), None)


def _call(layer: nn.Module, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """The layer's output (B, T, D); `_Wrong` for an error in it, or another shape."""
    theirs = isinstance(layer, nn.MultiheadAttention)  # PyTorch's own, where True hides
    x = x.transpose(0, 1) if theirs and not layer.batch_first else x
    parameters = inspect.signature(layer.forward).parameters.values()
    required = [one for one in parameters if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    named = {} if mask is None else {_mask_name(layer): ~mask if theirs else mask}
    try:
        output = layer(*[x] * (3 if len(required) >= 3 else 1), **named)
    except _Wrong:
        raise
    except Exception as error:
        advice = ": write `if mask is not None`" if "ambiguous" in str(error) else ""
        raise _Wrong(f"it fails with {type(error).__name__}: {error}{advice}") from error
    output = output[0] if isinstance(output, tuple) else output
    _check_shape(output, x.shape)
    return output.transpose(0, 1) if theirs and not layer.batch_first else output


def _problems(layer: nn.Module, x: Tensor) -> list[str]:
    masked, causal = _mask_name(layer) is not None, causal_mask(T)
    output = _call(layer, x, causal if masked else None)
    if not torch.allclose(output, _call(layer, x, causal if masked else None), equal_nan=True):
        return ["two calls with the same tokens differ, after .eval() too: dropout is not switched off"]
    seen = list(_what_is_seen(layer, x, masked, output))
    cause = _cause(layer, x, causal, output)
    if cause is None and isinstance(layer, _LayerOf):
        q, k, v = _heads(layer, x)
        exact = _formula(q, k, v, causal if masked else None)
        seen.append(f"differs from the formula by {(output - merge_heads(exact)).abs().max().item():.2g}")
    return seen + ([cause] if cause else []) + list(_of_a_query_that_sees_nothing(layer, x, masked))


def _what_is_seen(layer: nn.Module, x: Tensor, masked: bool, output: Tensor) -> Iterator[str]:
    rows = output.isnan().any(-1).any(0).nonzero().flatten().tolist()
    if rows:
        why = {0: ", as where a token does not see itself", T - 1: ", as where the mask is inverted: True may attend"}
        yield f"output {rows[0]} is NaN, although it may attend to a token{why.get(rows[0], '')}"
        return
    # A mask that is not causal: what it allows and hides must not be an accident of order.
    mask = (torch.rand(T, T) < 0.5) | torch.eye(T, dtype=torch.bool)
    cases = [causal_mask(T), mask] if masked else [causal_mask(T)]
    is_causal = not masked and not isinstance(layer, _LayerOf)
    for allowed in cases if masked or is_causal else []:
        given = allowed if masked else None

        def first_output(row: Tensor, given: Tensor | None = given) -> Tensor:
            return _call(layer, torch.stack((row, x[1])), given)[0]

        moved = influence(first_output, x[0])
        moves = moved > 1e-6 * moved.max()
        for query, key in (moves & ~allowed).nonzero().tolist()[:1]:
            later = "which comes later" if allowed is cases[0] else "which the mask hides"
            yield f"output {query} depends on token {key}, {later} (its gradient is {moved[query, key]:.2g})"
        for query, key in (~moves & allowed & causal_mask(T)).nonzero().tolist()[:1] if masked else []:
            yield f"output {query} does not depend on token {key}, to which it may attend"
    given = cases[0] if masked else None
    others = influence(lambda row: _call(layer, torch.stack((x[0], row)), given)[0], x[1])
    if others.max() > 0:
        yield "texts of a batch mix: the output of the first depends on the second, as where batch_first is forgotten"
    alike = x[:, :1].expand(B, T, -1)  # then every weighted mean of values is the value itself
    apart = (_call(layer, alike, given) - _call(layer, x[:, :1], given[:1, :1] if masked else None)).abs()
    for row in (apart.amax(-1).amax(0) > TOLERANCE).nonzero().flatten().tolist()[:1]:
        yield f"weights do not add up to 1 in row {row}: of tokens that are all alike, output {row} is another one"
    _call(layer, x).square().sum().backward()
    for name, part in layer.named_modules():
        if isinstance(part, nn.Linear) and (part.weight.grad is None or part.weight.grad.abs().amax(-1).min() == 0):
            yield f"weights of {name} change nothing"
    layer.zero_grad()


def _of_a_query_that_sees_nothing(layer: nn.Module, x: Tensor, masked: bool) -> Iterator[str]:
    # PyTorch's own layer gives NaN there.
    if masked and not any(isinstance(part, nn.MultiheadAttention) for part in layer.modules()):
        mask = causal_mask(T).index_fill(0, torch.tensor(2), False)
        x = x.clone().requires_grad_()
        output = _call(layer, x, mask)
        (gradient,) = torch.autograd.grad(output.nan_to_num().sum(), x)
        if output.isnan().any():
            yield "a query that may attend to nothing gets NaN, where zeros are expected"
        elif gradient.isnan().any():
            yield "the gradient through a query that may attend to nothing is NaN: set its row before the softmax too"


def _formula(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
    """The right one, with NaN for a query that may attend to nothing, of which nothing is compared."""
    values, _ = scaled_dot_product_attention(q, k, v, mask, need_weights=True, **options)
    return values if mask is None else values.masked_fill(~mask.any(-1, keepdim=True), torch.nan)


def _scaled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: Callable[[int, int], float]) -> Tensor:
    return _formula(q, k, v, mask, scale=scale(q.shape[1], q.shape[-1]))


def _over(axis: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return _scores(q, k).masked_fill(~mask, -torch.inf).softmax(axis) @ v


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / q.shape[-1] ** 0.5


MISTAKES: dict[str, Callable[..., Tensor]] = {
    "the scores are not divided by the root of the head's width": partial(_scaled, scale=lambda H, K: 1.0),
    "scaled by the model's width, not the head's": partial(_scaled, scale=lambda H, K: (H * K) ** -0.5),
    "scaled by the head's width, not by its root": partial(_scaled, scale=lambda H, K: 1 / K),
    "multiplied by the root of the head's width, not divided": partial(_scaled, scale=lambda H, K: K**0.5),
    "the mask changes nothing: it is not used": lambda q, k, v, mask: _formula(q, k, v, None),
    "the mask is inverted: True must mean may attend": lambda q, k, v, mask: _formula(q, k, v, ~mask),
    "the mask is off by one: a token sees the one after it": lambda q, k, v, mask: _formula(
        q, k, v, mask | mask.roll(1, -1)
    ),
    "the mask is off by one: a token does not see itself": lambda q, k, v, mask: _formula(q, k, v, mask.tril(-1)),
    "the mask is transposed: a token sees what comes later": lambda q, k, v, mask: _formula(q, k, v, mask.mT),
    "the softmax runs over queries, not keys": partial(_over, -2),
    "the softmax runs over heads, not keys": partial(_over, -3),
    "the softmax runs over the batch, not keys": partial(_over, 0),
    "the mask is applied after the softmax": lambda q, k, v, mask: (_scores(q, k).softmax(-1) * mask) @ v,
    "hidden scores are 0, which the softmax takes for a score; -inf hides": lambda q, k, v, mask: (
        (_scores(q, k) * mask).softmax(-1) @ v
    ),
    "the mask is added to the scores as 0 and 1; -inf hides": lambda q, k, v, mask: (
        (_scores(q, k) + mask.float()).softmax(-1) @ v
    ),
    "there is no softmax": lambda q, k, v, mask: (_scores(q, k) * mask) @ v,
    "keys are made from the queries": lambda q, k, v, mask: _formula(q, q, v, mask),
    "queries are made from the keys": lambda q, k, v, mask: _formula(k, k, v, mask),
    "values are made from the keys": lambda q, k, v, mask: _formula(q, k, k, mask),
    "values are made from the queries": lambda q, k, v, mask: _formula(q, k, q, mask),
    "keys and values are made from the queries": lambda q, k, v, mask: _formula(q, q, q, mask),
}


def _by_view(x: Tensor, num_heads: int) -> Tensor:
    return x.reshape(x.shape[0], num_heads, x.shape[1], -1)


def _merged_by_view(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], x.shape[2], -1)


SPLIT = "heads are split by view, without a transpose"
MERGED = "heads are merged without transposing back"
SHAPES = {
    "": (split_heads, merge_heads),
    MERGED: (split_heads, _merged_by_view),
    SPLIT: (_by_view, merge_heads),
    f"{SPLIT}, and merged so too": (_by_view, _merged_by_view),
}


def _heads(layer: _LayerOf, x: Tensor) -> list[Tensor]:
    return [split_heads(part(x), HEADS) for part in (layer.query, layer.key, layer.value)]


def _cause(layer: nn.Module, x: Tensor, mask: Tensor, output: Tensor) -> str | None:
    """The mistake with which the formula gives this output, an empty text if it needs none, or None.

    The linear layers are taken for those of queries, keys and values, in any order, one or three, and of the output.
    """
    linear = [part for part in layer.modules() if isinstance(part, nn.Linear)]
    last = linear.pop() if len(linear) in (2, 4) else nn.Identity()
    if len(linear) not in (1, 3) or any(part.in_features != x.shape[-1] for part in linear):
        return None
    parts = [part(x) for part in linear] if len(linear) == 3 else [*linear[0](x).chunk(3, dim=-1)]
    D = parts[0].shape[-1]
    if any(part.shape[-1] != D for part in parts):
        return None
    formulas: dict[str, Callable[..., Tensor]] = {"": _formula}
    if isinstance(layer, _LayerOf) and _mask_name(layer) is None:
        formulas = {"": lambda q, k, v, mask: _formula(q, k, v, None), "is causal": _formula}
    tried = [("", name, formula) for name, formula in (formulas | MISTAKES).items()]
    tried += [(shapes, "", _formula) for shapes in SHAPES if shapes]
    for shapes, name, formula in tried:
        split, merge = SHAPES[shapes]
        for order, H in itertools.product(itertools.permutations(parts), range(1, D + 1)):
            if D % H == 0:
                expected = last(merge(formula(*(split(part, H) for part in order), mask)))
                compared = expected.isfinite().all(-1)
                if compared.any() and torch.allclose(expected[compared], output[compared], TOLERANCE, TOLERANCE):
                    return "" if name == "is causal" else shapes or name
    return None
