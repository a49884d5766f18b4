"""Measures how well a GPT predicts text: the log-probability, in nats, of each token given the tokens before it.

Shapes: T tokens in a window, N tokens in a text, V vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from model.gpt import GPT, in_eval_mode

IGNORED = -100  # a target that counts for nothing: PyTorch's ignore_index
LOGITS_AT_ONCE = 2**24  # with a large vocabulary, the logits of a whole batch would fill the memory


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
    tokens_at_once = max(1, LOGITS_AT_ONCE // model.config.vocab_size)
    device = model.token_embedding.weight.device
    # One tensor for all batches: small ones, left among large ones that are freed, would fragment the memory.
    logprobs = torch.empty(num_windows * T)
    filled = 0
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
            for chunk, expected in zip(features.split(tokens_at_once), targets.split(tokens_at_once), strict=True):
                nats = F.cross_entropy(model.unembed(chunk), expected, reduction="none")
                logprobs[filled : filled + len(nats)] = -nats
                filled += len(nats)
    return logprobs[:num_targets]


def count_nats(nats: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
    """Returns the four sums that `loss_and_bits` needs, float64 (4,). For a longer text, add up those of its parts.

    The sums are: the nats of all targets, the number of targets, the nats of targets that have bytes, and the number of
    these bytes. End-of-text has no bytes, so predicting where documents end does not change the bits per byte.

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
    """Turns sums from `count_nats` into nats per token and bits per byte; only bits compare across tokenizers."""
    nats, num_targets, nats_of_bytes, num_bytes = sums.tolist()
    return nats / num_targets, nats_of_bytes / num_bytes / math.log(2)
