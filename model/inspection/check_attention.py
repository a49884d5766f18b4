"""Compares an attention that a user has written with the formula, and names the mistake: `check_attention`.

Nobody says how the attention is to be called (attention_calls.py), nor which of a module's matrices makes the queries
(attention_matrices.py). There are few possibilities, so all are tried: an attention is right if the formula gives its
output in one of them. If not, each change of the formula in attention_mistakes.py is tried: a cause is named only if
the formula with this one change gives the same output. If none does, a symptom is said.

Shapes: B batch, T query length, S key length, D width of the tokens, H heads, K head width.
"""

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from model.attention import CausalSelfAttention
from model.inspection.attention_calls import SCALE, Call, calls
from model.inspection.attention_matrices import Assignment, Watch, assignments
from model.inspection.attention_mistakes import FORMULA, MISTAKES, formula
from model.masks import causal_mask, padding_mask
from model.mistakes import Mistake

LIMIT = 0.02  # of the largest value: more than float16 and bfloat16 round, less than a mistake changes
BIAS = r"bias|\bb_?\w?$"  # the name of a parameter that is no matrix, even if it has one axis for heads
MASKING = {"tril", "triu", "masked_fill", "masked_fill_"}  # functions that make or apply a mask


def check_attention(attention: Callable[..., Any]) -> list[str]:
    """Compares an attention with the formula: returns a sentence for each problem, [] if it was compared and is equal.

    Args:
        attention: a function (q, k, v, mask=None) of tensors (B, H, T, K), (B, T, K) or (T, K); or a module of tokens
            (B, T, D), (T, B, D) or (T, D), or of queries, keys and values. A mask is boolean, and True means may
            attend; or 0 and -inf, to be added to the scores; or `valid_lens`, the number of tokens that each text or
            query sees. If the attention returns a tuple, the first element is the output. A warning says if it was
            compared without a mask, or with tokens first.
    """
    with torch.random.fork_rng([]), torch.enable_grad():
        torch.manual_seed(0)
        try:
            return list(_of_module(attention) if isinstance(attention, nn.Module) else _of_function(attention))
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


def _of_function(function: Callable[..., Any]) -> Iterator[str]:
    problems = list(_problems(_trials_of_heads(function, 6)))
    yield from problems
    if not problems:
        for problem in _problems(_trials_of_heads(function, 10)):
            yield f"with heads 10 wide, {problem}"


def _of_module(module: nn.Module) -> Iterator[str]:
    # deepcopy fails on tensors that a forward pass has left on a module, so the copy shares them.
    left = _plain_tensors(module)
    layer = copy.deepcopy(module, {id(tensor): tensor for tensor in left.values()}).float().cpu().eval()
    if isinstance(layer, CausalSelfAttention):
        yield from _of_attend(layer)
        if layer.forward.__module__ == layer.project.__module__ == CausalSelfAttention.__module__:
            return
    matrices = {}
    for name, p in layer.named_parameters():
        if re.search(BIAS, name):
            nn.init.zeros_(p)
        elif p.ndim > 1:
            matrices[name] = nn.init.xavier_normal_(p)
    if matrices:
        yield from _problems(_trials_of_tokens(layer, matrices), matrices)
    else:
        yield from _problems([trial for K in (6, 2, 4, 8, 16, 32, 64) for trial in _trials_of_heads(layer.forward, K)])
    for name, tensor in _plain_tensors(layer).items():
        if left.get(name) is tensor and tensor.ndim:  # and not what the forward pass keeps for its user
            yield f"{name} is a tensor but no buffer, so `.to` does not move it to a GPU: use register_buffer"


def _of_attend(layer: CausalSelfAttention) -> Iterator[str]:
    for T in (5, 3):
        q = SCALE * torch.randn(2, layer.num_heads, T, layer.head_dim)
        k, v = SCALE * torch.randn(2, 2, layer.num_kv_heads, 5, layer.head_dim)
        padding = padding_mask(torch.tensor([3, 5]), 5)
        for mask, options in ((padding, {"mask": padding}), (causal_mask(T, 5)[None, None], {})):
            problems = list(
                _problems([_trial_of_heads(Call(layer.attend, ["q", "k", "v"], "BHTK", options, [q, k, v], [mask]))])
            )
            if problems:
                given = "a mask" if options else "no mask"
                yield from (f"attend, with {T} queries, 5 keys and {given}: {problem}" for problem in problems)
                return


def _plain_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Returns the tensors that are neither parameters nor buffers."""
    parts = module.named_modules()
    named = {f"{path}.{name}": value for path, part in parts for name, value in vars(part).items()}
    return {name: value for name, value in named.items() if isinstance(value, Tensor)}


@dataclass
class Trial:
    """A call of an attention, to be compared with the formula."""

    call: Call
    assignments: list[Assignment]

    @torch.no_grad()
    def is_given_by(
        self,
        mask: Tensor,
        change: dict[str, str],
    ) -> bool:
        D = self.call.inputs[0].shape[-1]
        for q, k, v, merged in self.assignments:
            with suppress(RuntimeError):  # a change that does not fit these shapes
                given = formula(q, k, v, mask, D, change)
                known = given.isfinite()
                difference = torch.where(known, given - merged, 0).abs().flatten(2).amax(2)
                is_near = difference < LIMIT * merged.nan_to_num().abs().max()
                if (is_near & known.flatten(1).any(1)).any():
                    return True
        return False

    def causes(self) -> list[str]:
        return [
            f"{cause}: `{name} = {line}` for `{name} = {FORMULA[name]}`"
            for name, lines in MISTAKES.items()
            for line, cause in lines.items()
            if any(self.is_given_by(mask, {name: line}) for mask in self.call.masks)
        ]


def _trials_of_heads(function: Callable[..., Any], K: int) -> list[Trial]:
    return [_trial_of_heads(call) for call in calls(function, [("BHTK", "BTK", "TK")], [5], [K])]


def _trial_of_heads(call: Call) -> Trial:
    if len(call.inputs) != 3:
        raise Mistake("give a function of q, k and v, or a module with the matrices that make them")
    q, k, v = call.inputs
    return Trial(call, [(q[None], k[None], v[None], call(call.inputs)[None, None])])


def _trials_of_tokens(
    layer: nn.Module,
    matrices: dict[str, Tensor],
) -> list[Trial]:
    widths = dict.fromkeys(size for p in matrices.values() for size in reversed(p.shape))
    trials = []
    for call in calls(layer.forward, [("BTK", "TK"), ("TBK",)], [5, 4], widths):
        with Watch(layer) as watch:
            output = call(call.inputs)
        tokens = [x[:, 0] for x in call.inputs]
        sources = [tokens[min(role, len(tokens) - 1)] for role in range(3)]
        trials.append(Trial(call, [*assignments(sources, watch.products, output)]))
    return trials


# ---- what is said


def _problems(
    trials: list[Trial],
    matrices: dict[str, Tensor] | None = None,
) -> Iterator[str]:
    matrices = matrices or {}
    right = next(
        ((trial.call, mask) for trial in trials for mask in trial.call.masks if trial.is_given_by(mask, {})), None
    )
    call = right[0] if right else trials[0].call
    if not torch.allclose(call(call.inputs), call(call.inputs), equal_nan=True):
        yield "two calls with the same tokens differ, even after .eval(): dropout is not switched off"
        return
    unused = [*_without_influence(call, matrices)]
    if unused:
        yield f"no influence on the output: {', '.join(unused)}"
    if right:
        yield from _beyond(*right)
        return
    causes = next(filter(None, (trial.causes() for trial in trials)), [])
    yield from causes
    if not unused and not causes:
        yield from _symptoms(call)
        yield "it differs from the formula; the cause is not known"
        if matrices:
            yield f"if not all of {', '.join(matrices)} make q, k, v or the output, give a function of q, k, v"


def _without_influence(
    call: Call,
    matrices: dict[str, Tensor],
) -> Iterator[str]:
    """Yields the names of inputs, matrices, and parts of matrices that the output does not depend on."""
    inputs = [x.clone().requires_grad_() for x in call.inputs]
    parts = dict(zip(call.names, inputs, strict=True)) | matrices
    loss = call(inputs).square().sum()
    gradients = torch.autograd.grad(loss, [*parts.values()], materialize_grads=True, allow_unused=True)
    for name, gradient in zip(parts, gradients, strict=True):
        for axis in (0, -1) if name in matrices else (-1,):
            rows = gradient.movedim(axis, 0).flatten(1).eq(0).all(1).nonzero().flatten().tolist()
            if rows:
                yield f"{name}, {rows[0]} to {rows[-1]} of axis {axis}" if gradient.any() else name
                break


def _beyond(call: Call, mask: Tensor) -> Iterator[str]:
    """What the formula does not say of an attention that it gives."""
    if not call([5 * x for x in call.inputs]).isfinite().all():
        yield "with large scores the output is not finite: an exponential overflows"
    if mask.all():
        with Functions() as functions:
            call(call.inputs)
        if functions.make_a_mask:
            yield "a mask is made, but each token sees all tokens: the mask is not applied"
        else:
            warnings.warn("compared without a mask: each token sees all tokens, also later ones", stacklevel=4)
    if call.layout == "TBK":
        warnings.warn("compared with tokens first, as (T, B, D)", stacklevel=4)


class Functions(TorchFunctionMode):
    """Watches the functions of PyTorch that are called: does one make or apply a mask?"""

    make_a_mask = False

    def __torch_function__(self, function, types, inputs=(), options=None):
        options = options or {}
        is_asked = function is F.scaled_dot_product_attention and "is_causal" in options
        if is_asked or function.__name__ in MASKING:
            self.make_a_mask = True
        return function(*inputs, **options)


def _symptoms(call: Call) -> Iterator[str]:
    if not call(call.inputs).isfinite().all():
        yield "the output is NaN or infinite"
    *others, last = call.inputs
    moved = influence(lambda x: call([*others, x]), last)[0, :, 0].any(1)  # by a token of the first text, (T, S)
    for t, s in (moved != call.masks[0][0, 0]).nonzero().tolist():
        if t != s:
            yield f"output {t} {'depends' if moved[t, s] else 'does not depend'} on token {s}"
            return
