"""What the model loses without a part: the change of its loss when that part says the same at every position.

A head, a feed-forward or a table is replaced by its mean over some text, and all that follows is computed anew. The
mean keeps what the part always adds, so that the rest of the model gets what it is used to (mean ablation; Wang et al.
2022, "Interpretability in the Wild", https://arxiv.org/abs/2211.00593, section 2.1). The parts of a layer are replaced
in one forward pass, each in a row of the batch of its own; the rows of a layer join the batch where the layer begins.

Shapes: N rows, B batch, T tokens, L layers, H heads, K head width, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.gpt import GPT, Block
from model.inspection.lens import MAX_LOGITS
from model.inspection.trace import blocks_of, embedding_tables, recorded, undisturbed, value_tables

MAX_TOKENS = 2048  # in one forward pass, over all rows
BEFORE_LAYERS = -1  # the "layer" of the embedding tables


@dataclass(frozen=True)
class Part:
    """Something that can be replaced.

    layer: where it acts, BEFORE_LAYERS for an embedding table. name: "head", "feed-forward", or that of a table.
    head: its number, for a head.
    """

    layer: int
    name: str
    head: int | None = None

    def __str__(self) -> str:
        """As people read it: "head 5.2", "feed-forward 3", or the table's name."""
        if self.name == "head":
            return f"head {self.layer}.{self.head}"
        return f"feed-forward {self.layer}" if self.name == "feed-forward" else self.name


Means = dict[Part, Tensor]  # the mean of each part over all positions: (K,) for a head, else the width of the vectors


@torch.no_grad()
def part_means(gpt: GPT, batch: Tensor) -> Means:
    """The mean of what each part gives for `batch` (B, T), in the order in which the parts act."""
    with undisturbed(gpt), recorded(gpt) as (inputs, outputs):
        gpt.features(batch)

    def mean(x: Tensor) -> Tensor:
        return x.flatten(0, -2).mean(0)

    means = {Part(BEFORE_LAYERS, name): mean(outputs[table]) for name, table in embedding_tables(gpt).items()}
    values = value_tables(gpt)
    for layer, block in enumerate(blocks_of(gpt)):
        if layer in values:
            means[Part(layer, f"value embeddings {layer}")] = mean(outputs[values[layer]])
        merged = mean(inputs[block.attention.output_proj])
        for head, vector in enumerate(merged.chunk(block.attention.num_heads)):
            means[Part(layer, "head", head)] = vector
        means[Part(layer, "feed-forward")] = mean(outputs[block.feed_forward])
    return means


@contextmanager
def replaced(gpt: GPT, vectors: Mapping[Part, Tensor], position: int | None = None) -> Iterator[None]:
    """Inside, each of these parts gives its vector: at every position, or at one only."""
    places = slice(None) if position is None else slice(position, position + 1)
    tables = embedding_tables(gpt) | {f"value embeddings {layer}": table for layer, table in value_tables(gpt).items()}

    def in_result(vector: Tensor) -> Callable[..., Tensor]:
        def hook(_module: nn.Module, _args: Any, result: Tensor) -> Tensor:
            result = result.clone()
            result[..., places, :] = vector
            return result

        return hook

    def in_head(head: int, vector: Tensor) -> Callable[..., Tensor]:
        def hook(_module: nn.Module, args: tuple[Tensor]) -> Tensor:
            merged = args[0].clone()
            merged[..., places, head * len(vector) : (head + 1) * len(vector)] = vector
            return merged

        return hook

    with ExitStack() as hooks:
        for part, vector in vectors.items():
            if part.head is not None:
                output = blocks_of(gpt)[part.layer].attention.output_proj
                handle = output.register_forward_pre_hook(in_head(part.head, vector))
            else:
                module = blocks_of(gpt)[part.layer].feed_forward if part.name == "feed-forward" else tables[part.name]
                handle = module.register_forward_hook(in_result(vector))
            hooks.callback(handle.remove)
        yield


@torch.no_grad()
def without_each(
    gpt: GPT, tokens: Tensor, means: Means, *, first: int = 0, document_ids: Tensor | None = None
) -> tuple[float, dict[Part, float]]:
    """The loss on `tokens` (T,), and by how much it rises when each part in turn is replaced by its mean.

    Both are in nats per token, over the predictions made at position `first` and after it; NaN if there are none.

    Args:
        means: see `part_means`.
        document_ids: (1, T), as the model takes them.
    """
    changes: dict[Part, float] = {}
    rows = max(1, MAX_TOKENS // len(tokens) - 1)
    parts = list(means)
    with undisturbed(gpt):
        for start in range(0, len(parts), rows):
            together = {part: means[part] for part in parts[start : start + rows]}
            loss, *losses = _losses(gpt, tokens, together, first, document_ids)
            changes |= {part: other - loss for part, other in zip(together, losses, strict=True)}
    return loss, changes


def ablation(
    gpt: GPT, tokens: Tensor, means: Means, *, first: int = 0, document_ids: Tensor | None = None
) -> tuple[float, dict[str, Any]]:
    """As `without_each`; the changes as {"heads": (L, H), "feed_forward": (L,), "tables": a number by its name}."""
    loss, changes = without_each(gpt, tokens, means, first=first, document_ids=document_ids)
    heads = [change for part, change in changes.items() if part.name == "head"]
    feed_forward = [change for part, change in changes.items() if part.name == "feed-forward"]
    return loss, {
        "heads": np.array(heads).reshape(len(feed_forward), -1),
        "feed_forward": np.array(feed_forward),
        "tables": {part.name: change for part, change in changes.items() if part.name not in ("head", "feed-forward")},
    }


def _losses(gpt: GPT, tokens: Tensor, means: Means, first: int, document_ids: Tensor | None) -> list[float]:
    """The loss of the model as it is, and of that without each part in turn."""
    rows = {part: row for row, part in enumerate(means, start=1)}  # in ascending order of the layers

    def of_layer(layer: int) -> list[tuple[int, Part, Tensor]]:
        return [(rows[part], part, mean) for part, mean in means.items() if part.layer == layer]

    tables = of_layer(BEFORE_LAYERS)
    embedded = 1 + len(tables)
    with ExitStack() as hooks:
        for name, table in embedding_tables(gpt).items():
            hook = _replacing({row: mean for row, part, mean in tables if part.name == name}, embedded)
            hooks.callback(table.register_forward_hook(hook).remove)
        for layer, block in enumerate(blocks_of(gpt)):
            for handle in _hooks(block, of_layer(layer)):
                hooks.callback(handle.remove)
        features = gpt.features(tokens.expand(embedded, -1), document_ids=document_ids)
    return _cross_entropies(gpt, features[:, first:-1], tokens[first + 1 :])


def _hooks(block: Block, replaced: list[tuple[int, Part, Tensor]]) -> Iterator[Any]:
    """Hooks that add a row for each part of a layer to the batch, and replace that part in it."""
    heads = [(row, part.head, mean) for row, part, mean in replaced if part.name == "head"]
    feed_forward = {row: mean for row, part, mean in replaced if part.name == "feed-forward"}
    tables = {row: mean for row, part, mean in replaced if part.head is None and row not in feed_forward}

    def add_rows(_: nn.Module, args: tuple[Tensor], kwargs: dict[str, Any]) -> tuple[tuple[Tensor], dict[str, Any]]:
        x = torch.cat((args[0], args[0][:1].expand(len(replaced), -1, -1)))
        table = kwargs["value_embedding"]
        if table is not None:
            table = _replacing(tables, len(x))(None, None, table[:1])
        return (x,), {**kwargs, "value_embedding": table}

    def replace_heads(_: nn.Module, args: tuple[Tensor]) -> Tensor:
        merged = args[0].clone()
        for row, head, mean in heads:
            merged[row, :, head * len(mean) : (head + 1) * len(mean)] = mean
        return merged

    yield block.register_forward_pre_hook(add_rows, with_kwargs=True)
    yield block.attention.output_proj.register_forward_pre_hook(replace_heads)
    yield block.feed_forward.register_forward_hook(_replacing(feed_forward))


def _replacing(vectors: dict[int, Tensor], num_rows: int = -1) -> Callable[..., Tensor]:
    """A forward hook: in the given rows of the result (N, T, D), every position becomes the vector.

    num_rows: N, for a result that is the same in all rows and has (1, T, D) or (T, D).
    """

    def replace(_module: Any, _args: Any, result: Tensor) -> Tensor:
        result = result.expand(num_rows, *result.shape[-2:]).clone()
        for row, vector in vectors.items():
            result[row] = vector
        return result

    return replace


def _cross_entropies(gpt: GPT, features: Tensor, targets: Tensor) -> list[float]:
    """The mean loss of each row of features (N, T, D) for the same targets (T,)."""
    length = max(1, MAX_LOGITS // gpt.head.out_features)
    pieces = zip(features.flatten(0, 1).split(length), targets.repeat(len(features)).split(length), strict=True)
    losses = torch.cat([F.cross_entropy(gpt.unembed(some), wanted, reduction="none") for some, wanted in pieces])
    return losses.view(len(features), len(targets)).double().mean(1).tolist()
