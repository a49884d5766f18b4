"""Forward passes that are watched: what the modules of a model and its attention got and returned.

The model itself is never changed for good: hooks and methods that are put on it are removed again, also after an error.
Meanwhile they act in this thread only, because another thread may call the same model.

Shapes: N texts, T tokens, S keys, D model width, H heads, H_kv key and value heads, K head width.
"""

import copy
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from model.gpt import GPT, in_eval_mode, one_at_a_time
from model.inspection.texts import Texts
from model.mistakes import Mistake

NOT_RECORDED = "train it with --recording.enabled false"
Hook = Callable[[nn.Module, Tensor], Tensor | None]  # gets a module and its input or output, may return a replacement


class Call(NamedTuple):
    """A layer's call of its `attend`.

    attend: the method, as a function of q, k, v and mask. q: (N, H, T, K). k, v: (N, H_kv, S, K). mask: as in
    `CausalSelfAttention.attend`. attended: what it returned, (N, H, T, K).
    """

    attend: Callable[..., Tensor]
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    attended: Tensor


class Pass(NamedTuple):
    """One forward pass.

    features: (N, T, D), after the final norm. calls: one of each layer. inputs, outputs: of the modules that were
    watched.
    """

    features: Tensor
    calls: list[Call]
    inputs: dict[nn.Module, Tensor]
    outputs: dict[nn.Module, Tensor]


def run(
    gpt: GPT,
    texts: Texts,
    modules: Iterable[nn.Module] = (),
) -> Pass:
    """Runs one forward pass, and keeps what each layer's `attend` and these modules did. Call it in `undisturbed`.

    Raises ValueError for unknown ids, and a `Mistake` if some layer does not call `attend` once.
    """
    modules = list(modules)
    inputs: dict[nn.Module, Tensor] = {}
    outputs: dict[nn.Module, Tensor] = {}
    with (
        observed(gpt) as calls,
        hooked(modules, [], inputs.__setitem__),
        hooked([], modules, outputs.__setitem__),
    ):
        features = features_of(gpt, texts)
    if len(calls) != len(gpt.blocks):
        raise Mistake(
            f"{len(gpt.blocks)} layers call `attend` {len(calls)} times in one pass, and a map needs one call in each: "
            f"compute the attention of every layer inside `attend`, or {NOT_RECORDED}"
        )
    return Pass(features, calls, inputs, outputs)


def features_of(gpt: GPT, texts: Texts) -> Tensor:
    """Runs one forward pass and returns the features (N, T, D) after the final norm.

    If the texts have document ids, attention stays within a document. Raises ValueError for unknown ids.
    """
    tokens = gpt.known_ids(texts.tokens)
    documents = texts.document_ids
    if documents is not None:
        documents = documents.to(tokens.device)
    return gpt.features(tokens, document_ids=documents)


@contextmanager
def observed(gpt: GPT) -> Iterator[list[Call]]:
    """Yields a list to which each call of a layer's `attend` is appended while the block runs."""
    calls: list[Call] = []

    def observe(
        attend: Callable[..., Tensor],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        *others: Any,
        **options: Any,
    ) -> Tensor:
        def again(*tensors: Tensor | None) -> Tensor:
            return attend(*tensors, *others, **options)

        attended = again(q, k, v, mask)
        calls.append(Call(again, q, k, v, mask, attended))
        return attended

    with one_at_a_time, ExitStack() as undo:
        for block in gpt.blocks:
            layer = block.attention
            undo.enter_context(method_replaced(layer, "attend", partial(observe, layer.attend)))
        yield calls


def in_this_thread(function: Callable, elsewhere: Callable) -> Callable:
    """Returns a function that calls `function` in this thread, and `elsewhere` in every other."""
    thread = get_ident()

    def choose(*args, **options):
        chosen = function if get_ident() == thread else elsewhere
        return chosen(*args, **options)

    return choose


@contextmanager
def method_replaced(module: nn.Module, name: str, method: Callable) -> Iterator[None]:
    """Replaces a method of this one module while the block runs. One that somebody has put on it comes back."""
    methods = vars(module)
    before = {name: methods[name]} if name in methods else {}
    methods[name] = in_this_thread(method, getattr(module, name))
    try:
        yield
    finally:
        del methods[name]
        methods.update(before)


@contextmanager
def hooked(
    inputs: Iterable[nn.Module],
    outputs: Iterable[nn.Module],
    hook: Hook,
) -> Iterator[None]:
    """Calls `hook` with the first input of the modules `inputs` and with the output of the modules `outputs`.

    If the hook returns a tensor, it replaces that input or output.
    """
    hook = in_this_thread(hook, lambda *_: None)
    with one_at_a_time, ExitStack() as undo:
        for module in inputs:
            undo.enter_context(module.register_forward_pre_hook(lambda module, args: hook(module, args[0])))
        for module in outputs:
            undo.enter_context(module.register_forward_hook(lambda module, _, output: hook(module, output)))
        yield


@contextmanager
def undisturbed(gpt: GPT, autocast: torch.dtype | None = None) -> Iterator[None]:
    """Runs the block in eval mode and without compiled code; then restores modes and random number generators.

    autocast: use autocast to this type, as mixed-precision training does; None turns autocast off.
    """
    device = gpt.lm_head.weight.device
    with (
        in_eval_mode(gpt.modules()),
        _eager(),
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        torch.autocast(device.type, autocast, enabled=autocast is not None),
    ):
        yield


def _eager() -> AbstractContextManager:
    """Switches compiled code off: it may skip hooks and a replaced `attend`."""
    # Setting the stance imports the compiler, which takes a second, so it is set only if the compiler is loaded
    # already. The only sign of that is a private module name; test_reading.py fails if PyTorch renames it.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def in_float32(gpt: GPT) -> GPT:
    """Returns the model, or a copy in float32 if its weights are coarser: their rounding would blur measurements."""
    dtype = gpt.token_embedding.weight.dtype
    if dtype in (torch.float32, torch.float64):
        return gpt
    with one_at_a_time:
        return copy.deepcopy(gpt).float()
