"""What the model loses without a part: the change of its loss when that part says the same at every position.

A part is replaced by its mean over some text, and all that follows is computed anew. The mean keeps what the part
always adds, so that the rest of the model gets what it is used to (mean ablation; Wang et al. 2022, "Interpretability
in the Wild", https://arxiv.org/abs/2211.00593, section 2.1). Only the layers that the part can change are computed.

A loss on one text says little: of a part that helps on average, chance makes every third text do better without it. So
changes are measured over many texts, with their standard error.

Shapes: N texts, T tokens, D model width, V vocabulary.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.gpt import GPT
from model.inspection.parts import Vectors, blocks_of, hooked, part_means, parts_of, replaced, run, undisturbed
from model.inspection.texts import Texts

TOKENS_AT_ONCE = 8192  # in one forward pass, over all texts
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


def measure_losses(
    gpt: GPT,
    windows: Mapping[str, Texts],
) -> tuple[dict[str, float], dict[str, dict[str, Change]]]:
    """By the kind of the windows the mean loss, in nats per token, and how it changes without each part."""
    loss = {}
    without = {}
    for kind, texts in windows.items():
        losses = losses_without_each(gpt, texts, part_means(gpt, texts))
        loss[kind] = losses["nothing"].mean().item()
        without[kind] = changes(losses)
    return loss, without


def changes(losses: Mapping[str, Tensor]) -> dict[str, Change]:
    """How much each part is missed, from the losses of N texts without it."""
    found = {}
    for name, loss in losses.items():
        if name == "nothing":
            continue
        rises = loss - losses["nothing"]
        error = math.nan
        if len(rises) > 1:
            error = rises.std().item() / math.sqrt(len(rises))
        found[name] = Change(rises.mean().item(), error)
    return found


@torch.no_grad()
def losses_without_each(
    gpt: GPT,
    texts: Texts,
    means: Vectors,
) -> dict[str, Tensor]:
    """The loss of each text, in nats per token, (N,) in float64: of the whole model, named "nothing", and without each
    part in turn, which gives its mean instead.

    Of a text in which no next token counts (see `Texts.predicted`) it is NaN.
    """
    parts = parts_of(gpt)
    names = ["nothing", *means]
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    for piece in texts.pieces(TOKENS_AT_ONCE):
        begins: dict[nn.Module, Tensor] = {}
        with undisturbed(gpt):
            with hooked(blocks_of(gpt), [], begins.__setitem__):
                found["nothing"] += _losses(gpt, run(gpt, piece), piece)
            for name, mean in means.items():
                layer = parts[name].layer or 0
                with _begun_at(gpt, layer, begins), replaced(gpt, {name: mean}):
                    found[name] += _losses(gpt, run(gpt, piece), piece)
    return {name: torch.stack(losses) for name, losses in found.items()}


def _losses(gpt: GPT, features: Tensor, texts: Texts) -> list[Tensor]:
    """The loss of each text, in float64 on the CPU. The logits of one text are in memory at a time."""
    losses = []
    for of_text, tokens, counted in zip(features, texts.tokens, texts.predicted, strict=True):
        targets = tokens[1:][counted].to(features.device)
        chosen = of_text[:-1][counted.to(features.device)]
        logits = gpt.unembed(chosen)
        nats = F.cross_entropy(logits, targets, reduction="none")
        losses.append(nats.cpu().double().mean())  # a GPU of Apple has no float64
    return losses


@contextmanager
def _begun_at(
    gpt: GPT,
    layer: int,
    begins: Mapping[nn.Module, Tensor],
) -> Iterator[None]:
    """Inside, the blocks before `layer` do nothing, and that block gets what it began with before."""
    blocks = blocks_of(gpt)
    begun = [blocks[layer]] if layer else []
    with hooked(begun, [], lambda block, _: begins[block]), ExitStack() as left:
        for block in blocks[:layer]:
            block.forward = lambda x, **_: x
            left.callback(block.__delattr__, "forward")
        yield
