"""Measures how well a GPT predicts text: the log-probability, in nats, of each token given the tokens before it.

Shapes: T tokens in a window, N tokens in a text, V vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from model.gpt import GPT, in_eval_mode

IGNORED = -100  # a target to leave out, as in PyTorch's losses
LOGITS_AT_ONCE = 2**24  # logits of a whole batch would fill the memory if the vocabulary is large


def text_logprobs(
    model: GPT,
    tokens: Tensor,
    *,
    stride: int,
    batch_size: int = 16,
    document_ids: Tensor | None = None,
) -> Tensor:
    """Returns the log-probability (N - 1,) of each token of a text but the first.

    Windows of context_length tokens begin at every `stride`-th token. Each window scores the tokens that no earlier
    window has scored: all tokens in the first window, the last `stride` tokens in the others. A smaller stride gives
    each token more text to look back at, at least context_length - stride tokens, and takes longer.

    Args:
        tokens: (N,), at least two.
        stride: in 1 .. context_length. Training validates with context_length.
        batch_size: number of windows that the model reads at once.
        document_ids: (N,), the document of each token, if the model was trained to attend within a document only.
    """
    num_targets = len(tokens) - 1
    T = min(model.config.context_length, num_targets)
    num_windows = 1 + max(0, math.ceil((num_targets - T) / stride))

    def windows_of(text: Tensor) -> Tensor:
        """Returns all windows (num_windows, T + 1). The last may end in any padding: no token sees what follows it."""
        return F.pad(text, (0, T)).unfold(0, T + 1, stride)[:num_windows]

    windows = windows_of(tokens)
    documents = None if document_ids is None else windows_of(document_ids)
    tokens_at_once = max(1, LOGITS_AT_ONCE // model.config.vocab_size)
    device = model.token_embedding.weight.device
    # One tensor, not one per batch: small tensors kept among large ones that are freed would fragment the memory.
    logprobs = torch.empty(num_windows * T)
    filled = 0
    with torch.inference_mode(), in_eval_mode(model):
        for first in range(0, num_windows, batch_size):
            rows = slice(first, first + batch_size)
            batch = windows[rows].to(device)
            ids = None if documents is None else documents[rows, :-1].to(device)
            scored = torch.ones_like(batch[:, 1:], dtype=torch.bool)
            overlapping = scored if first else scored[1:]  # the very first window scores all its tokens
            overlapping[:, : T - stride] = False
            features = model.features(batch[:, :-1], document_ids=ids)[scored]
            targets = batch[:, 1:][scored]
            for chunk, expected in zip(features.split(tokens_at_once), targets.split(tokens_at_once), strict=True):
                nats = F.cross_entropy(model.unembed(chunk), expected, reduction="none")
                logprobs[filled : filled + len(nats)] = -nats
                filled += len(nats)
    return logprobs[:num_targets]


def count_nats(nats: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
    """Returns the sums that `loss_and_bits` needs, in float64 (4,). Add up the results of all parts of a text.

    The sums are: the nats of all targets, the number of targets, the nats of targets that have bytes, and the number of
    those bytes. End-of-text has none: how well a model predicts where documents end does not change its bits per byte.

    Args:
        nats: (N,), the nats of each target; 0 where the target is IGNORED.
        targets: (N,), the tokens to predict.
        lengths: (V,), the length of each token in bytes.
    """
    if nats.device.type == "mps":  # MPS has no float64
        nats = nats.cpu()
        targets = targets.cpu()
        lengths = lengths.cpu()
    nats = nats.double()
    counts = targets != IGNORED
    num_bytes = lengths[targets.clamp(min=0)] * counts
    nats_of_bytes = nats.where(num_bytes > 0, 0)
    return torch.stack([nats.sum(), counts.sum().double(), nats_of_bytes.sum(), num_bytes.sum().double()])


def loss_and_bits(sums: Tensor) -> tuple[float, float]:
    """Returns nats per token, and bits per byte, which can be compared across tokenizers, from sums of `count_nats`."""
    nats, num_targets, nats_of_bytes, num_bytes = sums.tolist()
    return nats / num_targets, nats_of_bytes / num_bytes / math.log(2)
