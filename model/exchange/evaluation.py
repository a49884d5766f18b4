"""How well a GPT predicts text: the log-probability of tokens after those before them, in nats.

Shapes: B windows at once, T tokens of a window, N tokens of a text, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from model.checks import check_range
from model.gpt import GPT, in_eval_mode

LOGITS_AT_ONCE = 2**24  # a whole batch of logits of a large vocabulary would fill the memory
IGNORED = -100


@torch.inference_mode()
def score(model: GPT, tokens: Tensor, targets: Tensor, *, document_ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Log-probability (n,) of each of the n `targets` that is not -100, row by row, and whether it is the likeliest.

    Args:
        tokens: (B, T), on the model's device.
        targets: (B, T), the token that follows each of `tokens`, or -100.
        document_ids: (B, T), where the model was trained to stay within a document.
    """
    wanted = targets != IGNORED
    logprobs, likeliest = [], []
    with in_eval_mode(model):
        features = model.features(tokens, document_ids=document_ids)[wanted]
        rows = max(1, LOGITS_AT_ONCE // model.config.vocab_size)
        for some, ids in zip(features.split(rows), targets[wanted].split(rows), strict=True):
            logits = model.unembed(some)
            logprobs.append(-F.cross_entropy(logits, ids, reduction="none"))
            likeliest.append(logits.argmax(dim=-1) == ids)
    return torch.cat(logprobs), torch.cat(likeliest)


def text_logprobs(
    model: GPT,
    tokens: Tensor,
    *,
    stride: int | None = None,
    batch_size: int = 16,
    end_of_text: int | None = None,
) -> Tensor:
    """Log-probability (N - 1,) of each token of a text but the first.

    Windows of context_length tokens begin at every `stride`-th token, and each scores the tokens that no earlier one
    has: all in the first window, the last `stride` in the others. A smaller stride gives each token more to look back
    at, at least context_length - stride tokens, and costs more.

    Args:
        tokens: (N,), at least two, on the CPU or the model's device.
        stride: in 1 .. context_length; None for context_length, which is how training validates.
        batch_size: windows at once.
        end_of_text: begins a document, where the model was trained to stay within one.

    Raises:
        ValueError: for a text of less than two tokens, or a value outside its range.
    """
    context_length = model.config.context_length
    stride = context_length if stride is None else stride
    check_range("stride", stride, 1, context_length)
    check_range("batch_size", batch_size, 1)
    if tokens.ndim != 1 or len(tokens) < 2:
        raise ValueError(f"a text needs at least 2 tokens in one row, not the shape {tuple(tokens.shape)}")
    num_targets = len(tokens) - 1
    T = min(context_length, num_targets)
    padded = F.pad(tokens, (0, T))  # nothing sees what follows it, so it does not matter what the last window holds
    windows = padded.unfold(0, T + 1, stride)[: 1 + max(0, -(-(num_targets - T) // stride))]
    device = model.token_embedding.weight.device
    logprobs = []
    for number, some in enumerate(windows.split(batch_size)):
        some = some.to(device)
        targets = some[:, 1:].clone()
        overlapping = targets if number else targets[1:]  # the very first window scores all of its tokens
        overlapping[:, : T - stride] = IGNORED
        document_ids = None if end_of_text is None else (some[:, :-1] == end_of_text).cumsum(dim=1)
        logprobs.append(score(model, some[:, :-1], targets, document_ids=document_ids)[0].cpu())
    return torch.cat(logprobs)[:num_targets]


def continuation_scores(
    model: GPT, pairs: Sequence[tuple[list[int], list[int]]], *, batch_size: int = 16
) -> list[tuple[float, bool]]:
    """Log-probability of each continuation after its context, and whether greedy decoding would write it.

    A pair that is longer than the context loses its beginning. A continuation that is longer itself is scored in
    pieces of context_length tokens, each of which sees as much before it as fits.

    Args:
        pairs: token ids of context and continuation, each at least one.
        batch_size: windows at once.
    """
    T = model.config.context_length
    pieces = []  # pair, window, number of tokens to score at its end
    for pair, (context, continuation) in enumerate(pairs):
        if not context or not continuation:
            raise ValueError("a context and its continuation need at least one token each")
        text = context + continuation
        for begin in range(len(context), len(text), T):
            end = min(begin + T, len(text))
            pieces.append((pair, text[max(0, end - T - 1) : end], end - begin))
    pieces.sort(key=lambda piece: len(piece[1]))  # windows of about the same length share a batch
    sums, greedy = [0.0] * len(pairs), [True] * len(pairs)
    device = model.token_embedding.weight.device
    for first in range(0, len(pieces), batch_size):
        batch = pieces[first : first + batch_size]
        windows = torch.zeros((len(batch), len(batch[-1][1])), dtype=torch.long)
        targets = torch.full_like(windows[:, 1:], IGNORED)
        for row, (_, window, count) in enumerate(batch):
            windows[row, : len(window)] = torch.tensor(window)
            targets[row, len(window) - 1 - count : len(window) - 1] = windows[row, len(window) - count : len(window)]
        logprobs, likeliest = score(model, windows[:, :-1].to(device), targets.to(device))
        counts = [count for _, _, count in batch]
        for (pair, _, _), some, hits in zip(batch, logprobs.split(counts), likeliest.split(counts), strict=True):
            sums[pair] += some.double().sum().item()
            greedy[pair] &= bool(hits.all())
    return list(zip(sums, greedy, strict=True))
