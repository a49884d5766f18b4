"""What the model loses without a part: the change of its loss when that part says the same at every position.

A part is replaced by its mean over some text, and all that follows is computed anew. The mean keeps what the part
always adds, so that the rest of the model gets what it is used to (mean ablation; Wang et al. 2022, "Interpretability
in the Wild", https://arxiv.org/abs/2211.00593, section 2.1). Many parts are replaced in one forward pass, each in rows
of the batch of its own, and only the layers that they can change are computed.

A loss on one text says little: of a part that helps on average, chance makes every third text do better without it. So
changes are measured over many texts, with their standard error.

Shapes: N texts, P parts at a time, T tokens, D model width, V vocabulary.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.gpt import GPT
from model.inspection.parts import (
    Vectors,
    blocks_of,
    changing,
    hooked,
    part_means,
    parts_of,
    replaced,
    run,
    undisturbed,
)
from model.inspection.texts import Texts

TOKENS_AT_ONCE = 8192  # in one forward pass, over all rows
LOGITS_AT_ONCE = 2**21  # 8 MiB, whatever the vocabulary
ERRORS = 2  # standard errors from 0, up to which a change is no clear effect


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


def measure_losses(gpt: GPT, windows: Mapping[str, Texts]) -> tuple[dict[str, float], dict[str, dict[str, Change]]]:
    """By the kind of the windows the mean loss, in nats per token, and how it changes without each part."""
    loss, without = {}, {}
    for kind, texts in windows.items():
        losses = losses_without_each(gpt, texts, part_means(gpt, texts))
        loss[kind] = losses["nothing"].mean().item()
        without[kind] = changes(losses)
    return loss, without


def changes(losses: Mapping[str, Tensor]) -> dict[str, Change]:
    """How much each part is missed, from the losses of N texts without it."""
    found = {}
    for name, loss in losses.items():
        if name != "nothing":
            rises = loss - losses["nothing"]
            error = rises.std().item() / math.sqrt(len(rises)) if len(rises) > 1 else math.nan
            found[name] = Change(rises.mean().item(), error)
    return found


@torch.no_grad()
def losses_without_each(gpt: GPT, texts: Texts, means: Vectors) -> dict[str, Tensor]:
    """The loss of each text, in nats per token, (N,) in float64: of the whole model, named "nothing", and without each
    part in turn, which gives its mean instead.

    Of a text in which no next token counts (see `Texts.predicted`) it is NaN.
    """
    pieces = texts.pieces(max(1, TOKENS_AT_ONCE // texts.length))
    with undisturbed(gpt):
        found = [_losses_of_piece(gpt, piece, means) for piece in pieces]
    return {name: torch.cat([losses[name] for losses in found]) for name in ("nothing", *means)}


def _losses_of_piece(gpt: GPT, texts: Texts, means: Vectors) -> dict[str, Tensor]:
    N, T = len(texts), texts.length
    parts = parts_of(gpt)
    parts_at_once = max(1, TOKENS_AT_ONCE // (N * T))
    with hooked(blocks_of(gpt)) as (begins, _):
        features = run(gpt, texts)
    found = {"nothing": _losses(gpt, features, texts)[0]}
    for layer in (None, *range(gpt.config.num_layers)):
        names = [name for name in means if parts[name].layer == layer]
        for start in range(0, len(names), parts_at_once):
            together = {name: means[name] for name in names[start : start + parts_at_once]}
            with _begun_at(gpt, layer, begins), replaced(gpt, together, apart=N):
                features = run(gpt, texts.repeated(len(together)))
            found |= zip(together, _losses(gpt, features, texts), strict=True)
    return found


def _losses(gpt: GPT, features: Tensor, texts: Texts) -> Tensor:
    """The loss of each text, (P, N) in float64 on the CPU, of features (P N, T, D)."""
    counted = texts.predicted
    features = features.unflatten(0, (-1, len(texts)))[:, :, :-1]
    chosen = features[:, counted.to(features.device)]  # (P, predicted tokens of all texts, D)
    targets = texts.tokens[:, 1:][counted].to(features.device).repeat(len(chosen))
    rows = max(1, LOGITS_AT_ONCE // gpt.head.out_features)
    nats = [
        F.cross_entropy(gpt.unembed(some), wanted, reduction="none")
        for some, wanted in zip(chosen.flatten(0, 1).split(rows), targets.split(rows), strict=True)
    ]
    of_tokens = torch.cat(nats).view(len(chosen), -1).cpu().double()  # a GPU of Apple has no float64
    sums = torch.zeros(len(chosen), len(texts), dtype=torch.float64)
    return sums.index_add(1, counted.nonzero()[:, 0], of_tokens) / counted.sum(1)


@contextmanager
def _begun_at(gpt: GPT, layer: int | None, begins: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Inside, the blocks before `layer` do nothing, and that block gets what it began with before, for as many rows as
    there are. None: all blocks are computed."""
    blocks = blocks_of(gpt)

    def begin(block: nn.Module, x: Tensor) -> Tensor:
        return begins[block].repeat(len(x) // len(begins[block]), 1, 1)

    with changing([] if layer is None else [blocks[layer]], [], begin), ExitStack() as left:
        for block in blocks[: layer or 0]:
            block.forward = lambda x, **_: x
            left.callback(block.__delattr__, "forward")
        yield
