"""Finds the mistake in an attention that somebody has written: `check_attention`.

There are two kinds of answers. What is seen: which output moves when which token changes (by gradients), weights that
do not add up to 1, inputs that change nothing. And the cause: the formula of model/multihead.py is computed with each
known mistake in turn, one at a time, and a cause is named only where the figures are the same.

Shapes: B batch, T length, D model width, H heads, K head width.
"""

import copy
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn

from model.attention import merge_heads, split_heads
from model.masks import causal_mask, sliding_window_mask
from model.multihead import scaled_dot_product_attention

B, T, H, K = 2, 5, 3, 8  # with which a function is tried; a module has its own H and K
CAUSAL = causal_mask(T)
UNEVEN = CAUSAL[[2, 1, 1, 1, 4]]  # the queries see the first 3, 2, 2, 2 and 5 tokens, as `valid_lens` can say too
EXACT = 1e-4  # what rounding explains in float32, of values of about 1
ROUGH = 0.02  # in bfloat16, in which an attention may compute
HINTS = {  # by a word of PyTorch's error
    "ambiguous": ": write `if mask is not None`",
    "batch2": " Are the keys transposed?",
}


class _Wrong(Exception):
    """What stops the check. Its text is a sentence for the person."""


def check_attention(
    attention: Callable[..., Any],
    *,
    width: int | None = None,
) -> list[str]:
    """What is wrong with an attention, a sentence for each thing; an empty list if nothing is.

    Args:
        attention: a function (q, k, v, mask=None) of tensors (B, H, T, K), or a module (x, mask=None) of (B, T, D). The
            mask is boolean, and True means may attend. A module that takes no mask is taken for causal. A module may
            also take `valid_lens` (B, T), how many tokens each query sees, and queries, keys and values one by one. Of
            a result that is a tuple the first part counts.
        width: D; by default that of the module's first matrix.
    """
    problems = []
    with torch.random.fork_rng([]), torch.enable_grad():
        torch.manual_seed(0)
        module = attention if isinstance(attention, nn.Module) else _LayerOf(attention)
        layer = _copy_of(module)
        widths = (p.shape[-1] for p in layer.parameters() if p.ndim > 1)
        D = width or next(widths, H * K)
        try:
            for problem in _problems(layer, torch.randn(B, T, D)):
                problems.append(problem)
        except _Wrong as error:
            problems.append(str(error))
    return problems


def influence(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """(T, S): how much token s moves output t, for a function of x (S, D) that gives (T, D).

    The largest gradient of the sum of output[t] by a number of x[s]. With a batch (B, T, D) it is (B, T, B, T).
    """
    jacobian = torch.autograd.functional.jacobian(lambda x: function(x).sum(-1), x)
    return jacobian.abs().amax(-1)


# ---- an attention of any kind as a layer


class _LayerOf(nn.Module):
    """A function of q, k and v as a layer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.qkv = nn.Linear(H * K, 3 * H * K)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        heads = split_heads(self.qkv(x), 3 * H)
        q, k, v = heads.chunk(3, dim=1)
        output = self.function(q, k, v, mask)
        return merge_heads(_of_shape(q.shape, output))


def _copy_of(module: nn.Module) -> nn.Module:
    """In float32 and evaluation mode, to be tried while the module itself stays as it is."""
    left = {}  # by a forward pass, on modules: no copies can be made of it while gradients hang on it
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, Tensor):
                left[id(value)] = value
    layer = copy.deepcopy(module, left)
    layer.float().cpu().eval()
    for part in layer.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_normal_(part.weight)  # matrices that begin with zeros would show nothing
    if isinstance(layer, nn.MultiheadAttention):
        layer.batch_first = True
    return layer


def _arguments(layer: nn.Module) -> tuple[list[str], str]:
    """The names of those that take tokens, and of the one that takes the mask, "" if none does."""
    tokens, mask_name = [], ""
    for name, one in inspect.signature(layer.forward).parameters.items():
        if "mask" in name or "valid" in name:
            mask_name = name
        elif one.default is one.empty:
            tokens.append(name)
    return tokens, mask_name


def _call(layer: nn.Module, mask: Tensor, *inputs: Tensor) -> Tensor:
    """The output (B, T, D); `_Wrong` for an error in it, or another shape. A single input stands for all."""
    tokens, mask_name = _arguments(layer)
    if len(inputs) == 1:
        inputs *= len(tokens)
    shape = inputs[0].shape
    if "valid" in mask_name:
        mask = mask.sum(-1).expand(shape[:2])
    elif isinstance(layer, nn.MultiheadAttention):  # PyTorch's own, where True hides
        mask = ~mask
    try:
        return _of_shape(shape, layer(*inputs, **{mask_name: mask} if mask_name else {})).float()
    except _Wrong:
        raise
    except Exception as error:
        hints = [hint for word, hint in HINTS.items() if word in str(error)]
        raise _Wrong(f"it fails with {type(error).__name__}: {error}{''.join(hints)}") from error


def _of_shape(expected: torch.Size, output: Any) -> Tensor:
    """The output, or the first part of it; `_Wrong` if it has another shape."""
    if isinstance(output, tuple):
        output = output[0]
    if output.shape != expected:
        raise _Wrong(f"shapes: {tuple(output.shape)} where {tuple(expected)} is expected")
    return output


# ---- what is seen


def _problems(layer: nn.Module, x: Tensor) -> Iterator[str]:
    tokens, mask_name = _arguments(layer)
    mask = UNEVEN if mask_name else CAUSAL
    call = partial(_call, layer, mask)
    output = call(x)
    for module in layer.modules():
        for name, value in vars(module).items():
            # What a forward pass keeps to be looked at has a gradient.
            if isinstance(value, Tensor) and not value.requires_grad:
                yield f"{name} is a tensor but no buffer, so it stays behind on the way to a GPU: use register_buffer"
    if not torch.allclose(output, call(x), equal_nan=True):
        yield "two calls with the same tokens differ, after .eval() too: dropout is not switched off"
        return
    for number, name in enumerate(tokens):
        inputs = [x] * len(tokens)
        inputs[number] = x.flip(0)
        if torch.equal(call(*inputs), output):
            yield f"the output does not depend on {name}"

    layer.train()
    in_training = influence(call, x)[0, :, 0]
    layer.eval()
    moved, by_others = influence(call, x)[0].unbind(1)
    moves = moved > EXACT
    hidden = (~mask).fill_diagonal_(False)  # its own token asks, so it moves the output anyway
    near = mask & sliding_window_mask(T, 2)  # farther ones may be out of a window
    means = call(x[:, :1].expand_as(x))[0]  # of tokens that are all alike
    seen = {
        "output {} is NaN, or does not depend on token {}, to which it may attend": near & ~(moved > 0),
        "output {} depends on token {} of another text of the batch": by_others > 0,
        "output {} depends on token {}, which is masked or comes later": hidden & moves,
        "in training output {} depends on token {}, as where dropout comes before the softmax": (
            hidden & ~moves & (in_training > EXACT)
        ),
        "where all tokens are alike, output {} is not like the last: weights do not add up to 1 (as "
        "with a sink, where that is meant), or heads are mixed": (((means - means[-1]).abs() > ROUGH).any(-1)),
    }
    for sentence, places in seen.items():
        for place in places.nonzero().tolist()[:1]:
            yield sentence.format(*place)
    yield from _what_the_formula_says(layer, x)


# ---- what the formula says


def _what_the_formula_says(layer: nn.Module, x: Tensor) -> Iterator[str]:
    """The one mistake with which it gives this output; of a function also by how much the two differ.

    The linear layers are taken for those of queries, keys and values, in any order, one or three, and of the output.
    """
    D = x.shape[-1]
    output = _call(layer, CAUSAL, x)
    linear = [
        part
        for part in layer.modules()
        if isinstance(part, nn.Linear) and part.in_features == D and part.out_features % D == 0
    ]
    last = linear.pop() if len(linear) in (2, 4) else nn.Identity()
    parts = [made for part in linear for made in part(x).split(D, dim=-1)]
    if len(parts) != 3:
        return
    if isinstance(layer, _LayerOf):
        difference = (_attempts(H, *parts)[""] - output).abs().max()
        if difference > ROUGH:
            yield f"differs from the formula by {difference:.2g}"
    found = [
        name
        for heads in range(1, D + 1)
        if D % heads == 0
        for order in permutations(parts)
        for name, values in _attempts(heads, *order).items()
        # With a mistake in the mask the first query, or the last, may see nothing.
        if (last(values) - output)[:, 1:-1].abs().max() < EXACT
    ]
    if "" not in found:
        yield from found[:1]


def _attempts(heads: int, *parts: Tensor) -> dict[str, Tensor]:
    """What attention gives (B, T, D), by the one mistake that is made; "" is the right one.

    Args:
        heads: H.
        parts: queries, keys and values (B, T, D).
    """
    q, k, v = (split_heads(x, heads) for x in parts)
    by_view = (x.reshape_as(q) for x in parts)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    hidden = scores.masked_fill(~CAUSAL, -1e9)

    def attend(q=q, k=k, v=v, mask=CAUSAL, scale=None):
        values, _ = scaled_dot_product_attention(
            q,
            k,
            v,
            mask,
            scale=scale,
            need_weights=True,
        )
        return merge_heads(values)

    right = attend()
    return {
        "": right,
        "the scores are not divided by the root of the head's width": attend(scale=1.0),
        "scaled by the model's width, not the head's": attend(scale=right.shape[-1] ** -0.5),
        "the mask changes nothing: it is not used": attend(mask=None),
        "the mask is inverted: True must mean may attend": attend(mask=~CAUSAL),
        "the mask is off by one: a token sees the one after it": attend(mask=CAUSAL | CAUSAL.roll(1, -1)),
        "the mask is off by one: a token does not see itself": attend(mask=CAUSAL.tril(-1)),
        "the mask is applied after the softmax": merge_heads((scores.softmax(-1) * CAUSAL) @ v),
        "the softmax runs over queries, not keys": merge_heads(hidden.softmax(-2) @ v),
        "the softmax runs over heads, not keys": merge_heads(hidden.softmax(-3) @ v),
        "queries and keys are the same: one is made from the other": attend(k=q),
        "queries, keys and values are the same: all are made from the queries": attend(k=q, v=q),
        "heads are merged without transposing back": split_heads(right, heads).reshape_as(right),
        "heads are split by view, without a transpose": attend(*by_view),
    }
