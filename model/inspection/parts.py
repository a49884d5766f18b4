"""The parts of a model by the names that people read, and how to look at them and change what they give.

A part is a head ("head 5.2"), a feed-forward ("feed-forward 3") or a table ("token embedding"). Nothing of the model is
changed for good: hooks and methods that are put on it are taken off again, also after an error.

Shapes: N texts, L layers, H heads, H_kv key and value heads, T tokens, S keys, D model width, K head width.
"""

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.gpt import GPT, Block, in_eval_mode
from model.inspection.texts import Texts

TOKENS_AT_ONCE = 1024  # over which means are taken: what all parts give is in memory at once

ByModule = dict[nn.Module, Tensor]
Vectors = Mapping[str, Tensor]  # by the name of each part: (K,) for a head, else the width of what it gives
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # of q, k and v alone, with all else that a layer's `attend` got


# ---- the parts


class Part(NamedTuple):
    """Where what a part gives can be read and changed.

    module, columns: what gives it; for a head the output matrix of its layer, and the head's columns in its input.
    layer: the block that it is in; None for a table that is read before all blocks.
    """

    module: nn.Module
    columns: slice
    layer: int | None


def blocks_of(gpt: GPT) -> list[Block]:
    """The blocks of a model, with the type that an nn.ModuleList does not tell."""
    return cast(list[Block], list(gpt.blocks))


def embedding_tables(gpt: GPT) -> dict[str, nn.Module]:
    """The tables whose vectors are added up before the first block."""
    tables = {
        "token embedding": gpt.token_embedding,
        "n-gram tables": gpt.ngram_embedding,
        "positions": gpt.position_embedding,
    }
    return {name: table for name, table in tables.items() if table is not None}


def parts_of(gpt: GPT) -> dict[str, Part]:
    """All parts by name, first the tables, then layer by layer."""
    everything = slice(None)
    parts = {name: Part(table, everything, None) for name, table in embedding_tables(gpt).items()}
    for name, table in gpt.value_embeddings.items():
        parts[f"value embeddings {name}"] = Part(table, everything, int(name))
    for layer, block in enumerate(blocks_of(gpt)):
        K = block.attention.head_dim
        for head in range(block.attention.num_heads):
            columns = slice(head * K, (head + 1) * K)
            parts[f"head {layer}.{head}"] = Part(block.attention.output_proj, columns, layer)
        parts[f"feed-forward {layer}"] = Part(block.feed_forward, everything, layer)
    return parts


@torch.no_grad()
def part_means(gpt: GPT, texts: Texts) -> dict[str, Tensor]:
    """The mean of what each part gives for these texts, over all positions. ValueError for unknown ids."""
    parts = parts_of(gpt)
    sums: ByModule = {}
    readers = _readers(gpt)
    for piece in texts.pieces(max(1, TOKENS_AT_ONCE // texts.length)):
        with undisturbed(gpt), hooked({part.module for part in parts.values()}) as (inputs, outputs):
            run(gpt, piece)
        for module, vectors in (outputs | {module: inputs[module] for module in readers}).items():
            mean = vectors.expand(len(piece), -1, -1).flatten(0, 1).mean(0)  # positions have no batch axis
            sums[module] = sums.get(module, 0) + len(piece) * mean
    return {name: sums[part.module][part.columns] / len(texts) for name, part in parts.items()}


@contextmanager
def replaced(gpt: GPT, vectors: Vectors, position: int | None = None, *, apart: int | None = None) -> Iterator[None]:
    """Inside, each of these parts gives its vector.

    Args:
        position: the only token at which it does, from 0; a shorter sequence is left as it is. None: every token.
        apart: part i is replaced only in rows i * apart up to (i + 1) * apart. None: all parts in all rows.
    """
    changes: dict[nn.Module, list[tuple[tuple, Tensor]]] = {}
    parts = parts_of(gpt)
    tokens = slice(None) if position is None else slice(position, position + 1)
    for number, (name, vector) in enumerate(vectors.items()):
        part = parts[name]
        rows = slice(number * apart, (number + 1) * apart) if apart else ...
        changes.setdefault(part.module, []).append(((rows, tokens, part.columns), vector))

    def change(module: nn.Module, x: Tensor) -> Tensor:
        if apart:
            x = x.expand(apart * len(vectors), *x.shape[-2:])  # positions have no batch axis
        x = x.clone()
        for where, vector in changes[module]:
            x[where] = vector.to(x)
        return x

    readers = _readers(gpt)
    with changing(readers & changes.keys(), changes.keys() - readers, change):
        yield


def _readers(gpt: GPT) -> set[nn.Module]:
    """The modules that read what all heads of a layer give."""
    return {block.attention.output_proj for block in blocks_of(gpt)}


# ---- running a model, and looking inside


def run(gpt: GPT, texts: Texts) -> Tensor:
    """The features (N, T, D) of texts, read with their documents. Raises ValueError for unknown ids."""
    tokens = gpt.known_ids(texts.tokens)
    documents = None if texts.document_ids is None else texts.document_ids.to(tokens.device)
    return gpt.features(tokens, document_ids=documents)


def in_float32(gpt: GPT) -> GPT:
    """The model, or a copy of it in float32 if its weights are coarser, which would hide what is measured."""
    dtype = gpt.token_embedding.weight.dtype
    return gpt if dtype in (torch.float32, torch.float64) else copy.deepcopy(gpt).float()


@contextmanager
def undisturbed(gpt: GPT, autocast: torch.dtype | None = None) -> Iterator[None]:
    """In eval mode and without compiled code; on exit modes and random number generators are as they were.

    Args:
        autocast: run under autocast to this type, as mixed-precision training does. None: without any.
    """
    device = gpt.token_embedding.weight.device
    # Compiled code might not call what is observed. Setting this imports the compiler, which takes a second, so it is
    # set only where that is loaded: its private name is the only sign. test_reading.py fails if another name is used.
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    with (
        eager,
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        in_eval_mode(gpt),
        torch.autocast(device.type, autocast, enabled=autocast is not None),
    ):
        yield


@contextmanager
def hooked(modules: Iterable[nn.Module]) -> Iterator[tuple[ByModule, ByModule]]:
    """Collects the first argument and the result of these modules, by module."""
    inputs: ByModule = {}
    outputs: ByModule = {}

    def keep(module: nn.Module, args: tuple[Tensor, ...], result: Tensor) -> None:
        inputs[module] = args[0]
        outputs[module] = result

    with ExitStack() as hooks:
        for module in modules:
            hooks.callback(module.register_forward_hook(keep).remove)
        yield inputs, outputs


@contextmanager
def changing(
    inputs: Iterable[nn.Module], outputs: Iterable[nn.Module], change: Callable[[nn.Module, Tensor], Tensor]
) -> Iterator[None]:
    """The first argument of some modules, and the result of others, become what `change` makes of them."""
    with ExitStack() as hooks:
        for module in inputs:
            handle = module.register_forward_pre_hook(lambda module, args: (change(module, args[0]), *args[1:]))
            hooks.callback(handle.remove)
        for module in outputs:
            hooks.callback(module.register_forward_hook(lambda module, _, result: change(module, result)).remove)
        yield


@contextmanager
def observed(gpt: GPT, see: Callable[[Attend, Tensor, Tensor, Tensor, Tensor], None]) -> Iterator[None]:
    """Hands every call of the layers' `attend` to `see`, in the order of the calls.

    `see` gets the method, of q, k and v alone; q (N, H, T, K), k and v (N, H_kv, S, K); and what it returned,
    (N, H, T, K).
    """

    def observing(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def attend_observed(q: Tensor, k: Tensor, v: Tensor, *arguments: Any, **options: Any) -> Tensor:
            attended = attend(q, k, v, *arguments, **options)
            see(lambda q, k, v: attend(q, k, v, *arguments, **options), q, k, v, attended)
            return attended

        return attend_observed

    layers = [block.attention for block in blocks_of(gpt)]
    own = [vars(layer).get("attend") for layer in layers]  # None, unless the method was replaced on the layer
    try:
        for layer in layers:
            layer.attend = observing(layer.attend)
        yield
    finally:
        for layer, method in zip(layers, own, strict=True):
            del layer.attend
            if method is not None:
                layer.attend = method


def weights_of(attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """How much each query takes of each key's value, (N, H, T, S), in float32 at least: `attend` of the identity.

    Attention is linear in the values, so this is the map of whatever `attend` computes. The identity is handed over in
    pieces of K columns, since an `attend` may count on values of that width. Use it inside `undisturbed`.
    """
    S, K = v.shape[-2:]
    dtype = torch.promote_types(q.dtype, torch.float32)
    identity = torch.eye(S, dtype=dtype, device=v.device)
    columns = identity.expand(*v.shape[:-1], S).split(K, dim=-1)
    pieces = [attend(q.to(dtype), k.to(dtype), F.pad(piece, (0, K - piece.shape[-1]))) for piece in columns]
    return torch.cat(pieces, dim=-1)[..., :S]


def by_head(x: Tensor, q: Tensor) -> Tensor:
    """Keys or values (N, H_kv, S, K) -> (N, H, S, K): those of a group of heads repeated for each of them."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)
