"""What the model loses without a part: the change of its loss when that part says the same at every position.

A head, a feed-forward or a table is replaced by its mean over some text, and all that follows is computed anew. The
mean keeps what the part always adds, so that the rest of the model gets what it is used to (mean ablation; Wang et al.
2022, "Interpretability in the Wild", https://arxiv.org/abs/2211.00593, section 2.1). Many parts are replaced in one
forward pass, each in a row of the batch of its own.

Shapes: B batch, T tokens, L layers, H heads, K head width, D model width.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.gpt import GPT
from model.inspection.lens import MAX_LOGITS
from model.inspection.trace import blocks_of, edited, embedding_tables, hooked, undisturbed, value_tables

MAX_TOKENS = 8192  # in one forward pass, over all rows


@dataclass(frozen=True)
class Part:
    """Something that can be replaced.

    layer: None for a table. name: "head", "feed-forward", or that of a table. head: its number, for a head.
    """

    layer: int | None
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
    with undisturbed(gpt), hooked(gpt) as (inputs, outputs):
        gpt.features(batch)

    def mean(x: Tensor) -> Tensor:
        return x.flatten(0, -2).mean(0)

    means = {Part(None, name): mean(outputs[table]) for name, table in _tables(gpt).items()}
    for layer, block in enumerate(blocks_of(gpt)):
        merged = mean(inputs[block.attention.output_proj])
        for head, vector in enumerate(merged.chunk(block.attention.num_heads)):
            means[Part(layer, "head", head)] = vector
        means[Part(layer, "feed-forward")] = mean(outputs[block.feed_forward])
    return means


def _tables(gpt: GPT) -> dict[str, nn.Module]:
    values = {f"value embeddings {layer}": table for layer, table in value_tables(gpt).items()}
    return {**embedding_tables(gpt), **values}


@contextmanager
def replaced(
    gpt: GPT, vectors: Mapping[Part, Tensor], position: int | None = None, *, apart: bool = False
) -> Iterator[None]:
    """Inside, each of these parts gives its vector.

    Args:
        position: the only token at which it does, from 0; a shorter sequence is left as it is. None: every token.
        apart: each in a row of the batch of its own, in their order; the first row of the batch is left as it is.
    """
    edits: dict[nn.Module, list[tuple[tuple, Tensor]]] = {}
    tokens = slice(None) if position is None else slice(position, position + 1)
    for row, (part, vector) in enumerate(vectors.items(), start=1):
        width = slice(None) if part.head is None else slice(part.head * len(vector), (part.head + 1) * len(vector))
        where = (row if apart else ..., tokens, width)
        if part.layer is None:
            module = _tables(gpt)[part.name]
        else:
            block = blocks_of(gpt)[part.layer]
            module = block.feed_forward if part.head is None else block.attention.output_proj
        edits.setdefault(module, []).append((where, vector))

    def edit(module: nn.Module, x: Tensor) -> Tensor:
        x = (x.expand(1 + len(vectors), *x.shape[-2:]) if apart else x).clone()  # positions have no batch axis
        for where, vector in edits[module]:
            x[where] = vector
        return x

    heads = {block.attention.output_proj for block in blocks_of(gpt)}  # they read what all heads of a layer give
    with edited(heads & edits.keys(), edits.keys() - heads, edit):
        yield


@torch.no_grad()
def without_each(gpt: GPT, tokens: Tensor, means: Means, *, first: int = 0) -> tuple[float, dict[Part, float]]:
    """The loss on `tokens` (T,), and by how much it rises when each part in turn is replaced by its mean.

    Both are in nats per token, over the predictions made at position `first` and after it; NaN if there are none.
    means: see `part_means`.
    """
    changes: dict[Part, float] = {}
    rows, length = max(1, MAX_TOKENS // len(tokens) - 1), max(1, MAX_LOGITS // gpt.head.out_features)
    parts, targets = list(means), tokens[first + 1 :]
    with undisturbed(gpt):
        for start in range(0, len(parts), rows):
            together = {part: means[part] for part in parts[start : start + rows]}
            with replaced(gpt, together, apart=True):
                features = gpt.features(tokens.expand(1 + len(together), -1))[:, first:-1]
            wanted = targets.repeat(len(features)).split(length)
            pieces = zip(features.flatten(0, 1).split(length), wanted, strict=True)
            nats = torch.cat([F.cross_entropy(gpt.unembed(some), of, reduction="none") for some, of in pieces])
            loss, *losses = nats.view(len(features), len(targets)).double().mean(1).tolist()
            changes |= {part: other - loss for part, other in zip(together, losses, strict=True)}
    return loss, changes


def ablation(gpt: GPT, tokens: Tensor, means: Means, *, first: int = 0) -> tuple[float, dict[str, Any]]:
    """As `without_each`; the changes as {"heads": (L, H), "feed_forward": (L,), "tables": a number by its name}."""
    loss, changes = without_each(gpt, tokens, means, first=first)
    heads = [change for part, change in changes.items() if part.name == "head"]
    feed_forward = [change for part, change in changes.items() if part.name == "feed-forward"]
    return loss, {
        "heads": np.array(heads).reshape(len(feed_forward), -1),
        "feed_forward": np.array(feed_forward),
        "tables": {part.name: change for part, change in changes.items() if part.name not in ("head", "feed-forward")},
    }
