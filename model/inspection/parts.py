"""The parts of a model by name, how to replace their outputs, and how much the loss rises without them (ablation).

A part is a head ("head 5.2"), a feed-forward ("feed-forward 3") or a table ("token embedding").

To ablate a part, its output is replaced by its mean over some text, the same vector at every position, and everything
after it is computed again. The mean keeps what the part always adds, so that the rest of the model gets the inputs it
is used to (mean ablation; Wang et al. 2022, "Interpretability in the Wild", https://arxiv.org/abs/2211.00593, section
2.1). Only the layers that the part can change are computed again. The loss of a single text says little: even without a
part that helps on average, every third text has a lower loss by chance. So a change of the loss is measured over many
texts, with its standard error.

Shapes: N texts, T tokens, D model width, K head width, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from model.gpt import GPT
from model.inspection.passes import NOT_RECORDED, Hook, features_of, hooked, method_replaced, undisturbed
from model.inspection.texts import Texts
from model.losses import next_token_loss
from model.mistakes import Mistake

TOKENS_AT_ONCE = 8192  # in one forward pass, over all texts
ERRORS = 2  # a change of less than ERRORS standard errors may be chance

Vectors = Mapping[str, Tensor]  # one output for each part name: (K,) for a head, else as wide as the module's output


# ---- the parts


class Part(NamedTuple):
    """Where the output of a part can be read and changed.

    module, columns: the output of a head is these columns of the input of `module`, its layer's output matrix. The
    output of any other part is the whole output of `module`.
    layer: the number of the block that holds the part; 0 for a table that is used before all blocks.
    """

    module: nn.Module
    layer: int
    columns: slice = slice(None)


def embedding_tables(gpt: GPT) -> dict[str, nn.Module]:
    """Returns by name the tables whose vectors are added up before the first block."""
    tables = {
        "token embedding": gpt.token_embedding,
        "n-gram tables": gpt.ngram_embedding,
        "positions": gpt.position_embedding,
    }
    return {name: table for name, table in tables.items() if table is not None}


def parts_of(gpt: GPT) -> dict[str, Part]:
    """Returns all parts by name, first the tables, then layer by layer. Raises a `Mistake` if layers share a module."""
    sublayers = [module for block in gpt.blocks for module in (block.attention, block.feed_forward)]
    if len({*sublayers}) < len(sublayers):
        raise Mistake(f"layers share modules, so no part belongs to a single layer: {NOT_RECORDED}")
    parts = {name: Part(table, 0) for name, table in embedding_tables(gpt).items()}
    for name, table in gpt.value_embeddings.items():
        parts[f"value embeddings {name}"] = Part(table, int(name))
    for layer, block in enumerate(gpt.blocks):
        K = block.attention.head_dim
        for head in range(block.attention.num_heads):
            columns = slice(head * K, (head + 1) * K)
            parts[f"head {layer}.{head}"] = Part(block.attention.output_proj, layer, columns)
        parts[f"feed-forward {layer}"] = Part(block.feed_forward, layer)
    return parts


@contextmanager
def _hooked_parts(gpt: GPT, names: Iterable[str], hook: Hook) -> Iterator[None]:
    """Calls `hook` with each module that holds one of these parts and the tensor with the part's output; see `hooked`.

    Parts that share a module, such as the heads of a layer, share one call.
    """
    parts = parts_of(gpt)
    modules = {parts[name].module for name in names}
    output_matrices = {block.attention.output_proj for block in gpt.blocks}
    with hooked(modules & output_matrices, modules - output_matrices, hook):
        yield


@torch.no_grad()
def part_means(gpt: GPT, texts: Texts) -> dict[str, Tensor]:
    """Returns the mean output of each part over all positions of these texts. Raises ValueError for unknown ids."""
    parts = parts_of(gpt)
    module_means: dict[nn.Module, Tensor] = {}

    def keep_mean(module: nn.Module, output: Tensor) -> None:
        module_means[module] = output.flatten(0, -2).mean(0)

    with undisturbed(gpt), _hooked_parts(gpt, parts, keep_mean):
        features_of(gpt, texts)
    return {name: module_means[part.module][part.columns] for name, part in parts.items()}


class Edit(NamedTuple):
    """A change of what some parts return: the arguments of `replaced`."""

    vectors: Vectors
    position: int | None = None


NO_EDIT = Edit({})


@contextmanager
def replaced(
    gpt: GPT,
    vectors: Vectors,
    position: int | None = None,
) -> Iterator[None]:
    """Replaces the output of each part that `vectors` names by its vector there, while the block runs.

    position: replace at this token only (counted from 0); None replaces at every token. A sequence too short to have
    that token is not changed.
    """
    parts = parts_of(gpt)
    tokens = slice(None) if position is None else slice(position, position + 1)

    def replace(module: nn.Module, output: Tensor) -> Tensor:
        output = output.clone()
        for name, vector in vectors.items():
            part = parts[name]
            if part.module is module:
                output[..., tokens, part.columns] = vector.to(output)
        return output

    with _hooked_parts(gpt, vectors, replace):
        yield


# ---- how much the loss rises without a part


class Change(NamedTuple):
    """How much the loss rises, in nats per token, when the output of a part is replaced by its mean.

    error: the standard error of the rise over the texts; NaN for a single text. A rise within ERRORS standard errors of
    0 may be chance.
    """

    rise: float
    error: float


def measure_losses(
    gpt: GPT,
    windows: Mapping[str, Texts],
) -> tuple[dict[str, float], dict[str, dict[str, Change]]]:
    """Returns by kind of windows the mean loss in nats per token, and by part name how it changes without the part."""
    loss = {}
    ablation = {}
    for kind, texts in windows.items():
        losses = losses_without_each(gpt, texts, part_means(gpt, texts))
        loss[kind] = losses["nothing"].mean().item()
        ablation[kind] = rises(losses)
    return loss, ablation


def rises(losses: Mapping[str, Tensor]) -> dict[str, Change]:
    """Returns how much the loss rises without each part. losses: as `losses_without_each` returns them."""
    change = {}
    for name, loss in losses.items():
        if name != "nothing":
            by_text = loss - losses["nothing"]
            rise = by_text.mean()
            variance = (by_text - rise).square().mean() / (len(by_text) - 1)  # 0 / 0 for a single text, which is NaN
            change[name] = Change(rise.item(), variance.sqrt().item())
    return change


@torch.no_grad()
def losses_without_each(
    gpt: GPT,
    texts: Texts,
    means: Vectors,
) -> dict[str, Tensor]:
    """Returns by part name the loss of each text without that part: (N,) in float64, in nats per token.

    The loss of the whole model has the name "nothing". A text in which no next token counts (see `Texts.predicted`) has
    the loss NaN.
    """
    parts = parts_of(gpt)
    losses: dict[str, list[Tensor]] = {name: [] for name in ["nothing", *means]}
    starts = {0: 0}  # the first block to compute, for a change in each layer
    for piece in texts.pieces(TOKENS_AT_ONCE):
        outputs: dict[nn.Module, Any] = {}
        with undisturbed(gpt):
            with hooked([], gpt.blocks, outputs.__setitem__):
                whole = _losses(gpt, piece)
            losses["nothing"].append(whole)
            for name, mean in means.items():
                layer = parts[name].layer
                if layer not in starts:  # something else than blocks may carry what an earlier one made to a later one
                    starts[layer] = 0
                    with suppress(Exception), _skipped(gpt.blocks[:layer], outputs):
                        if _losses(gpt, piece).allclose(whole, rtol=0, equal_nan=True):
                            starts[layer] = layer
                with _skipped(gpt.blocks[: starts[layer]], outputs), replaced(gpt, {name: mean}):
                    losses[name].append(_losses(gpt, piece))
    return {name: torch.cat(by_piece) for name, by_piece in losses.items()}


def _losses(gpt: GPT, texts: Texts) -> Tensor:
    """Returns the loss of each text, in float64 on the CPU. Only the logits of one text are in memory at a time."""
    losses = []
    for features, tokens, counted in zip(features_of(gpt, texts), texts.tokens, texts.predicted, strict=True):
        targets = tokens[1:][counted].to(features.device)
        nats = next_token_loss(gpt, features[:-1][counted.to(features.device)], targets, "none")
        losses.append(nats.cpu().double().mean())  # on the CPU: Apple's GPUs have no float64
    return torch.stack(losses)


@contextmanager
def _skipped(blocks: Iterable[nn.Module], outputs: Mapping[nn.Module, Any]) -> Iterator[None]:
    """Skips these blocks: each returns what it returned in an earlier forward pass."""
    with ExitStack() as undo:
        for block in blocks:
            undo.enter_context(method_replaced(block, "forward", lambda *_, output=outputs[block], **__: output))
        yield
