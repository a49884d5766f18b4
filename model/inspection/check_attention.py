"""Finds mistakes in an attention that a user has written: `check_attention`.

The check reports symptoms and causes. Symptoms are what can be observed: an output depends on a token that it must not
see (by gradients), weights do not add up to 1, an input changes nothing. To find the cause, the formula of
model/multihead.py is computed with each known mistake in turn; a cause is named only if the formula with this one
mistake gives the same output.

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

B, T, H, K = 2, 5, 3, 8  # the shape with which a function is tried; a module has its own H and K
CAUSAL = causal_mask(T)
UNEVEN = CAUSAL[[2, 1, 1, 1, 4]]  # the queries see the first 3, 2, 2, 2 and 5 tokens: `valid_lens` can say this too
EXACT = 1e-4  # the largest rounding error in float32, for values of about 1
ROUGH = 0.02  # the same in bfloat16, in which an attention may compute
HINTS = {  # advice if PyTorch's error message contains this word
    "ambiguous": ": write `if mask is not None`",
    "batch2": " Are the keys transposed?",
}


class _Stop(Exception):
    """A problem that stops the check. Its message is a sentence for the user."""


def check_attention(
    attention: Callable[..., Any],
    *,
    width: int | None = None,
) -> list[str]:
    """Returns a sentence for each problem of an attention; an empty list if there is none.

    Args:
        attention: a function (q, k, v, mask=None) of tensors (B, H, T, K), or a module (x, mask=None) of (B, T, D). The
            mask is boolean, and True means may attend. A module without a mask must be causal. A module may take
            `valid_lens` (B, T), the number of tokens that each query sees, instead of a mask; and queries, keys and
            values instead of x. If the attention returns a tuple, the first element is the output.
        width: D; by default the width of the module's first matrix.
    """
    problems = []
    with torch.random.fork_rng([]), torch.enable_grad():
        torch.manual_seed(0)
        module = attention if isinstance(attention, nn.Module) else _FunctionLayer(attention)
        layer = _copy_of(module)
        widths = (p.shape[-1] for p in layer.parameters() if p.ndim > 1)
        D = width or next(widths, H * K)
        try:
            for problem in _problems(layer, torch.randn(B, T, D)):
                problems.append(problem)
        except _Stop as error:
            problems.append(str(error))
    return problems


def influence(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Returns how much token s changes output t, as (T, S), for a function from x (S, D) to (T, D).

    The measure is the largest absolute gradient of output[t].sum() with respect to the numbers of x[s]. For a batch
    (B, T, D) the result is (B, T, B, T).
    """
    jacobian = torch.autograd.functional.jacobian(lambda x: function(x).sum(-1), x)
    return jacobian.abs().amax(-1)


# ---- calls an attention of any kind as a layer


class _FunctionLayer(nn.Module):
    """A layer that projects x to q, k and v, and calls the user's function with them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.qkv = nn.Linear(H * K, 3 * H * K)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        heads = split_heads(self.qkv(x), 3 * H)
        q, k, v = heads.chunk(3, dim=1)
        output = self.function(q, k, v, mask)
        return merge_heads(_checked(q.shape, output))


def _copy_of(module: nn.Module) -> nn.Module:
    """Returns a copy in float32 and eval mode, with other weights, so that the check does not change the module."""
    shared = {}  # tensors that a forward pass has left on a module: deepcopy fails on those with gradients
    for submodule in module.modules():
        for value in vars(submodule).values():
            if isinstance(value, Tensor):
                shared[id(value)] = value
    layer = copy.deepcopy(module, shared)
    layer.float().cpu().eval()
    for submodule in layer.modules():
        if isinstance(submodule, nn.Linear):
            nn.init.xavier_normal_(submodule.weight)  # a matrix that is zero at first would hide every problem
    if isinstance(layer, nn.MultiheadAttention):
        layer.batch_first = True
    return layer


def _arguments(layer: nn.Module) -> tuple[list[str], str]:
    """Returns the names of the arguments for tokens, and of the argument for the mask, "" without one."""
    token_names = []
    mask_name = ""
    for name, parameter in inspect.signature(layer.forward).parameters.items():
        if "mask" in name or "valid" in name:
            mask_name = name
        elif parameter.default is parameter.empty:
            token_names.append(name)
    return token_names, mask_name


def _call(layer: nn.Module, mask: Tensor, *inputs: Tensor) -> Tensor:
    """Returns the output (B, T, D). Raises `_Stop` if the layer fails or the output has another shape.

    A single input is passed as each of the layer's arguments for tokens.
    """
    token_names, mask_name = _arguments(layer)
    if len(inputs) == 1:
        inputs *= len(token_names)
    shape = inputs[0].shape
    if "valid" in mask_name:
        mask = mask.sum(-1).expand(shape[:2])
    elif isinstance(layer, nn.MultiheadAttention):  # in PyTorch's own layer True means may not attend
        mask = ~mask
    options = {mask_name: mask} if mask_name else {}
    try:
        return _checked(shape, layer(*inputs, **options)).float()
    except _Stop:
        raise
    except Exception as error:
        hints = [hint for word, hint in HINTS.items() if word in str(error)]
        raise _Stop(f"it fails with {type(error).__name__}: {error}{''.join(hints)}") from error


def _checked(expected: torch.Size, output: Any) -> Tensor:
    """Returns the output, or its first element if it is a tuple. Raises `_Stop` for another shape than `expected`."""
    if isinstance(output, tuple):
        output = output[0]
    if output.shape != expected:
        raise _Stop(f"shapes: {tuple(output.shape)} where {tuple(expected)} is expected")
    return output


# ---- symptoms


def _problems(layer: nn.Module, x: Tensor) -> Iterator[str]:
    token_names, mask_name = _arguments(layer)
    mask = UNEVEN if mask_name else CAUSAL
    call = partial(_call, layer, mask)
    output = call(x)
    for module in layer.modules():
        for name, value in vars(module).items():
            # A tensor with a gradient is a result that the forward pass has kept for its user.
            if isinstance(value, Tensor) and not value.requires_grad:
                yield f"{name} is a tensor but no buffer, so `.to` does not move it to a GPU: use register_buffer"
    if not torch.allclose(output, call(x), equal_nan=True):
        yield "two calls with the same tokens differ, even after .eval(): dropout is not switched off"
        return
    for number, name in enumerate(token_names):
        inputs = [x] * len(token_names)
        inputs[number] = x.flip(0)
        if torch.equal(call(*inputs), output):
            yield f"the output does not depend on {name}"

    layer.train()
    in_training = influence(call, x)[0, :, 0]
    layer.eval()
    # How much the first text's outputs depend on its own tokens, and on those of the second text.
    influences, by_others = influence(call, x)[0].unbind(1)
    depends = influences > EXACT
    hidden = (~mask).fill_diagonal_(False)  # the token itself makes the query, so the output always depends on it
    near = mask & sliding_window_mask(T, 2)  # farther tokens may be outside the attention window
    # All tokens alike: each output is the same mean. With UNEVEN and a narrow window some queries would see none.
    means = _call(layer, CAUSAL, x[:, :1].expand_as(x))[0]
    symptoms = {
        "output {} is NaN, or does not depend on token {}, to which it may attend": near & ~(influences > 0),
        "output {} depends on token {} of another text of the batch": by_others > 0,
        "output {} depends on token {}, which is masked or comes later": hidden & depends,
        "in training output {} depends on token {}, which is masked or comes later: does dropout come before the "
        "softmax?": hidden & ~depends & (in_training > EXACT),
        "with all tokens alike, output {} differs from the last: weights do not add up to 1 (right only with a sink), "
        "or heads are mixed": ((means - means[-1]).abs() > ROUGH).any(-1),
    }
    for sentence, places in symptoms.items():
        for place in places.nonzero().tolist()[:1]:
            yield sentence.format(*place)
    yield from _causes(layer, x)


# ---- causes


def _causes(layer: nn.Module, x: Tensor) -> Iterator[str]:
    """Yields the mistake with which the formula gives the layer's output, if there is one.

    For a function, first yields how far its output is from the formula's, if rounding does not explain it. Assumes that
    one or three linear layers make queries, keys and values, in any order, and that a further one, if any, is the
    output matrix.
    """
    D = x.shape[-1]
    output = _call(layer, CAUSAL, x)
    linear = []
    for module in layer.modules():
        if isinstance(module, nn.Linear) and module.in_features == D and module.out_features % D == 0:
            linear.append(module)
    output_matrix = linear.pop() if len(linear) in (2, 4) else nn.Identity()
    projections = [projection for module in linear for projection in module(x).split(D, dim=-1)]
    if len(projections) != 3:
        return
    if isinstance(layer, _FunctionLayer):
        difference = (_attempts(H, *projections)[""] - output).abs().max()
        if difference > ROUGH:
            yield f"differs from the formula by {difference:.2g}"
    matching = []
    for heads in range(1, D + 1):
        if D % heads == 0:
            for order in permutations(projections):
                for mistake, values in _attempts(heads, *order).items():
                    # Skips the first query and the last: with a mistake in the mask, they may see nothing.
                    if (output_matrix(values) - output)[:, 1:-1].abs().max() < EXACT:
                        matching.append(mistake)
    if "" not in matching:
        yield from matching[:1]


def _attempts(heads: int, *projections: Tensor) -> dict[str, Tensor]:
    """Returns the formula's output (B, T, D) with each mistake, by a sentence that names it; "" for no mistake.

    Args:
        heads: H.
        projections: queries, keys and values (B, T, D).
    """
    q, k, v = (split_heads(x, heads) for x in projections)
    by_view = (x.reshape_as(q) for x in projections)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    masked = scores.masked_fill(~CAUSAL, -1e9)

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
        "the softmax runs over queries, not keys": merge_heads(masked.softmax(-2) @ v),
        "the softmax runs over heads, not keys": merge_heads(masked.softmax(-3) @ v),
        "queries and keys are the same: one is made from the other": attend(k=q),
        "queries, keys and values are the same: all are made from the queries": attend(k=q, v=q),
        "heads are merged without transposing back": split_heads(right, heads).reshape_as(right),
        "heads are split by view, without a transpose": attend(*by_view),
    }
