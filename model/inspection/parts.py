"""The parts of a model by the names that people read, and how to look at them and change what they give.

A part is a head ("head 5.2"), a feed-forward ("feed-forward 3") or a table ("token embedding"). Nothing of the model is
changed for good: hooks and methods that are put on it are taken off again, also after an error.

Shapes: N texts, T tokens, D model width, K head width.
"""

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from model.gpt import GPT, Block, in_eval_mode
from model.inspection.texts import Texts

TOKENS_AT_ONCE = 1024  # over which means are taken: what all parts give is in memory at once

Vectors = Mapping[str, Tensor]  # by the name of each part: (K,) for a head, else the width of what it gives


# ---- the parts


class Part(NamedTuple):
    """Where what a part gives can be read and changed.

    module, columns: for a head the output matrix of its layer, and the head's columns in its input. Of any other part
    it is the result of the module that counts, all columns of it.
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
    parts = {}
    for name, table in embedding_tables(gpt).items():
        parts[name] = Part(table, everything, None)
    for name, table in gpt.value_embeddings.items():
        parts[f"value embeddings {name}"] = Part(table, everything, int(name))
    for layer, block in enumerate(blocks_of(gpt)):
        K = block.attention.head_dim
        for head in range(block.attention.num_heads):
            columns = slice(head * K, (head + 1) * K)
            parts[f"head {layer}.{head}"] = Part(block.attention.output_proj, columns, layer)
        parts[f"feed-forward {layer}"] = Part(block.feed_forward, everything, layer)
    return parts


@contextmanager
def _watched(
    gpt: GPT,
    modules: Iterable[nn.Module],
    see: Callable[[nn.Module, Tensor], Tensor | None],
) -> Iterator[None]:
    """Hands what the modules of parts give to `see`, which may give another tensor in its place."""
    modules = set(modules)
    heads = modules & {block.attention.output_proj for block in blocks_of(gpt)}
    with hooked(heads, modules - heads, see):
        yield


@torch.no_grad()
def part_means(gpt: GPT, texts: Texts) -> dict[str, Tensor]:
    """The mean of what each part gives for these texts, over all positions. ValueError for unknown ids."""
    parts = parts_of(gpt)
    sums: dict[nn.Module, Tensor] = {}

    def add(module: nn.Module, given: Tensor) -> None:
        vectors = given.expand(len(piece), -1, -1)  # positions have no batch axis
        mean = vectors.flatten(0, 1).mean(0)
        sums[module] = sums.get(module, 0) + len(piece) * mean

    modules = [part.module for part in parts.values()]
    with undisturbed(gpt), _watched(gpt, modules, add):
        for piece in texts.pieces(TOKENS_AT_ONCE):
            run(gpt, piece)
    means = {}
    for name, part in parts.items():
        means[name] = sums[part.module][part.columns] / len(texts)
    return means


@contextmanager
def replaced(
    gpt: GPT,
    vectors: Vectors,
    position: int | None = None,
) -> Iterator[None]:
    """Inside, each of these parts gives its vector.

    position: the only token at which it does, from 0; a shorter sequence is left as it is. None: every token.
    """
    parts = parts_of(gpt)
    tokens = slice(None) if position is None else slice(position, position + 1)

    def change(module: nn.Module, given: Tensor) -> Tensor:
        given = given.clone()
        for name, vector in vectors.items():
            if parts[name].module is module:
                given[..., tokens, parts[name].columns] = vector.to(given)
        return given

    with _watched(gpt, [parts[name].module for name in vectors], change):
        yield


# ---- running a model, and looking inside


def run(gpt: GPT, texts: Texts) -> Tensor:
    """The features (N, T, D) of texts, read with their documents. Raises ValueError for unknown ids."""
    tokens = gpt.known_ids(texts.tokens)
    documents = texts.document_ids
    if documents is not None:
        documents = documents.to(tokens.device)
    return gpt.features(tokens, document_ids=documents)


def in_float32(gpt: GPT) -> GPT:
    """The model, or a copy of it in float32 if its weights are coarser, which would hide what is measured."""
    dtype = gpt.token_embedding.weight.dtype
    if dtype in (torch.float32, torch.float64):
        return gpt
    return copy.deepcopy(gpt).float()


@contextmanager
def undisturbed(gpt: GPT, autocast: torch.dtype | None = None) -> Iterator[None]:
    """In eval mode and without compiled code; on exit modes and random number generators are as they were.

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
def hooked(
    inputs: Iterable[nn.Module],
    outputs: Iterable[nn.Module],
    see: Callable[[nn.Module, Tensor], Tensor | None],
) -> Iterator[None]:
    """Hands the argument of some modules, and the result of others, to `see`. A tensor that it returns takes their
    place."""
    with ExitStack() as hooks:
        for module in inputs:
            hooks.callback(module.register_forward_pre_hook(lambda module, args: see(module, args[0])).remove)
        for module in outputs:
            hooks.callback(module.register_forward_hook(lambda module, _, result: see(module, result)).remove)
        yield
