"""Compares an attention that a user has written with the formula, and names the mistake: `check_attention`.

Nobody says how the attention is to be called (attention_calls.py), nor which of a module's matrices makes the queries
(attention_readings.py). There are few possibilities, so all are tried: an attention is right if the formula gives its
output in one of them. If not, each change of the formula in attention_mistakes.py is tried: a cause is named only if
the formula with this one change gives the same output. If none does, a symptom is said.

Shapes: B batch, T query length, S key length, D width of the tokens, H heads, K head width.
"""

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from model.attention import CausalSelfAttention
from model.inspection.attention_calls import SCALE, Call, Order, arguments, calls, line_reached
from model.inspection.attention_mistakes import FORMULA, MISTAKES
from model.inspection.attention_readings import Reading, readings
from model.masks import causal_mask, padding_mask
from model.mistakes import Mistake, listed

BIAS = r"bias|b_?\w?"  # the name of a parameter that is no matrix, even if it has one axis for heads
NUM_HEADS = ("num_heads", "n_heads", "n_head", "nhead", "heads", "h")  # names that people give it
NO_MODULE = nn.Module()
# Of heads: an attention that is made for one width is right if one is right.
WIDTHS = [[width] for width in (11, 2, 4, 8, 16, 32, 64)]
DIFFERS = "it differs from the formula; none of the known mistakes gives its output"
NOT_COMPARED = "it could not be compared with the formula"
LONG = 11  # tokens, enough to detect an attention that sees only the last few
SHORT = 5  # tokens, for an attention that is made for no more
MASKING = {"tril", "triu", "masked_fill", "masked_fill_"}  # functions that make or apply a mask


class Way(NamedTuple):
    """A way to call an attention. letters: the axes of its inputs. axes: the first of them."""

    letters: str
    axes: tuple[int, ...]
    order: Order = "texts first"


OF_HEADS = [Way("(B, H, T, K)", (2, 3)), Way("(B, T, K)", (2,)), Way("(T, K)", (2,), "one text")]
TOKENS_FIRST = Way("(T, B, D), as without batch_first=True,", (2,), "tokens first")
OF_TOKENS = [Way("(B, T, D)", (2,)), TOKENS_FIRST, Way("(T, D)", (2,), "one text")]


def check_attention(attention: Callable[..., Any]) -> list[str]:
    """Compares an attention with the formula: returns a sentence for each problem, [] if it was compared and is equal.

    Args:
        attention: a function (q, k, v, mask=None) of tensors (B, H, T, K) or (B, T, K); or a module of tokens
            (B, T, D) or (T, B, D), or of queries, keys and values. B may be missing. A mask is boolean, and True means
            may attend; or 0 and -inf, to be added to the scores; or `valid_lens`, the number of tokens of each text. If
            the attention returns a tuple, the first element is the output.

    It is compared with as many queries as keys, and the `attend` of a `CausalSelfAttention` also with fewer, as with a
    cache. A warning says if it was compared without a mask, without its norms, or with one text at a time.
    """
    with torch.random.fork_rng([]), torch.enable_grad():
        torch.manual_seed(0)
        try:
            if isinstance(attention, nn.Module):
                return list(_of_module(attention))
            if isinstance(getattr(attention, "__self__", None), nn.Module):
                return _compared(attention, OF_HEADS, (LONG, SHORT), WIDTHS)
            given = [name for name in arguments(attention)[0] if re.match("[wW](_|.$)", name)]
            # A function of its matrices is a module that owns them.
            if matrices := nn.ParameterDict((name, torch.zeros(8, 8)) for name in given):
                matrices.forward = partial(attention, **matrices)
                return list(_of_module(matrices))
            for widths in ([[24]], [[12, 16]]):  # two, because a constant may be right for one
                if problems := _compared(attention, OF_HEADS, (LONG, SHORT), widths):
                    return problems
            return []
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


def _of_module(module: nn.Module) -> Iterator[str]:
    # deepcopy fails on tensors that a forward pass has left on a module, so the copy shares them.
    shared = {id(value): value for _, value in _plain(module, Tensor)}
    layer = copy.deepcopy(module, {**shared})
    layer.float().cpu().eval()
    widths = {part.out_features for part in layer.modules() if isinstance(part, nn.LazyLinear)}
    if widths:
        calls(layer.forward, [(2, 5, D) for D in widths])  # the first call makes its matrices
    layer.requires_grad_().zero_grad()
    if isinstance(layer, CausalSelfAttention):
        yield from _of_attend(layer)
        if type(layer).forward is CausalSelfAttention.forward:
            return
    for name, part in layer.named_modules():
        if isinstance(part, nn.ModuleList) and len({*part}) < len(part):
            yield f"{name} holds one module more than once: `[module] * n` makes no copies"
    known = {*layer.modules(), *layer.parameters()}
    for name, value in _plain(layer, list):
        if {part for part in value if isinstance(part, (nn.Module, nn.Parameter))} - known:
            yield f"{name} is a plain list: what it holds is not trained, use nn.ModuleList or nn.ParameterList"
            return
    _leave_norms_out(layer)
    _fill(layer)
    sizes = dict.fromkeys(size for p in layer.parameters() if p.ndim > 1 for size in reversed(p.shape))
    if sizes:
        ways = OF_TOKENS if getattr(layer, "batch_first", True) else [TOKENS_FIRST]
        yield from _compared(layer.forward, ways, (SHORT, 4), [[*sizes]], layer)
    else:
        yield from _compared(layer.forward, OF_HEADS, (LONG, SHORT), WIDTHS)
    for name, value in _plain(layer, Tensor):
        if id(value) in shared and value.ndim:  # and not what the forward pass keeps for its user
            yield f"{name} is a tensor but no buffer, so `.to` does not move it to a GPU: use register_buffer"


def _compared(
    function: Callable[..., Any],
    ways: list[Way],
    lengths: tuple[int, int],
    widths: list[list[int]],
    layer: nn.Module = NO_MODULE,
) -> list[str]:
    """The problems of an attention, called in the first way in which it is equal; else one whose cause is known.

    Args:
        lengths: the first one that works is tried.
        widths: of the inputs: of each list, the first one that works is tried.
    """
    trials: dict[str, list[str]] = {}
    failures: list[Mistake] = []
    for letters, axes, order in ways:
        if order == "one text" and trials:
            break
        found: list[Call] = []
        for some in widths:
            try:
                found += calls(function, [(*axes, T, width) for T in lengths for width in some], order)
            except Mistake as failure:
                failures.append(failure)
        if not found:
            continue
        is_known = any(map(_is_known, trials.values()))
        problems = list(_problems(found, layer, is_known))
        if not problems:
            if order == "one text":
                _warn("compared with one text at a time")
            if not trials:
                return []
            known = [problem for told in trials.values() if _is_known(told) for problem in told]
            told = f"compared as {letters} and equal, but not as {listed([*trials], 'or')}"
            if known or order == "tokens first":
                return [told, *known]
            _warn(told)
            return []
        trials[letters] = problems
    if not trials:
        raise max(failures, key=line_reached)
    return max(trials.values(), key=_is_known)


def _is_known(problems: list[str]) -> bool:
    """Whether the cause of the problems is known."""
    return DIFFERS not in problems and NOT_COMPARED not in problems


def _plain(module: nn.Module, kind: type) -> Iterator[tuple[str, Any]]:
    """Yields the attributes of this kind that are neither parameters, buffers nor modules."""
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, kind):
                yield name, value


def _leave_norms_out(layer: nn.Module) -> None:
    """Lets norms return their input, of queries and keys too: the formula has none. Their parameters stay in use."""
    norms = [part for part in layer.modules() if "norm" in type(part).__name__.lower()]
    for norm in norms:
        norm.register_forward_hook(lambda norm, inputs, output: inputs[0] + 0 * output)
    if norms:
        _warn("compared without its norms")


def _fill(layer: nn.Module) -> None:
    """Fills biases with zeros, and a square matrix so that its rows and columns are alike, as `readings` needs it."""
    for name, p in layer.named_parameters():
        if re.fullmatch(BIAS, name.rpartition(".")[2]) or (p.ndim == 1 and "bias" in name):
            nn.init.zeros_(p)
        elif p.ndim > 1:
            nn.init.xavier_normal_(p)
            if p.shape[-1] == p.shape[-2]:
                p.data = p.data + p.data.mT


def _of_attend(layer: CausalSelfAttention) -> list[str]:
    padding = padding_mask(torch.tensor([3, LONG]), LONG)
    for T, given in product((LONG, 3), ({"mask": padding}, {})):
        q = SCALE * torch.randn(2, layer.num_heads, T, layer.head_dim)
        k, v = SCALE * torch.randn(2, 2, layer.num_kv_heads, LONG, layer.head_dim)
        causal = causal_mask(T, LONG)[None, None]
        inputs = {"q": q, "k": k, "v": v}
        call = Call(layer.attend, inputs, given, [given.get("mask", causal)])
        about = f"attend, with {T} queries, {LONG} keys and {'a' if given else 'no'} mask"
        problems = [f"{about}: {problem}" for problem in _problems([call], NO_MODULE)]
        if problems:
            return problems
    return []


# ---- what is said


def _warn(text: str) -> None:
    """Warns at the line that has called `check_attention`."""
    names = [frame.function for frame in inspect.stack(0)]
    warnings.warn(text, stacklevel=names.index("check_attention") + 2)


def _problems(
    found: list[Call],
    layer: nn.Module,
    is_known: bool = False,
) -> Iterator[str]:
    """Yields the problems of these calls. is_known: the cause is known already, and not looked for."""
    parameters = dict(layer.named_parameters())
    matrices = {name: p for name, p in parameters.items() if p.ndim > 1 and p.any()}
    trials = [list(readings(call, [*matrices.values()])) for call in found]
    declared = {name: value for name, value in vars(layer).items() if name in NUM_HEADS and isinstance(value, int)}
    right = next((reading for trial in trials for reading in trial if reading.is_given_by({})), None)
    call = right.call if right else found[0]
    for changed in {name for call in found for name in call.changed}:
        yield f"it changes its argument {changed} in place: the caller still needs it"
    if not torch.allclose(call.output, call(call.inputs), equal_nan=True):
        yield "two calls with the same tokens differ, even after .eval(): dropout is on, or forward makes new layers"
        return
    unused = [*_without_influence(call, parameters, matrices)]
    if unused:
        what = "no gradient" if right else "no influence on the output, or no gradient"
        yield f"{what}: {', '.join(unused)}"
    if right:
        for name, value in declared.items():
            if value != right.num_heads:
                yield f"{name} is {value}, but the number of heads in its output is {right.num_heads}"
        yield from _beyond(call)
        return
    likely = trials
    if declared:  # trying all numbers of heads takes seconds
        likely = [[reading for reading in trial if reading.num_heads in declared.values()] for trial in trials]
    causes = [] if is_known else next(filter(None, map(_causes, likely)), [])
    yield from causes
    if not causes:
        if not call.output.isfinite().all():
            yield "the output is NaN or infinite"
        elif _makes_mask(call) and _sees_all_tokens(call):
            yield "the first output depends on the last token"
        if any(trials):
            yield DIFFERS
        else:
            yield NOT_COMPARED
        if matrices:
            names = ", ".join(matrices)
            yield f"if not all of {names} make q, k, v or the output, give a function of q, k, v"


def _causes(trial: list[Reading]) -> list[str]:
    return [
        f"{cause}: `{name} = {line}` for `{name} = {FORMULA[name]}`"
        for name, lines in MISTAKES.items()
        for line, cause in lines.items()
        if any(reading.is_given_by({name: line}) for reading in trial)
    ]


def _without_influence(
    call: Call,
    parameters: Mapping[str, Tensor],
    matrices: Mapping[str, Tensor],
) -> Iterator[str]:
    """Yields the names of inputs, parameters, and parts of matrices that the output does not depend on."""
    inputs = {name: x.clone().requires_grad_() for name, x in call.inputs.items()}
    loss = call(inputs).square().sum()
    if loss.requires_grad:
        try:
            loss.backward()
        except RuntimeError as error:
            raise Mistake(f"it cannot be trained: {error}") from error
    needed = {*inputs, *matrices}  # the softmax does not change with a bias of the keys
    for name, part in {**inputs, **parameters}.items():
        if part.grad is None or (name in needed and not part.grad.any()):
            yield name
        elif name in matrices:
            is_zero = part.grad == 0
            if is_zero.all(0).any() or is_zero.all(-1).any():
                yield f"rows or columns of {name}"


def _beyond(call: Call) -> Iterator[str]:
    """What the formula does not say of an attention that it gives."""
    large = {name: 5 * x for name, x in call.inputs.items()}
    if not call(large).isfinite().all():
        yield "with large scores the output is not finite: an exponential overflows, or a sum of weights is 0"
    if not call.mask and _sees_all_tokens(call):
        if _makes_mask(call):
            yield "a mask is made, but each token sees all tokens: the mask is not applied"
        else:
            _warn("compared without a mask: each token sees all tokens, also later ones")


def _sees_all_tokens(call: Call) -> bool:
    name, x = [*call.inputs.items()][-1]
    moved = influence(lambda x: call(call.inputs | {name: x}), x)
    return bool(moved[0, 0, 0, ..., -1].any())


def _makes_mask(call: Call) -> bool:
    with Functions() as functions:
        call(call.inputs)
    return bool(call.mask or functions.names & MASKING)


class Functions(TorchFunctionMode):
    """Collects the names of PyTorch's functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, function, types, inputs=(), options=None) -> Any:
        self.names.add(function.__name__)
        return function(*inputs, **(options or {}))
