"""How well a GPT predicts text: the log-probability of tokens after those before them, in nats.

Shapes: T tokens of a window, N tokens of a text.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from model.gpt import GPT, in_eval_mode

IGNORED = -100  # a target that does not count, as in PyTorch's losses
LOGITS_AT_ONCE = 2**24  # a whole batch of logits of a large vocabulary would fill the memory


def text_logprobs(
    model: GPT,
    tokens: Tensor,
    *,
    stride: int,
    batch_size: int = 16,
    document_ids: Tensor | None = None,
) -> Tensor:
    """Log-probability (N - 1,) of each token of a text but the first.

    Windows of context_length tokens begin at every `stride`-th token, and each scores the tokens that no earlier one
    has: all in the first window, the last `stride` in the others. A smaller stride gives each token more to look back
    at, at least context_length - stride tokens, and costs more.

    Args:
        tokens: (N,), at least two.
        stride: in 1 .. context_length, with which training validates.
        batch_size: windows at once.
        document_ids: (N,), of each token, where the model was trained to stay within a document.
    """
    num_targets = len(tokens) - 1
    T = min(model.config.context_length, num_targets)
    num_windows = 1 + max(0, math.ceil((num_targets - T) / stride))

    def windows_of(text: Tensor) -> Tensor:
        """All windows (num_windows, T + 1). Nothing sees what follows it, so the last may end in anything."""
        return F.pad(text, (0, T)).unfold(0, T + 1, stride)[:num_windows]

    windows = windows_of(tokens)
    documents = None if document_ids is None else windows_of(document_ids)
    rows = max(1, LOGITS_AT_ONCE // model.config.vocab_size)
    device = model.token_embedding.weight.device
    # Not a list of each batch's: small tensors that stay between large ones that go leave the memory in pieces.
    logprobs = torch.empty(num_windows * T)
    filled = 0
    with torch.inference_mode(), in_eval_mode(model):
        for first in range(0, num_windows, batch_size):
            some = slice(first, first + batch_size)
            batch = windows[some].to(device)
            ids = None if documents is None else documents[some, :-1].to(device)
            scored = torch.ones_like(batch[:, 1:], dtype=torch.bool)
            overlapping = scored if first else scored[1:]  # the very first window scores all of its tokens
            overlapping[:, : T - stride] = False
            features = model.features(batch[:, :-1], document_ids=ids)[scored]
            targets = batch[:, 1:][scored]
            for of_rows, expected in zip(features.split(rows), targets.split(rows), strict=True):
                nats = F.cross_entropy(model.unembed(of_rows), expected, reduction="none")
                logprobs[filled : filled + len(nats)] = -nats
                filled += len(nats)
    return logprobs[:num_targets]


def count_nats(nats: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
    """What `loss_and_bits` needs of some targets, in float64 (4,): add up those of all parts of a text.

    All nats, and the number of targets; then the nats and the bytes of those targets that have bytes. End-of-text has
    none: a tokenizer that needs fewer bytes for a text does not get better by predicting where documents end.

    Args:
        nats: (N,), of each target; 0 where it is IGNORED.
        targets: (N,).
        lengths: (V,), the bytes of each token.
    """
    if nats.device.type == "mps":  # which has no float64
        nats = nats.cpu()
        targets = targets.cpu()
        lengths = lengths.cpu()
    nats = nats.double()
    counts = targets != IGNORED
    num_bytes = lengths[targets.clamp(min=0)] * counts
    nats_of_bytes = nats.where(num_bytes > 0, 0)
    return torch.stack([nats.sum(), counts.sum().double(), nats_of_bytes.sum(), num_bytes.sum().double()])


def loss_and_bits(sums: Tensor) -> tuple[float, float]:
    """Nats for each token of a text, and bits for each byte, which can be compared across tokenizers."""
    nats, num_targets, nats_of_bytes, num_bytes = sums.tolist()
    return nats / num_targets, nats_of_bytes / num_bytes / math.log(2)
