"""What the model loses without a part: the change of its loss when that part says the same at every position.

A head, a feed-forward or a table is replaced by its mean over some text, and all that follows is computed anew. The
mean keeps what the part always adds, so that the rest of the model gets what it is used to (mean ablation; Wang et al.
2022, "Interpretability in the Wild", https://arxiv.org/abs/2211.00593, section 2.1). Many parts are replaced in one
forward pass, each in rows of the batch of its own, and only the layers that they can change are computed.

A loss on one text says little: of a part that helps on average, chance makes every third text do better without it. So
changes are measured over many texts, with their standard error.

Shapes: B batch, N texts, R parts at a time, T tokens, K head width, D model width.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.gpt import GPT
from model.inspection.lens import MAX_LOGITS
from model.inspection.trace import blocks_of, edited, embedding_tables, hooked, undisturbed

MAX_TOKENS = 8192  # in one forward pass, over all rows
ERRORS = 2  # standard errors from 0, up to which a change is no clear effect

Means = dict[str, Tensor]  # by the name of each part: (K,) for a head, else the width of the vectors


class Part(NamedTuple):
    """A part that can be replaced.

    module, columns: what gives it; for a head the output matrix of its layer, and the head's columns in its input.
    layer: the block that it is in; None for a table that is read before all blocks.
    """

    module: nn.Module
    columns: slice
    layer: int | None


def parts_of(gpt: GPT) -> dict[str, Part]:
    """What can be replaced, first the tables, then layer by layer, by the names that people read: "head 5.2",
    "feed-forward 3", or that of a table."""
    everything = slice(None)
    parts = {name: Part(table, everything, None) for name, table in embedding_tables(gpt).items()}
    for name, table in gpt.value_embeddings.items():
        parts[f"value embeddings {name}"] = Part(table, everything, int(name))
    for layer, block in enumerate(blocks_of(gpt)):
        K = block.attention.head_dim
        for head in range(block.attention.num_heads):
            parts[f"head {layer}.{head}"] = Part(block.attention.output_proj, slice(head * K, (head + 1) * K), layer)
        parts[f"feed-forward {layer}"] = Part(block.feed_forward, everything, layer)
    return parts


@torch.no_grad()
def part_means(gpt: GPT, batch: Tensor) -> Means:
    """The mean of what each part gives for `batch` (B, T), over all positions. ValueError for unknown ids."""
    parts = parts_of(gpt)
    with undisturbed(gpt), hooked({part.module for part in parts.values()}) as (inputs, outputs):
        gpt.features(gpt.known_ids(batch))
    given = outputs | {module: inputs[module] for module in _readers(gpt)}
    means = {module: vectors.flatten(0, -2).mean(0) for module, vectors in given.items()}
    return {name: means[part.module][part.columns] for name, part in parts.items()}


def _readers(gpt: GPT) -> set[nn.Module]:
    """The modules that read what all heads of a layer give."""
    return {block.attention.output_proj for block in blocks_of(gpt)}


@contextmanager
def replaced(gpt: GPT, vectors: Means, position: int | None = None, *, apart: int | None = None) -> Iterator[None]:
    """Inside, each of these parts gives its vector.

    Args:
        position: the only token at which it does, from 0; a shorter sequence is left as it is. None: every token.
        apart: part i is replaced only in rows i * apart up to (i + 1) * apart. None: all parts in all rows.
    """
    edits: dict[nn.Module, list[tuple[tuple, Tensor]]] = {}
    parts, tokens = parts_of(gpt), slice(None) if position is None else slice(position, position + 1)
    for number, (name, vector) in enumerate(vectors.items()):
        part = parts[name]
        rows = slice(number * apart, (number + 1) * apart) if apart else ...
        edits.setdefault(part.module, []).append(((rows, tokens, part.columns), vector))

    def edit(module: nn.Module, x: Tensor) -> Tensor:
        x = (x.expand(apart * len(vectors), *x.shape[-2:]) if apart else x).clone()  # positions have no batch axis
        for where, vector in edits[module]:
            x[where] = vector
        return x

    readers = _readers(gpt)
    with edited(readers & edits.keys(), edits.keys() - readers, edit):
        yield


@contextmanager
def _begun_at(gpt: GPT, layer: int | None, begins: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Inside, the blocks before `layer` do nothing, and that block gets what it began with before, for as many rows as
    there are. None: all blocks are computed."""
    blocks, skipped = blocks_of(gpt), blocks_of(gpt)[: layer or 0]

    def begin(block: nn.Module, x: Tensor) -> Tensor:
        return begins[block].repeat(len(x) // len(begins[block]), 1, 1)

    with edited([] if layer is None else [blocks[layer]], [], begin), ExitStack() as left:
        for block in skipped:
            block.forward = lambda x, **_: x
            left.callback(block.__delattr__, "forward")
        yield


class Change(NamedTuple):
    """By how much the loss rises when a part is replaced by its mean, in nats per token.

    error: the standard error of that over the texts; NaN for a single text, which cannot tell.
    """

    rise: float
    error: float

    @property
    def is_clear(self) -> bool:
        """Whether it is more than ERRORS standard errors from 0."""
        return abs(self.rise) > ERRORS * self.error


@torch.no_grad()
def losses_without_each(gpt: GPT, tokens: Tensor, means: Means, counted: Tensor | None = None) -> dict[str, Tensor]:
    """The loss of each text, in nats per token, (N,) in float64: of the whole model, named "nothing", and without each
    part in turn, which gives its mean instead.

    tokens: (N, T). means: see `part_means`. counted: (N, T - 1), the next tokens that the loss is about, all if None;
    of a text without any it is NaN.
    """
    N, T = tokens.shape
    counted = torch.ones(N, T - 1, dtype=torch.bool) if counted is None else counted
    if (most := max(1, MAX_TOKENS // T)) < N:
        pieces = zip(tokens.split(most), counted.split(most), strict=True)
        several = [losses_without_each(gpt, texts, means, of_texts) for texts, of_texts in pieces]
        return {name: torch.cat([losses[name] for losses in several]) for name in several[0]}
    counted, targets = counted.to(tokens.device), tokens[:, 1:]
    length, rows = max(1, MAX_LOGITS // gpt.head.out_features), max(1, MAX_TOKENS // (N * T))

    def losses(features: Tensor) -> Tensor:
        """(R, N) of features (R N, T, D)."""
        features = features.unflatten(0, (-1, N))[:, :, :-1]
        wanted = targets.expand(len(features), -1, -1)[:, counted]
        pieces = zip(features[:, counted].flatten(0, 1).split(length), wanted.flatten().split(length), strict=True)
        nats = torch.cat([F.cross_entropy(gpt.unembed(piece), of, reduction="none") for piece, of in pieces])
        texts = counted.nonzero()[:, 0]
        sums = nats.new_zeros(len(features), N, dtype=torch.float64)
        return sums.index_add(1, texts, nats.view(len(features), -1).double()) / counted.sum(1)

    with undisturbed(gpt):
        with hooked(blocks_of(gpt)) as (begins, _):
            (whole,) = losses(gpt.features(tokens)).cpu()
        found, parts = {"nothing": whole}, parts_of(gpt)
        for layer in (None, *range(gpt.config.num_layers)):
            names = [name for name in means if parts[name].layer == layer]
            for start in range(0, len(names), rows):
                together = {name: means[name] for name in names[start : start + rows]}
                with _begun_at(gpt, layer, begins), replaced(gpt, together, apart=N):
                    without = losses(gpt.features(tokens.repeat(len(together), 1)))
                found |= zip(together, without.cpu(), strict=True)
    return {name: found[name] for name in ("nothing", *means)}


def changes(losses: Mapping[str, Tensor]) -> dict[str, Change]:
    """How much each part is missed, from the losses of N texts without it."""
    found = {}
    for name, loss in losses.items():
        if name != "nothing":
            rises = loss - losses["nothing"]
            error = rises.std() / math.sqrt(len(rises)) if len(rises) > 1 else math.nan
            found[name] = Change(rises.mean().item(), float(error))
    return found
