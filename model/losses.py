"""The loss of a GPT: how many nats it needs for each token, given the tokens before it. Training, evaluation and
inspection all call `next_token_loss`.

Shapes: T tokens in a window, N tokens in a text, D model width, V vocabulary.
"""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.gpt import GPT, in_eval_mode

LOGITS_AT_ONCE = 2**23  # with a large vocabulary, the logits of a whole batch would fill the memory


def next_token_loss(
    gpt: GPT,
    features: Tensor,
    targets: Tensor,
    reduction: Literal["mean", "none"] = "mean",
) -> Tensor:
    """Returns the cross-entropy, in nats, of predicting `targets` (...) from the features (..., D) before them.

    "mean" is over all targets that are not negative; "none" returns the nats of each, (N,), and 0 for a negative one:
    negative targets count for nothing, as PyTorch's ignore_index does.

    Many tokens of a large vocabulary are done in pieces, so that there are never more than LOGITS_AT_ONCE logits in
    memory. Compiled code is left whole: it fuses the loss with the product that makes the logits.
    """
    features, targets = features.flatten(0, -2), targets.flatten()
    tokens_at_once = max(1, LOGITS_AT_ONCE // gpt.config.vocab_size)
    if len(targets) <= tokens_at_once or torch.compiler.is_compiling():
        return F.cross_entropy(gpt.unembed(features), targets, reduction=reduction)
    if reduction == "mean":
        return _MeanInPieces.apply(gpt, features, targets, tokens_at_once, *_weights_of_unembed(gpt, features))
    pieces = zip(features.split(tokens_at_once), targets.split(tokens_at_once), strict=True)
    return torch.cat([F.cross_entropy(gpt.unembed(piece), expected, reduction="none") for piece, expected in pieces])


def _weights_of_unembed(gpt: GPT, features: Tensor) -> list[nn.Parameter]:
    """Returns the parameters that `gpt.unembed` uses: lm_head's, and those of whatever a user has added to it."""
    parameters = [p for p in gpt.parameters() if p.requires_grad]
    with torch.enable_grad():
        one = features[:1].detach().requires_grad_()
        gradients = torch.autograd.grad(gpt.unembed(one).sum(), [one, *parameters], allow_unused=True)
    return [p for p, gradient in zip(parameters, gradients[1:], strict=True) if gradient is not None]


class _MeanInPieces(torch.autograd.Function):
    """The mean loss of all targets. Each piece's gradients are computed at once, so that its logits can be freed."""

    @staticmethod
    def forward(
        ctx: Any,
        gpt: GPT,
        features: Tensor,
        targets: Tensor,
        tokens_at_once: int,
        *weights: Tensor,
    ) -> Tensor:
        count = (targets >= 0).sum()
        loss = torch.zeros((), device=features.device)
        by_features = torch.empty_like(features)
        by_weights = [torch.zeros_like(weight) for weight in weights]
        for first in range(0, len(targets), tokens_at_once):
            rows = slice(first, first + tokens_at_once)
            with torch.enable_grad():
                piece = features[rows].detach().requires_grad_()
                nats = F.cross_entropy(gpt.unembed(piece), targets[rows], reduction="sum") / count
                by_features[rows], *gradients = torch.autograd.grad(nats, [piece, *weights])
            loss += nats.detach()
            for total, gradient in zip(by_weights, gradients, strict=True):
                total += gradient
        ctx.save_for_backward(by_features, *by_weights)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        by_features, *by_weights = ctx.saved_tensors
        return None, gradient * by_features, None, None, *(gradient * total for total in by_weights)


def text_logprobs(
    model: GPT,
    tokens: Tensor,
    *,
    stride: int,
    batch_size: int = 16,
    document_ids: Tensor | None = None,
) -> Tensor:
    """Returns the log-probability (N - 1,) of each token of a text, except the first.

    Windows of context_length tokens begin at every `stride`-th token. Each window scores the tokens that no earlier
    window has scored: all tokens in the first window, the last `stride` tokens in the others. A smaller stride
    takes longer, but gives each token more text to look back at: context_length - stride tokens or more, except in the
    first window.

    Args:
        tokens: (N,), at least two.
        stride: 1 to context_length. During training, validation uses context_length.
        batch_size: number of windows that the model reads at once.
        document_ids: (N,), the number of each token's document, if the model was trained to attend within documents.
    """
    num_targets = len(tokens) - 1
    T = min(model.config.context_length, num_targets)
    num_windows = 1 + max(0, math.ceil((num_targets - T) / stride))

    def windows_of(text: Tensor) -> Tensor:
        """Returns all windows (num_windows, T + 1). The last may end in padding, which no token before it can see."""
        return F.pad(text, (0, T)).unfold(0, T + 1, stride)[:num_windows]

    windows = windows_of(tokens)
    documents = None if document_ids is None else windows_of(document_ids)
    device = model.token_embedding.weight.device
    logprobs = []
    with torch.inference_mode(), in_eval_mode(model.modules()):
        for first in range(0, num_windows, batch_size):
            rows = slice(first, first + batch_size)
            batch = windows[rows].to(device)
            ids = None if documents is None else documents[rows, :-1].to(device)
            scored = torch.ones_like(batch[:, 1:], dtype=torch.bool)
            overlapping = scored if first else scored[1:]  # the first window of all scores all its tokens
            overlapping[:, : T - stride] = False
            features = model.features(batch[:, :-1], document_ids=ids)[scored]
            targets = batch[:, 1:][scored]
            logprobs.append(-next_token_loss(model, features, targets, "none").cpu())
    return torch.cat(logprobs)[:num_targets]


def count_nats(nats: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
    """Returns the four sums that `loss_and_bits` needs, float64 (4,). For a longer text, add up those of its parts.

    The sums are: the nats of all targets, the number of targets, the nats of targets that have bytes, and the number of
    these bytes. End-of-text has no bytes, so predicting where documents end does not change the bits per byte.

    Args:
        nats: (N,), the nats of each target; 0 where the target is negative.
        targets: (N,), the tokens to predict; a negative one counts for nothing, as PyTorch's ignore_index does.
        lengths: (V,), the length of each token in bytes.
    """
    if nats.device.type == "mps":  # MPS has no float64
        nats = nats.cpu()
        targets = targets.cpu()
        lengths = lengths.cpu()
    counted = targets >= 0
    num_bytes = lengths[targets.clamp(min=0)] * counted
    nats_of_bytes = nats.where(num_bytes > 0, 0)
    return torch.stack([nats, counted, nats_of_bytes, num_bytes]).double().sum(dim=1)


def loss_and_bits(sums: Tensor) -> tuple[float, float]:
    """Turns sums from `count_nats` into nats per token and bits per byte; only bits compare across tokenizers."""
    nats, num_targets, nats_of_bytes, num_bytes = sums.tolist()
    return nats / num_targets, nats_of_bytes / num_bytes / math.log(2)
