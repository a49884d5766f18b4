"""Runs a model once on one sequence, and keeps what the measurements read.

A GPT adds to one vector for each token, the residual stream: first the embeddings, then what each attention and each
feed-forward makes of the sum so far (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"). The
logits are read from the last sum. A trace holds every sum, and every part that was added.

Nothing of the model is changed: hooks and replaced methods are removed again, also after an error.

Shapes: L layers, H heads, H_kv key and value heads, T tokens, D model width, K head width.
"""

import copy
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import CausalSelfAttention
from model.gpt import GPT, Block, in_eval_mode

ByModule = dict[nn.Module, Tensor]


@dataclass(frozen=True)
class Trace:
    """What a model computed for one sequence.

    tokens: (T,).
    tables: what each embedding table adds, (T, D), by the names of `embedding_tables`.
    embeddings: (T, D), the sum of `tables`, which the embedding norm gets.
    residual: (2L + 1, T, D), the residual stream after the embeddings, attention 0, feed-forward 0, attention 1, ...
    queries, keys, values: (L, H, T, K) as `attend` gets them, those of a group of heads repeated for each.
    heads: (L, T, H, K), what each head gives to the output matrix.
    feed_forwards: (L, T, D).
    features: (T, D), the last of `residual` after the final norm; the head turns it into logits.
    """

    tokens: Tensor
    tables: dict[str, Tensor]
    embeddings: Tensor
    residual: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    heads: Tensor
    feed_forwards: Tensor
    features: Tensor


@torch.no_grad()
def trace(gpt: GPT, tokens: Tensor) -> Trace:
    """Runs the model on `tokens` (T,), in eval mode, without autocast and without its compiled code.

    Raises ValueError for a sequence that is longer than the model's context.
    """
    blocks, tables = blocks_of(gpt), embedding_tables(gpt)
    layers = [block.attention for block in blocks]
    read = [gpt.embedding_norm, gpt.final_norm, *tables.values(), *(layer.output_proj for layer in layers)]
    for block in blocks:
        read += [block, block.feed_forward_norm, block.feed_forward]
    calls: list[AttendCall] = []
    with undisturbed(gpt), hooked(read) as (inputs, outputs), observed(layers, calls.append):
        features = gpt.features(tokens[None])[0]
    heads = [inputs[layer.output_proj][0].unflatten(-1, (layer.num_heads, -1)) for layer in layers]
    residual = [inputs[module][0] for block in blocks for module in (block, block.feed_forward_norm)]
    return Trace(
        tokens=tokens,
        tables={name: outputs[table].flatten(0, -2) for name, table in tables.items()},  # positions have no batch axis
        embeddings=inputs[gpt.embedding_norm][0],
        residual=torch.stack([*residual, inputs[gpt.final_norm][0]]),
        queries=torch.cat([call.q for call in calls]),
        keys=torch.cat([call.by_head(call.k) for call in calls]),
        values=torch.cat([call.by_head(call.v) for call in calls]),
        heads=torch.stack(heads),
        feed_forwards=torch.stack([outputs[block.feed_forward][0] for block in blocks]),
        features=features,
    )


def embedding_tables(gpt: GPT) -> dict[str, nn.Module]:
    """The tables whose vectors are added up before the first block, by the names that people read."""
    tables = {
        "token embedding": gpt.token_embedding,
        "n-gram tables": gpt.ngram_embedding,
        "positions": gpt.position_embedding,
    }
    return {name: table for name, table in tables.items() if table is not None}


def before_norm(norm: nn.Module, direction: Tensor) -> Tensor:
    """What a norm's input is multiplied with, to get `norm(x) * direction` up to the norm's scale and without its bias.

    Multiplying x without its mean by a direction is multiplying x by the direction without its mean.
    """
    weight = getattr(norm, "weight", None)
    if weight is not None:
        direction = direction * weight.to(direction)
    return direction - direction.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else direction


def scale_of(norm: nn.Module, x: Tensor) -> Tensor:
    """What a norm multiplies x (..., D) with besides its weight, (..., 1)."""
    if isinstance(norm, nn.LayerNorm):
        return torch.rsqrt(x.var(-1, correction=0, keepdim=True) + norm.eps)
    if isinstance(norm, nn.RMSNorm):
        return torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps)
    return torch.ones_like(x[..., :1])


def blocks_of(gpt: GPT) -> list[Block]:
    """The blocks of a model, with the type that an nn.ModuleList does not tell."""
    return cast(list[Block], list(gpt.blocks))


def in_float32(gpt: GPT) -> GPT:
    """The model, or a copy of it in float32 if its weights are coarser, which would hide what is measured."""
    dtype = gpt.token_embedding.weight.dtype
    return gpt if dtype in (torch.float32, torch.float64) else copy.deepcopy(gpt).float()


@dataclass(frozen=True)
class AttendCall:
    """One call of a layer's `attend`: what it got and what it returned, (B, H, T, K).

    attend: the method that was called, of q, k and v alone: with all else it got, such as the mask.
    q (B, H, T, K), k and v (B, H_kv, S, K).

    `weights` calls `attend` once more: use it inside `undisturbed`, without autocast.
    """

    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    q: Tensor
    k: Tensor
    v: Tensor
    attended: Tensor

    def weights(self) -> Tensor:
        """How much each query takes of each key's value, (B, H, T, S), in float32 at least: `attend` of the identity.

        Attention is linear in the values, so this is the map of whatever `attend` computes. The identity is handed over
        in pieces of K columns, since an `attend` may count on values of that width.
        """
        S, K = self.v.shape[-2:]
        dtype = torch.promote_types(self.q.dtype, torch.float32)
        q, k, identity = self.q.to(dtype), self.k.to(dtype), torch.eye(S, dtype=dtype, device=self.v.device)
        columns = identity.expand(*self.v.shape[:-1], S).split(K, dim=-1)
        pieces = [self.attend(q, k, F.pad(piece, (0, K - piece.shape[-1]))) for piece in columns]
        return torch.cat(pieces, dim=-1)[..., :S]

    def by_head(self, x: Tensor) -> Tensor:
        """Keys or values (B, H_kv, S, K) -> (B, H, S, K): those of a group of heads repeated for each of them."""
        return x.repeat_interleave(self.q.shape[1] // x.shape[1], dim=1)

    def infidelity(self, weights: Tensor) -> float:
        """The `difference` of weights @ values.

        Large for an `attend` that is not linear in the values or mixes heads, for which there are no weights.
        """
        return self.difference(weights @ self.by_head(self.v).to(weights.dtype))

    def difference(self, attended: Tensor) -> float:
        """max |attended - what `attend` returned|, divided by the largest value where that is above 1."""
        return ((attended - self.attended).abs().max() / self.v.abs().max().clamp(min=1)).item()


@contextmanager
def undisturbed(gpt: GPT, autocast: torch.dtype | None = None) -> Iterator[None]:
    """In eval mode and without compiled code; on exit modes and random number generators are as they were.

    Args:
        autocast: run under autocast to this type, as mixed-precision training does. None: without any.
    """
    device = gpt.token_embedding.weight.device
    # Compiled code might not call what is observed. Setting this imports the compiler, which takes a second, so it is
    # set only where that is loaded: its private name is the only sign. test_recorder.py fails if another name is used.
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    with (
        eager,
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        in_eval_mode(gpt),
        torch.autocast(device.type, autocast, enabled=autocast is not None),
    ):
        yield


@contextmanager
def hooked(modules: Iterable[nn.Module]) -> Iterator[tuple[ByModule, ByModule]]:
    """Collects the first argument and the result of these modules, by module."""
    inputs: ByModule = {}
    outputs: ByModule = {}

    def keep(module: nn.Module, args: tuple[Tensor, ...], result: Tensor) -> None:
        inputs[module], outputs[module] = args[0], result

    with ExitStack() as hooks:
        for module in modules:
            hooks.callback(module.register_forward_hook(keep).remove)
        yield inputs, outputs


@contextmanager
def edited(
    inputs: Iterable[nn.Module], outputs: Iterable[nn.Module], edit: Callable[[nn.Module, Tensor], Tensor]
) -> Iterator[None]:
    """Replaces the first argument of some modules, and the result of others, by what `edit` makes of it."""
    with ExitStack() as hooks:
        for module in inputs:
            handle = module.register_forward_pre_hook(lambda module, args: (edit(module, args[0]), *args[1:]))
            hooks.callback(handle.remove)
        for module in outputs:
            hooks.callback(module.register_forward_hook(lambda module, _, result: edit(module, result)).remove)
        yield


@contextmanager
def observed(layers: list[CausalSelfAttention], see: Callable[[AttendCall], None]) -> Iterator[None]:
    """Hands every call of the layers' `attend` to `see`, in the order of the calls."""

    def observing(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def attend_observed(q: Tensor, k: Tensor, v: Tensor, *arguments: Any, **options: Any) -> Tensor:
            attended = attend(q, k, v, *arguments, **options)
            see(AttendCall(lambda q, k, v: attend(q, k, v, *arguments, **options), q, k, v, attended))
            return attended

        return attend_observed

    replaced = [vars(layer).get("attend") for layer in layers]  # None, unless the method was replaced on the layer
    try:
        for layer in layers:
            layer.attend = observing(layer.attend)
        yield
    finally:
        for layer, own in zip(layers, replaced, strict=True):
            del layer.attend
            if own is not None:
                layer.attend = own
