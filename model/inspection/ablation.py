"""What the model loses without a part: the change of its loss when that part says the same at every position.

A head, a feed-forward or a table is replaced by its mean over some text, and all that follows is computed anew. The
mean keeps what the part always adds, so that the rest of the model gets what it is used to (mean ablation; Wang et al.
2022, "Interpretability in the Wild", https://arxiv.org/abs/2211.00593, section 2.1). Many parts are replaced in one
forward pass, each in a row of the batch of its own.

Shapes: B batch, T tokens, K head width, D model width.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.gpt import GPT
from model.inspection.lens import MAX_LOGITS
from model.inspection.trace import blocks_of, edited, embedding_tables, hooked, undisturbed, value_tables

MAX_TOKENS = 8192  # in one forward pass, over all rows

Means = dict[str, Tensor]  # by the name of each part: (K,) for a head, else the width of the vectors


def parts_of(gpt: GPT) -> dict[str, tuple[nn.Module, slice]]:
    """What can be replaced, first the tables, then layer by layer, by the names that people read: "head 5.2",
    "feed-forward 3", or that of a table.

    Returns the module that gives it, or for a head the one that reads it, and its columns there.
    """
    tables = embedding_tables(gpt) | {f"value embeddings {layer}": table for layer, table in value_tables(gpt).items()}
    parts: dict[str, tuple[nn.Module, slice]] = {name: (table, slice(None)) for name, table in tables.items()}
    for layer, block in enumerate(blocks_of(gpt)):
        K = block.attention.head_dim
        for head in range(block.attention.num_heads):
            parts[f"head {layer}.{head}"] = block.attention.output_proj, slice(head * K, (head + 1) * K)
        parts[f"feed-forward {layer}"] = block.feed_forward, slice(None)
    return parts


@torch.no_grad()
def part_means(gpt: GPT, batch: Tensor) -> Means:
    """The mean of what each part gives for `batch` (B, T), over all positions. ValueError for unknown ids."""
    with undisturbed(gpt), hooked(gpt) as (inputs, outputs):
        gpt.features(gpt.known_ids(batch))
    parts, given = parts_of(gpt), outputs | {module: inputs[module] for module in _readers(gpt)}
    means = {module: given[module].flatten(0, -2).mean(0) for module in {module for module, _ in parts.values()}}
    return {name: means[module][columns] for name, (module, columns) in parts.items()}


def _readers(gpt: GPT) -> set[nn.Module]:
    """The modules that read what all heads of a layer give."""
    return {block.attention.output_proj for block in blocks_of(gpt)}


@contextmanager
def replaced(gpt: GPT, vectors: Means, position: int | None = None, *, apart: bool = False) -> Iterator[None]:
    """Inside, each of these parts gives its vector.

    Args:
        position: the only token at which it does, from 0; a shorter sequence is left as it is. None: every token.
        apart: each in a row of the batch of its own, in their order; the first row of the batch is left as it is.
    """
    edits: dict[nn.Module, list[tuple[tuple, Tensor]]] = {}
    parts, tokens = parts_of(gpt), slice(None) if position is None else slice(position, position + 1)
    for row, (name, vector) in enumerate(vectors.items(), start=1):
        module, columns = parts[name]
        edits.setdefault(module, []).append(((row if apart else ..., tokens, columns), vector))

    def edit(module: nn.Module, x: Tensor) -> Tensor:
        x = (x.expand(1 + len(vectors), *x.shape[-2:]) if apart else x).clone()  # positions have no batch axis
        for where, vector in edits[module]:
            x[where] = vector
        return x

    readers = _readers(gpt)
    with edited(readers & edits.keys(), edits.keys() - readers, edit):
        yield


@torch.no_grad()
def without_each(gpt: GPT, tokens: Tensor, means: Means, *, first: int = 0) -> tuple[float, dict[str, float]]:
    """The loss on `tokens` (T,), and by how much it rises when each part in turn is replaced by its mean.

    Both are in nats per token, over the predictions made at position `first` and after it; NaN if there are none.
    means: see `part_means`.
    """
    changes: dict[str, float] = {}
    rows, length = max(1, MAX_TOKENS // len(tokens) - 1), max(1, MAX_LOGITS // gpt.head.out_features)
    parts, targets = list(means), tokens[first + 1 :]
    with undisturbed(gpt):
        for start in range(0, len(parts), rows):
            together = {part: means[part] for part in parts[start : start + rows]}
            with replaced(gpt, together, apart=True):
                features = gpt.features(tokens.expand(1 + len(together), -1))[:, first:-1]
            wanted = targets.repeat(len(features)).split(length)
            pieces = zip(features.flatten(0, 1).split(length), wanted, strict=True)
            nats = torch.cat([F.cross_entropy(gpt.unembed(piece), of, reduction="none") for piece, of in pieces])
            loss, *losses = nats.view(len(features), len(targets)).double().mean(1).tolist()
            changes |= {part: other - loss for part, other in zip(together, losses, strict=True)}
    return loss, changes
