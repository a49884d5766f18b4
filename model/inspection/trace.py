"""Runs a model once on one sequence, and keeps what the measurements read.

A GPT adds to one vector for each token, the residual stream: first the embeddings, then what each attention and each
feed-forward makes of the sum so far (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"). The
logits are read from the last sum. A trace holds every sum, and every part that was added.

Nothing of the model is changed: hooks and replaced methods are removed again, also after an error.

Shapes: L layers, H heads, H_kv key and value heads, T tokens, D model width, K head width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from model.attention import CausalSelfAttention, scaled_dot_product_attention
from model.gpt import GPT, Block, in_eval_mode


@dataclass(frozen=True)
class Trace:
    """What a model computed for one sequence.

    tokens: (T,).
    tables: what each embedding table adds, (T, D), by the names of `embedding_tables`.
    embeddings: (T, D), the sum of `tables`, which the embedding norm gets.
    residual: (2L + 1, T, D), the residual stream after the embeddings, attention 0, feed-forward 0, attention 1, ...
    values: (L, H, T, K), those of a group of heads repeated for each.
    heads: (L, T, H, K), what each head gives to the output matrix.
    value_shares: (T, H, K) by layer, where there are value embeddings: their share of `heads`.
    feed_forwards: (L, T, D).
    features: (T, D), the last of `residual` after the final norm; the head turns it into logits.
    """

    tokens: Tensor
    tables: dict[str, Tensor]
    embeddings: Tensor
    residual: Tensor
    values: Tensor
    heads: Tensor
    value_shares: dict[int, Tensor]
    feed_forwards: Tensor
    features: Tensor


@torch.no_grad()
def trace(gpt: GPT, tokens: Tensor, *, document_ids: Tensor | None = None) -> Trace:
    """Runs the model on `tokens` (T,), in eval mode, without autocast and without its compiled code.

    Args:
        document_ids: (1, T), as the model takes them.

    Raises:
        ValueError: for a sequence that is longer than the model's context.
    """
    blocks, tables, value_embeddings = blocks_of(gpt), embedding_tables(gpt), value_tables(gpt)
    with (
        undisturbed(gpt),
        recorded(gpt) as (inputs, outputs),
        observed([block.attention for block in blocks]) as calls,
    ):
        features = gpt.features(tokens[None], document_ids=document_ids)[0]

    residual = [inputs[module][0] for block in blocks for module in (block, block.feed_forward_norm)]
    values, heads, value_shares = [], [], {}
    for layer, (block, (q, k, v, _)) in enumerate(zip(blocks, calls, strict=True)):
        attention = block.attention
        values.append(v[0].repeat_interleave(attention.num_heads // attention.num_kv_heads, dim=0))
        heads.append(inputs[attention.output_proj][0].unflatten(-1, (attention.num_heads, -1)))
        if layer in value_embeddings:
            table = outputs[value_embeddings[layer]].unflatten(-1, (attention.num_kv_heads, -1)).transpose(1, 2)
            shares, _ = attention_formula(q, k, table, visible_keys(len(tokens), attention.window, document_ids))
            value_shares[layer] = shares[0].transpose(0, 1)
    return Trace(
        tokens=tokens,
        tables={name: outputs[table].flatten(0, -2) for name, table in tables.items()},  # positions have no batch axis
        embeddings=inputs[gpt.embedding_norm][0],
        residual=torch.stack([*residual, inputs[gpt.final_norm][0]]),
        values=torch.stack(values),
        heads=torch.stack(heads),
        value_shares=value_shares,
        feed_forwards=torch.stack([outputs[block.feed_forward][0] for block in blocks]),
        features=features,
    )


def embedding_tables(gpt: GPT) -> dict[str, nn.Module]:
    """The tables whose vectors are added up before the first block, by the names that people read."""
    tables = {
        "token embedding": gpt.token_embedding,
        "pair table": gpt.bigram_embedding,
        "positions": gpt.position_embedding,
    }
    return {name: table for name, table in tables.items() if table is not None}


def value_tables(gpt: GPT) -> dict[int, nn.Embedding]:
    """The value embeddings, by layer."""
    return {int(layer): cast(nn.Embedding, table) for layer, table in gpt.value_embeddings.items()}


def before_norm(norm: nn.Module, direction: Tensor) -> Tensor:
    """What a norm's input is multiplied with, to get `norm(x) * direction` up to the norm's scale and without its bias.

    Multiplying x without its mean by a direction is multiplying x by the direction without its mean.
    """
    weight = getattr(norm, "weight", None)
    if weight is not None:
        direction = direction * weight.to(direction)
    return direction - direction.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else direction


def blocks_of(gpt: GPT) -> list[Block]:
    """The blocks of a model, with the type that an nn.ModuleList does not tell."""
    return cast(list[Block], list(gpt.blocks))


def in_float32(gpt: GPT) -> GPT:
    """The model, or a copy of it in float32 if its weights are coarser, which would hide what is measured."""
    dtype = gpt.token_embedding.weight.dtype
    return gpt if dtype in (torch.float32, torch.float64) else copy.deepcopy(gpt).float()


def attention_formula(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Values (B, H, T, K) and weights (B, H, T, T), from what `attend` gets.

    By the formula, on the CPU in float64, so that rounding here is far below that of the model.
    """
    q, k, v = (x.cpu().double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return scaled_dot_product_attention(q, k, v, mask, need_weights=True)


def visible_keys(length: int, window: int | None, document_ids: Tensor | None) -> Tensor:
    """Which keys each query may attend to, (T, T), built without the network's own code for masks."""
    positions = torch.arange(length)
    distance = positions[:, None] - positions
    visible = (distance >= 0) & (distance < (window or length))
    if document_ids is not None:
        document = document_ids[0].cpu()
        visible &= document[:, None] == document
    return visible


@contextmanager
def undisturbed(gpt: GPT, autocast: torch.dtype | None = None) -> Iterator[None]:
    """In eval mode and without compiled code; on exit modes and random number generators are as they were.

    Args:
        autocast: run under autocast to this type, as mixed-precision training does. None: without any.
    """
    device = gpt.token_embedding.weight.device
    with (
        torch.compiler.set_stance("force_eager"),  # compiled code might not call what is observed
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        in_eval_mode(gpt),
        torch.autocast(device.type, autocast, enabled=autocast is not None),
    ):
        yield


@contextmanager
def recorded(gpt: GPT) -> Iterator[tuple[dict[nn.Module, Tensor], dict[nn.Module, Tensor]]]:
    """Collects the first argument and the result of the tables, blocks and other modules that measurements read.

    Of every module it would be many times the memory.
    """
    modules = [gpt.embedding_norm, gpt.final_norm, *embedding_tables(gpt).values(), *value_tables(gpt).values()]
    for block in blocks_of(gpt):
        modules += [block, block.attention.output_proj, block.feed_forward_norm, block.feed_forward]
    inputs: dict[nn.Module, Tensor] = {}
    outputs: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, args: tuple[Tensor, ...], result: Tensor) -> None:
        inputs[module], outputs[module] = args[0], result

    with ExitStack() as hooks:
        for module in modules:
            hooks.callback(module.register_forward_hook(keep).remove)
        yield inputs, outputs


@contextmanager
def observed(layers: list[CausalSelfAttention]) -> Iterator[list[tuple[Tensor, ...]]]:
    """Collects (q, k, v, result) of every call of the layers' `attend`, in the order of the calls."""
    calls: list[tuple[Tensor, ...]] = []

    def observing(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def attend_observed(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            attended = attend(q, k, v, *args, **kwargs)
            calls.append((q, k, v, attended))
            return attended

        return attend_observed

    replaced = [vars(layer).get("attend") for layer in layers]  # None, unless the method was replaced on the layer
    try:
        for layer in layers:
            layer.attend = observing(layer.attend)
        yield calls
    finally:
        for layer, own in zip(layers, replaced, strict=True):
            del layer.attend
            if own is not None:
                layer.attend = own
