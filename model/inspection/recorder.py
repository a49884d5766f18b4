"""Attention maps of a model on a probe, computed beside the path that it trains on.

The model runs as it always does, and its attention, fused or not, returns no weights. The q, k and v that each layer
used are projected once more, and the weights computed from them by the formula. Two numbers then say whether the
maps can be trusted:

    fidelity    max |weights @ values - what the layer's attention gave|, over all layers, where the largest value of a
                layer is above 1 as a share of it: rounding grows with it, and bfloat16 has no number between 10
                and 10.06 that a kernel could give
    causality   the largest change of any logit before token j when token j is replaced: 0 unless the future leaks

Shapes: L layers, H heads, T tokens, K head width.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from model.attention import CausalSelfAttention, scaled_dot_product_attention
from model.gpt import GPT, in_eval_mode
from model.inspection.archive import AttentionArchive, Probe, Snapshot
from model.inspection.heads import score_heads

MIN_PROBE_TOKENS = 5  # one, and two that are written twice


@dataclass(frozen=True)
class Capture:
    """The maps of one sequence: tokens (T,), weights (L, H, T, T) in float32 on the CPU, and how true they are.

    precision: the type that attention gave its values in.
    """

    tokens: Tensor
    weights: Tensor
    precision: str
    fidelity: float
    causality: float


@torch.no_grad()
def capture(
    gpt: GPT, tokens: Tensor | Sequence[int], *, document_ids: Tensor | None = None, autocast: torch.dtype | None = None
) -> Capture:
    """Every attention map of the model on one sequence, (T,) or (1, T).

    The model is run in eval mode, without compilation; its modes, its weights and the random number generators are
    afterwards as they were before.

    Args:
        document_ids: (1, T), as the model takes them.
        autocast: run the model under autocast to this type, as mixed-precision training does; None runs it as it is.

    Raises:
        ValueError: for no tokens, more than one sequence, or ids outside the vocabulary (the model raises it for
            sequences longer than its context).
    """
    gpt = getattr(gpt, "_orig_mod", gpt)  # what torch.compile has wrapped
    device = gpt.token_embedding.weight.device
    tokens = torch.atleast_2d(torch.as_tensor(tokens, device=device))
    _check_tokens(tokens, gpt.token_embedding.num_embeddings)
    layers = [block.attention for block in gpt.blocks]

    def logits(tokens: Tensor) -> Tensor:
        # `forward` is the module's own Python code even after `gpt.compile()`.
        return gpt.forward(tokens, document_ids=document_ids)

    with _undisturbed(gpt, device), torch.autocast(device.type, autocast, enabled=autocast is not None):
        with _watched(layers) as seen:
            before = logits(tokens)
        leaks = [_leak(logits, tokens, before, position) for position in _positions(tokens.shape[1])]
        projected = [
            layer.project(x, rotary, embedding)
            for layer, (x, rotary, _, embedding) in zip(layers, seen.inputs, strict=True)
        ]

    weights, errors = [], []
    for layer, qkv, (_, _, mask, _), attended in zip(layers, projected, seen.inputs, seen.attended, strict=True):
        layer_values, layer_weights = _attend_by_formula(layer, *qkv, mask)
        attended = attended.unflatten(-1, (layer.num_heads, layer.head_dim)).transpose(1, 2)
        largest_value = qkv[2].abs().max().clamp(min=1).item()
        errors.append((layer_values - attended.cpu()).abs().max().item() / largest_value)
        weights.append(layer_weights[0].float())
    precision = str(seen.attended[0].dtype).removeprefix("torch.")
    return Capture(tokens[0].cpu(), torch.stack(weights), precision, _largest(errors), _largest(leaks))


class AttentionRecorder:
    """Captures a model at chosen steps of its training and keeps what it saw in a folder.

    Two probes are shown each time: a text, and random distinct tokens written twice, which is where heads that look
    back for repetitions betray themselves.

    Args:
        folder: where the files go, as `archive` describes them; captures that it holds already are gone on with.
        probe_text_ids, labels: the token ids of the text, at most a context long, and how each reads.
        tokenizer_fingerprint: of the tokenizer that made the ids.
        vocab_size: random tokens are drawn below it.
        seed: of the random tokens.
        known_tokens: the ids to draw from, if they are two or more; else all are. A model that never met a token
            cannot look for it.
        end_of_text: put before the random tokens, and never drawn, if given.
        token_label: how a random token reads.
        autocast: as in `capture`.

    Raises:
        ValueError: for a text of fewer than MIN_PROBE_TOKENS, or a folder with captures of other probes.
    """

    def __init__(
        self,
        folder: Path,
        probe_text_ids: Sequence[int],
        labels: Sequence[str],
        tokenizer_fingerprint: str,
        vocab_size: int,
        seed: int = 0,
        *,
        known_tokens: Collection[int] = (),
        end_of_text: int | None = None,
        token_label: Callable[[int], str] = str,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.autocast = autocast
        # As long as the text, so that both fit the same context; never longer than there are distinct tokens.
        if len(probe_text_ids) < MIN_PROBE_TOKENS:
            raise ValueError(
                f"a probe text needs at least {MIN_PROBE_TOKENS} tokens, but this one has {len(probe_text_ids)}"
            )
        candidates = set(known_tokens) - {end_of_text}
        if len(candidates) < 2:
            candidates = set(range(vocab_size)) - {end_of_text}
        period = min((len(probe_text_ids) - 1) // 2, len(candidates))
        repeated = repeated_tokens(candidates, period, seed, end_of_text)
        probes = {
            "text": Probe(list(probe_text_ids), list(labels)),
            "repeated": Probe(repeated, [token_label(token) for token in repeated], period),
        }
        self.archive = AttentionArchive(folder, probes, tokenizer_fingerprint)

    def record(self, gpt: GPT, step: int) -> dict[str, float]:
        """Captures the model at this step, writes it down, and returns what is worth a curve.

        Keys: attention/fidelity, attention/causality, and attention/SCORE/layer_N, the best head of each layer.
        """
        snapshot, maps = take_snapshot(gpt, self.archive.probes, step, autocast=self.autocast)
        self.archive.add(snapshot, {name: weights.numpy() for name, weights in maps.items()})
        best = {
            f"attention/{name}/layer_{layer}": float(heads.max())
            for name, score in snapshot.scores.items()
            for layer, heads in enumerate(score)
        }
        return {"attention/fidelity": snapshot.fidelity, "attention/causality": snapshot.causality, **best}


def take_snapshot(
    gpt: GPT, probes: dict[str, Probe], step: int, *, autocast: torch.dtype | None = None
) -> tuple[Snapshot, dict[str, Tensor]]:
    """What the probes "text" and "repeated" show of a model: the measurements, and each probe's maps (L, H, T, T)."""
    captures = {name: capture(gpt, probe.tokens, autocast=autocast) for name, probe in probes.items()}
    maps = {name: taken.weights for name, taken in captures.items()}
    scores = score_heads(maps["text"], maps["repeated"], probes["repeated"].period)
    fidelity = _largest([taken.fidelity for taken in captures.values()])
    causality = _largest([taken.causality for taken in captures.values()])
    precision = captures["text"].precision
    scores = {name: score.numpy() for name, score in scores.items()}
    return Snapshot(step, precision, fidelity, causality, scores), maps


def repeated_tokens(candidates: Collection[int], period: int, seed: int = 0, first: int | None = None) -> list[int]:
    """`period` distinct random tokens, twice, after the token `first`, if given, which is not one of them.

    Raises ValueError if there are too few candidates for that.
    """
    candidates = sorted(set(candidates) - {first})
    if len(candidates) < period:
        raise ValueError(f"{period} distinct tokens cannot be drawn from {len(candidates)}")
    order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(seed))
    drawn = [candidates[place] for place in order[:period]]
    return ([] if first is None else [first]) + 2 * drawn


def _positions(length: int) -> list[int]:
    """Where tokens are replaced: in the middle and at the end; nothing comes before the first."""
    return sorted({length // 2, length - 1} - {0})


def _leak(logits: Callable[[Tensor], Tensor], tokens: Tensor, before: Tensor, position: int) -> float:
    replaced = tokens.clone()
    replaced[0, position] = 0 if replaced[0, position] else 1
    # In a call of its own: as a second row of one batch it might take other kernels, and differ by rounding.
    return (logits(replaced) - before)[:, :position].abs().max().item()


def _largest(errors: list[float]) -> float:
    """0 for none; NaN if any is, which `max` would lose."""
    return torch.tensor([0.0, *errors], dtype=torch.float64).max().item()


def _attend_by_formula(
    layer: CausalSelfAttention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Values (1, H, T, K) and weights (1, H, T, T) from what a layer used, with a mask that is built here anew.

    On the CPU in float64: whatever the device's settings for matrix products, rounding here stays out of sight.
    """
    q, k, v = (x.cpu().double() for x in (q, k, v))
    group = layer.num_heads // layer.num_kv_heads
    positions = torch.arange(q.shape[2])
    distance = positions[:, None] - positions
    visible = (distance >= 0) & (distance < (layer.window or len(positions)))
    if mask is not None:
        visible = visible & mask.cpu()
    return scaled_dot_product_attention(
        q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), visible, need_weights=True
    )


@dataclass
class _Seen:
    """What went through each layer: (x, rotary, mask, value_embedding), and what attention gave (1, T, H * K)."""

    inputs: list[tuple]
    attended: list[Tensor]


@contextmanager
def _watched(layers: list[CausalSelfAttention]) -> Iterator[_Seen]:
    seen = _Seen([], [])

    def keep_inputs(_, args: tuple, options: dict) -> None:
        seen.inputs.append((*args, options.get("rotary"), options.get("mask"), options.get("value_embedding")))

    def keep_attended(_, args: tuple) -> None:
        seen.attended.append(args[0])

    handles = []
    try:
        for layer in layers:
            handles.append(layer.register_forward_pre_hook(keep_inputs, with_kwargs=True))
            handles.append(layer.output_proj.register_forward_pre_hook(keep_attended))
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """In eval mode, and every module's mode and all random numbers afterwards as if nothing had happened."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []), in_eval_mode(model):
        yield


def _check_tokens(tokens: Tensor, vocab_size: int) -> None:
    if tokens.ndim != 2 or tokens.shape[0] != 1 or tokens.shape[1] == 0:
        raise ValueError(f"a capture needs the tokens of one sequence, (T,) or (1, T), not {tuple(tokens.shape)}")
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ValueError(f"token ids must be in 0..{vocab_size - 1}, but go from {tokens.min()} to {tokens.max()}")
