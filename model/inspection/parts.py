"""The parts of a model by the names that people read, how to change what they give, and what the model loses then.

A part is a head ("head 5.2"), a feed-forward ("feed-forward 3") or a table ("token embedding"). Nothing of the model is
changed for good: hooks and methods that are put on it are taken off again, also after an error.

The model is without a part when that gives its mean over some text at every position, and all that follows is computed
anew. The mean keeps what the part always adds, so that the rest of the model gets what it is used to (mean ablation;
Wang et al. 2022, "Interpretability in the Wild", https://arxiv.org/abs/2211.00593, section 2.1). Only the layers that
the part can change are computed. A loss on one text says little: of a part that helps on average, chance makes every
third text do better without it. So changes are measured over many texts, with their standard error.

Shapes: N texts, T tokens, D model width, K head width, V vocabulary.
"""

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.gpt import GPT, Block, in_eval_mode
from model.inspection.texts import Texts

TOKENS_AT_ONCE = 8192  # in one forward pass, over all texts
ERRORS = 2  # standard errors from 0, up to which a change is no clear effect

Vectors = Mapping[str, Tensor]  # by the name of each part: (K,) for a head, else the width of what it gives
See = Callable[[nn.Module, Tensor], Tensor | None]  # gets a module and what it gets or gives, and may return another


# ---- the parts


class Part(NamedTuple):
    """Where what a part gives can be read and changed.

    module, columns: a head is read from the input of its layer's output matrix, at these columns. Any other part is
    read from the output of its module, all columns of it.
    layer: the block that it is in, 0 for a table that is read before all blocks.
    """

    module: nn.Module
    columns: slice
    layer: int


def blocks_of(gpt: GPT) -> list[Block]:
    """`gpt.blocks` with its type, for the type checker."""
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
        parts[name] = Part(table, everything, 0)
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
def _watched(gpt: GPT, names: Iterable[str], see: See) -> Iterator[None]:
    """Hands what the modules of parts give to `see`, see `hooked`."""
    parts = parts_of(gpt)
    modules = {parts[name].module for name in names}
    heads = modules & {block.attention.output_proj for block in blocks_of(gpt)}
    with hooked(heads, modules - heads, see):
        yield


@torch.no_grad()
def part_means(gpt: GPT, texts: Texts) -> dict[str, Tensor]:
    """The mean of what each part gives for these texts, over all positions. ValueError for unknown ids."""
    parts = parts_of(gpt)
    means: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, given: Tensor) -> None:
        means[module] = given.flatten(0, -2).mean(0)

    with undisturbed(gpt), _watched(gpt, parts, keep):
        run(gpt, texts)
    given = {}
    for name, part in parts.items():
        given[name] = means[part.module][part.columns]
    return given


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

    with _watched(gpt, vectors, change):
        yield


# ---- what the model loses without a part


class Change(NamedTuple):
    """By how much the loss rises when a part is replaced by its mean, in nats per token.

    error: the standard error of that over the texts; NaN for a single text, which cannot tell. Up to ERRORS of them
    from 0, a rise may be chance.
    """

    rise: float
    error: float


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
        if name != "nothing":
            rises = loss - losses["nothing"]
            squares = (rises - rises.mean()).square().sum()
            variance = squares / (len(rises) - 1)  # of a single text 0 / 0, which is NaN
            found[name] = Change(rises.mean().item(), (variance / len(rises)).sqrt().item())
    return found


@torch.no_grad()
def losses_without_each(
    gpt: GPT,
    texts: Texts,
    means: Vectors,
) -> dict[str, Tensor]:
    """By name the loss of each text, in nats per token, (N,) in float64.

    "nothing" is the whole model; under a part's name, that part gives its mean instead. NaN for a text in which no next
    token counts, see `Texts.predicted`.
    """
    parts = parts_of(gpt)
    found: dict[str, list[Tensor]] = {name: [] for name in ["nothing", *means]}
    for piece in texts.pieces(TOKENS_AT_ONCE):
        begins: dict[nn.Module, Tensor] = {}
        with undisturbed(gpt):
            with hooked(blocks_of(gpt), [], begins.__setitem__):
                found["nothing"] += _losses(gpt, piece)
            for name, mean in means.items():
                with _begun_at(gpt, parts[name].layer, begins), replaced(gpt, {name: mean}):
                    found[name] += _losses(gpt, piece)
    return {name: torch.stack(losses) for name, losses in found.items()}


def _losses(gpt: GPT, texts: Texts) -> list[Tensor]:
    """The loss of each text, in float64 on the CPU. The logits of one text are in memory at a time."""
    losses = []
    for features, tokens, counted in zip(run(gpt, texts), texts.tokens, texts.predicted, strict=True):
        logits = gpt.unembed(features[:-1][counted.to(features.device)])
        nats = F.cross_entropy(logits, tokens[1:][counted].to(features.device), reduction="none")
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


# ---- running a model, and looking inside


def run(gpt: GPT, texts: Texts) -> Tensor:
    """One forward pass: the features (N, T, D) after the final norm; with document ids, attention stays within a
    document. Raises ValueError for unknown ids."""
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
    see: See,
) -> Iterator[None]:
    """Hands the argument of some modules, and the result of others, to `see`. A tensor that it returns takes their
    place."""
    with ExitStack() as hooks:
        for module in inputs:
            hook = module.register_forward_pre_hook(lambda module, args: see(module, args[0]))
            hooks.callback(hook.remove)
        for module in outputs:
            hook = module.register_forward_hook(lambda module, _, result: see(module, result))
            hooks.callback(hook.remove)
        yield
