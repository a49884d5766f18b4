"""Compares an attention that a user has written with the formula, and names the mistake: `check_attention`.

Nobody says which matrix of a module makes the queries, or in which shape it takes tokens and a mask. There are few
possibilities, so all are tried: an attention is right if the formula gives its output in one of them. If not, each
mistake of attention_mistakes.py is tried; a cause is named only if the formula with this one mistake gives the same
output. If none does, symptoms are said: which token moves which output.

Shapes: B batch, T query length, S key length, D width of the tokens, E of the output, H heads, K head width.
"""

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import permutations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from model.attention import CausalSelfAttention, merge_heads
from model.inspection.attention_mistakes import FORMULA, MISTAKES, formula
from model.masks import causal_mask

EXACT = 1e-4  # the largest rounding error in float32, for values of about 1
ROUGH = 0.02  # the same in bfloat16 and float16, in which an attention may compute
BIAS = re.compile(r"bias|\bb_?\w?$")  # the name of a parameter that is no matrix, even if it has one axis for heads
CASES = {  # in which a function is compared: query length, head width, whether it is given a mask
    "": (5, 6, True),
    "with heads 10 wide, ": (5, 10, True),
    "with 3 queries and 5 keys, ": (3, 6, True),
    "with 3 queries and 5 keys as with a cache, and no mask, ": (3, 6, False),
}
HINTS = {  # advice if PyTorch's error message contains this word
    "ambiguous": ": write `if mask is not None`",
    "batch2": " Are the keys transposed?",
}


class _Stop(RuntimeError):
    """A problem that stops the check. Its message is a sentence for the user."""


def check_attention(
    attention: Callable[..., Any],
    *,
    width: int | None = None,
) -> list[str]:
    """Compares an attention with the formula: returns a sentence for each problem, [] if it was compared and is equal.

    Args:
        attention: a function (q, k, v, mask=None) of tensors (B, H, T, K), (B, T, K) or (T, K); or a module of tokens
            (B, T, D), (T, B, D) or (T, D), or of queries, keys and values. A mask is boolean, and True means may
            attend; or 0 and -inf, to be added to the scores; or `valid_lens`, the number of tokens that each text or
            query sees. Without a mask, a module is causal, or a warning says that each token sees all. If the
            attention returns a tuple, the first element is the output.
        width: D; by default found by trying the widths of the module's matrices.
    """
    with torch.random.fork_rng([]), torch.enable_grad():
        torch.manual_seed(0)
        try:
            return list(_problems(attention, width))
        except _Stop as problem:
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


def _problems(
    attention: Callable[..., Any],
    width: int | None,
) -> Iterator[str]:
    if not isinstance(attention, nn.Module):
        yield from _of_function(attention)
        return
    layer = _copy_of(attention)
    if isinstance(layer, CausalSelfAttention):
        yield from _of_function(layer.attend)
        if layer.forward.__module__ == layer.project.__module__ == CausalSelfAttention.__module__:
            return
    if any(p.ndim > 1 for p in layer.parameters()):
        yield from _of_module(layer, width)
    else:
        yield from _of_function(layer.forward, (6, 2, 4, 8, 16, 32, 64))


def _of_function(function: Callable[..., Any], widths: tuple[int, ...] = ()) -> Iterator[str]:
    """Compares a function of queries, keys and values, with heads of some widths; one of `widths` is enough."""
    layer = getattr(function, "__self__", None)
    is_attend = isinstance(layer, CausalSelfAttention)
    H, H_kv = 3, 3
    if is_attend:
        H, H_kv, widths = layer.num_heads, layer.num_kv_heads, (layer.head_dim,)
    for case, (T, K, is_told) in CASES.items():
        trials: list[_Trial] = []
        for head_width in widths or (K,):
            sizes = (H, T, head_width), (H_kv, 5, head_width), (H_kv, 5, head_width)
            inputs = [2 * torch.randn(2, *size) for size in sizes]
            choices = [inputs, [x[:, 0] for x in inputs], [x[0, 0] for x in inputs]]
            with suppress(_Stop) if case and not is_attend else nullcontext():
                trials += _trials(function, choices, is_told, is_attend)
        problems = list(_verdict(trials)) if trials else []
        yield from (case + problem for problem in problems)
        if problems:
            return


def _of_module(
    layer: nn.Module,
    width: int | None,
) -> Iterator[str]:
    matrices: dict[str, Tensor] = {
        name: p for name, p in layer.named_parameters() if p.ndim > 1 and not BIAS.search(name)
    }
    sizes = [width] if width else dict.fromkeys(size for p in matrices.values() for size in reversed(p.shape))
    count = len(_arguments(layer.forward)[0])
    batches = []
    for T in (5, 4, 3, 2):
        for D in sizes:
            x = 2 * torch.randn(count, 2, T, D)
            batches.append([x[min(index, count - 1)] for index in range(3)])
    parts = [(part, *named) for part in layer.modules() for named in vars(part).items()]
    constants = [named for named in parts if isinstance(named[2], Tensor) and named[2].ndim]
    choices = batches + [[x[0] for x in inputs] for inputs in batches]
    trials = _trials(layer.forward, choices, matrices=matrices)
    with suppress(_Stop):
        trials += _trials(layer.forward, batches, matrices=matrices, tokens_first=True)
    for part, name, value in constants:
        if vars(part)[name] is value:  # and not what the forward pass has kept for its user
            yield f"{name} is a tensor but no buffer, so `.to` does not move it to a GPU: use register_buffer"
    yield from _verdict(trials)


def _verdict(trials: list["_Trial"]) -> Iterator[str]:
    right = next((trial for trial in trials if trial.is_right()), None)
    trial = right or trials[0]
    if not torch.allclose(trial.call(*trial.inputs), trial.call(*trial.inputs), equal_nan=True):
        yield "two calls with the same tokens differ, even after .eval(): dropout is not switched off"
        return
    seen = list(_without_influence(trial))
    yield from seen
    if right:
        yield from _beyond(trial)
        return
    if trials[0].matrices:  # they can be read in many ways, which takes time
        trials = trials[:1] if seen else trials[:2] + trials[-1:]
    causes = next(filter(None, (trial.causes() for trial in trials)), [])
    yield from causes
    if not seen and not causes:
        yield from _symptoms(trial)
        yield "it differs from the formula; the cause is not known"
        if trial.matrices:
            yield f"if not all of {', '.join(trial.matrices)} make q, k, v or the output, give a function of q, k, v"


def _beyond(trial: "_Trial") -> Iterator[str]:
    """What the formula does not say of an attention that it gives."""
    large = trial.scaled(5)
    if not large.is_right():
        yield from large.causes() or ["with large scores it differs from the formula: are hidden scores -inf?"]
    if not trial.scaled(300).output.isfinite().all():
        yield "with large scores the output is not finite: an exponential overflows"
    layer = getattr(trial.call.args[0], "__self__", None)
    if trial.is_given_by(trial.masks[0]) and isinstance(layer, nn.Module):
        layer.train()
        if (trial.moved_by(-1)[0] & ~trial.masks[0][0, 0, :, -1]).any():
            yield "in training, outputs depend on a token that is hidden: does dropout come before the softmax?"
        layer.eval()
    if not trial.is_given_by(trial.masks[0]) and trial.is_given_by(torch.ones_like(trial.masks[0])):
        with _Calls() as calls:
            trial.call(*trial.inputs)
        if calls.names & {"tril", "triu", "masked_fill", "masked_fill_", "asked if causal"}:
            yield "a mask is made, but each token sees all tokens: the mask is not applied"
        else:
            warnings.warn("compared without a mask: each token sees all tokens, also later ones", stacklevel=5)


class _Calls(TorchFunctionMode):
    """Collects the names of the functions of PyTorch that are called, and of their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, function, types, inputs=(), options=None):
        options = options or {}
        self.names.add(getattr(function, "__name__", ""))
        if function is F.scaled_dot_product_attention and "is_causal" in options:
            self.names.add("asked if causal")
        return function(*inputs, **options)


def _without_influence(trial: "_Trial") -> Iterator[str]:
    for role in trial.roles if len(trial.roles) > 1 else ():
        inputs = list(trial.inputs)
        inputs[role] = inputs[role].flip(-1)
        if torch.equal(trial.call(*inputs), trial.call(*trial.inputs)):
            yield f"the output does not depend on the {('queries', 'keys', 'values')[role]}"
    for name, p in trial.matrices.items():
        loss = trial.call(*trial.inputs).square().sum()
        gradient = torch.autograd.grad(loss, p, materialize_grads=True, allow_unused=True)[0]
        for axis, size in enumerate(p.shape):
            unused = gradient.movedim(axis, 0).flatten(1).eq(0).all(1).nonzero().flatten().tolist()
            if unused:
                part = "" if len(unused) == size else f", {unused[0]} to {unused[-1]} of axis {axis},"
                yield f"{name}{part} has no influence on the output"
                break


def _symptoms(trial: "_Trial") -> Iterator[str]:
    if not trial.output.isfinite().all():
        yield "the output is NaN or infinite"
    for s in range(trial.masks[0].shape[-1]):
        moved = trial.moved_by(s)
        if moved[1:].any():
            yield "an output depends on another text of the batch"
            return
        for t, visible in enumerate(trial.masks[0][0, 0, :, s].tolist()):
            if t != s and moved[0, t] != visible:
                yield f"output {t} {'does not depend' if visible else 'depends'} on token {s}"
                return


# ---- one call


@dataclass
class _Trial:
    """A call of the attention that works, to be compared with the formula."""

    call: partial[Tensor]
    inputs: list[Tensor]
    masks: list[Tensor]  # what each query may have been meant to see, (B or 1, 1, T, S)
    roles: list[int]
    matrices: dict[str, Tensor]
    directions: Tensor | None = None  # (E, 16): outputs are compared in a few directions, which is faster
    readings: Sequence[tuple[Tensor, ...]] = ()  # queries, keys, values (B, H, T, K), and the output matrix (H * K, 16)

    def scaled(
        self,
        factor: float,
    ) -> "_Trial":
        readings = [(factor * q, factor * k, factor * v, back) for q, k, v, back in self.readings]
        return replace(self, inputs=[factor * x for x in self.inputs], readings=readings)

    @cached_property
    def output(self) -> Tensor:
        return _merged(self.call(*self.inputs), self.matrices)

    def moved_by(
        self,
        s: int,
    ) -> Tensor:
        """Which outputs (B, T) change if token s of the first text is another."""
        outputs = []
        for change in (0, 1):
            inputs = [x.clone() for x in self.inputs]
            for x in inputs[len(self.roles) > 1 :]:
                _whole(x, self.matrices)[0, ..., s, :] += change
            torch.manual_seed(0)
            outputs.append(_merged(self.call(*inputs), self.matrices))
        return ~((outputs[0] - outputs[1]).abs().sum(-1) < EXACT)

    @torch.no_grad()
    def is_given_by(
        self,
        mask: Tensor,
        *changed: str,
    ) -> bool:
        target = self.output @ self.directions
        rounded = (self.output.to(dtype).float() for dtype in (torch.bfloat16, torch.float16))
        is_rough = any(torch.equal(self.output, output) for output in rounded)
        limit = (ROUGH if is_rough else EXACT) * target.nan_to_num().abs().max().clamp(min=1)
        for q, k, v, back in self.readings:
            with suppress(RuntimeError):
                given = formula(q, k, v, mask, self.inputs[0].shape[-1], *changed) @ back
                known = given.isfinite()
                difference = torch.where(known, given - target, 0).abs().nan_to_num(torch.inf)
                is_known = known.float().mean() > 0.5 or (known.any() and torch.equal(known, target.isfinite()))
                if is_known and difference.max() < limit:
                    return True
        return False

    def is_right(self) -> bool:
        return any(self.is_given_by(mask) for mask in self.masks)

    def causes(self) -> list[str]:
        causes = []
        for name, lines in MISTAKES.items():
            for line, cause in lines.items():
                if any(self.is_given_by(mask, name, line) for mask in self.masks[:2]):
                    causes.append(f"{cause}: `{name} = {line}` for `{name} = {FORMULA[name]}`")
        return causes


def _whole(
    x: Tensor,
    matrices: Any,
) -> Tensor:
    """x with the axes that it was passed without: (B, T, D) for a module, (B, H, T, K) for a function."""
    while x.ndim < (3 if matrices else 4):
        x = x.unsqueeze(x.ndim - 2)
    return x.detach()


def _merged(
    output: Tensor,
    matrices: Any,
) -> Tensor:
    """(B, T, E)"""
    output = _whole(output, matrices)
    return output if matrices else merge_heads(output)


@torch.no_grad()
def _nearest_readings(
    inputs: list[Tensor], matrices: dict[str, Tensor], directions: Tensor, calls: list[partial[Tensor]]
) -> Sequence[tuple[Tensor, ...]]:
    """The readings of the matrices whose values are nearest to the output for one token.

    With one token, its weight is 1: whatever the mistake, the output is the value, times the output matrix.
    """
    if not matrices:
        return [(*(_whole(x, matrices) for x in inputs), directions)]
    x = torch.stack([_whole(x, matrices) for x in inputs])
    readings = list(_readings(x, [*matrices.values()], directions))
    values, owners = [], []
    for reading in readings:
        q, _, v, back = reading
        times = q.shape[-3] // v.shape[-3]
        for heads in {False: v.repeat_interleave(times, -3), times > 1: v.repeat(1, times, 1, 1)}.values():
            values.append(merge_heads(heads[..., :1, :]) @ back)
            owners.append(reading)
    for call in calls:
        with suppress(Exception):  # some layers do not take one token
            one = (_whole(call(*(x[..., :1, :] for x in inputs)), matrices) @ directions).flatten()
            cosines = torch.cosine_similarity(torch.stack(values).flatten(1), one).nan_to_num()
            near = (cosines > cosines.max() - 1e-3).nonzero().flatten()
            return [tuple(x.contiguous() for x in owners[index]) for index in near][:100]
    return readings[:100]


def _readings(
    x: Tensor,
    matrices: list[Tensor],
    directions: Tensor,
) -> Iterator[tuple[Tensor, ...]]:
    """Yields queries, keys and values (B, H, T, K) of x (3, B, T, D), and what the output matrix makes of `directions`.

    One matrix may make the output, the others make columns. They are cut in each order of q, k, v, heads and widths.
    """
    D, E = x.shape[-1], len(directions)
    for turned in (matrices, [matrix.mT if matrix.shape[0] == matrix.shape[-1] else matrix for matrix in matrices]):
        for output in (None, *reversed(turned)):
            features = []
            for matrix in turned:
                if matrix is not output and D in matrix.shape:
                    axis = max(axis for axis, size in enumerate(matrix.shape) if size == D)
                    features.append(torch.tensordot(x, matrix, ([-1], [axis])).flatten(3))
            back = directions
            if output is not None:
                if E not in (output.shape[0], output.shape[-1]):
                    continue
                back = (output.reshape(E, -1).T if output.shape[0] == E else output.reshape(-1, E)) @ directions
            for H in range(1, max(2, min(65, len(back)))):
                if features and len(back) % H == 0:
                    for cut in _cuts(torch.cat(features, -1), H, len(back) // H):
                        for order in permutations(range(3)):
                            q, k, v = (cut[index][role] for role, index in enumerate(order))
                            if k.shape == v.shape:
                                yield q, k, v, back


def _cuts(
    columns: Tensor,
    H: int,
    K: int,
) -> Iterator[Any]:
    """Yields queries, keys and values in any order, (3, 3, B, H, T, K)"""
    N = columns.shape[-1]
    sizes = {0: 3, 1: H, 2: K}
    if N == 3 * H * K:
        for axes in permutations(sizes):
            cut = columns.unflatten(-1, [sizes[axis] for axis in axes])
            yield cut.permute(3 + axes.index(0), 0, 1, 3 + axes.index(1), 2, 3 + axes.index(2))
    H_kv, rest = divmod(N - H * K, 2 * K)
    if 0 < H_kv < H and not rest and H % H_kv == 0:
        parts = columns.split([H * K, H_kv * K, H_kv * K], -1)
        yield [part.unflatten(-1, (-1, K)).transpose(-3, -2) for part in parts]


def _trials(
    function: Callable[..., Any],
    choices: list[list[Tensor]],
    is_told: bool = True,
    causal_only: bool = False,
    tokens_first: bool = False,
    matrices: dict[str, Tensor] | None = None,
) -> list[_Trial]:
    """Calls the attention in each way that it may expect, with the first of the choices that it takes."""
    matrices = matrices or {}
    roles, mask_name = _arguments(function)
    trials: list[_Trial] = []
    errors = []
    for inputs in choices:
        whole = _whole(inputs[0], matrices)
        B, T, S = len(whole), whole.shape[-2], inputs[1].shape[-2]
        causal = causal_mask(T, S)[None, None]
        everything = torch.ones_like(causal)
        meant = [causal, everything, everything.tril()]
        ways: list[Any] = [(meant[: 1 if causal_only else 2 if mask_name else 3], {}, {})]
        if mask_name and is_told:
            ways = []
            for (mask, given), (_, one) in zip(_masks(mask_name, B, T, S), _masks(mask_name, B, 1, 1), strict=True):
                ways.append(([mask, mask & causal], {mask_name: given}, {mask_name: one}))
        calls_one = []
        for masks, *options in ways:
            call, call_one = (partial(_call, function, roles, tokens_first, option) for option in options)
            try:
                output = _merged(call(*inputs), matrices)
            except Exception as error:
                errors.append(error)
                continue
            calls_one.append(call_one)
            trials.append(_Trial(call, inputs, masks, roles, matrices))
        if trials:
            directions = torch.randn(output.shape[-1], 16)
            readings = _nearest_readings(inputs, matrices, directions, calls_one)
            return [replace(trial, directions=directions, readings=readings) for trial in trials]
    if isinstance(errors[0], _Stop):
        raise errors[0]
    hints = [hint for word, hint in HINTS.items() if word in str(errors[0])]
    raise _Stop(f"it fails with {type(errors[0]).__name__}: {errors[0]}{''.join(hints)}") from errors[0]


def _arguments(
    function: Callable[..., Any],
) -> tuple[list[int], str]:
    """Returns which of queries, keys and values the arguments take, and the name of the mask, "" without one."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # PyTorch's kernel
        return [0, 1, 2], "attn_mask"
    named = [p for p in parameters if "*" not in str(p)]
    masks = [p.name for p in named if re.search("mask|valid|len", p.name) and not isinstance(p.default, int)]
    tokens = [p.name for p in named if p.default is p.empty and p.name not in masks]
    if len(tokens) > 2 and not masks:
        masks = [p.name for p in named[3:4] if p.default in (None, p.empty) and "drop" not in p.name]
    roles = ["qkv".find(name[0].lower()) for name in tokens[:3]]
    if sorted(roles) != [0, 1, 2]:
        roles = list(range(len(roles) or 3))
    return roles, (masks or [""])[0]


def _call(
    function: Callable[..., Any], roles: list[int], tokens_first: bool, options: dict[str, Tensor], *inputs: Tensor
) -> Tensor:
    passed = [inputs[role].clone() for role in roles]
    if tokens_first:
        passed = [x.transpose(0, 1) for x in passed]
    output = function(*passed, **options)
    if isinstance(output, (tuple, list)):
        output = output[0]
    expected = passed[0].shape[:-1]
    if output.shape[:-1] != expected:
        raise _Stop(f"shapes: {tuple(output.shape)} where {(*expected, passed[-1].shape[-1])} is expected")
    return (output.transpose(0, 1) if tokens_first else output).float()


def _masks(
    name: str,
    B: int,
    T: int,
    S: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields what a mask may mean (B or 1, 1, T, S), and what is passed."""
    each = torch.arange(S) < torch.tensor([[3, 2, 2, 2, S], [S, 1, 4, 3, 2]])[:B, None, -T:, None].clamp(max=S)
    whole = torch.arange(S) < torch.tensor([S - 1, S - 3]).clamp(min=1)[:B, None, None, None]
    if re.search("valid|len", name):
        yield whole, whole.sum(-1).flatten()
        yield each, each.sum(-1)[:, 0]
        return
    for mask, given in (
        (each[:1], each[0, 0]),
        (each, each),
        (each, each[:, 0]),
        (whole, whole[:, 0, 0]),
        (each, each[:, 0].movedim(0, -1)),
    ):
        yield mask, given
        yield mask, torch.where(given, 0.0, -torch.inf)
        yield mask, given.float()


def _copy_of(module: nn.Module) -> nn.Module:
    """Returns a copy in float32 and eval mode, with other weights, so that the check does not change the module."""
    # Tensors that a forward pass has left on a module are shared: deepcopy fails on those with gradients.
    kept = [value for part in module.modules() for value in vars(part).values() if isinstance(value, Tensor)]
    layer = copy.deepcopy(module, {id(value): value for value in kept})
    layer.float().cpu().eval()
    for name, p in layer.named_parameters():
        if BIAS.search(name):
            nn.init.zeros_(p)
        elif p.ndim > 1:
            nn.init.xavier_normal_(p)
    return layer
