"""A checkpoint proves its code: it holds a small batch of text, and the loss of each token in it.

Opening the checkpoint computes these losses again. If they differ, the model was trained by other code, or a function
has been replaced since. Functions are compared, not files: code that computes the same gives the same losses.

Shapes: B rows, T tokens in a row.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from model.gpt import GPT, in_eval_mode
from model.mistakes import Mistake, parsing

NUM_TOKENS = 256  # in the batch, at most
NUM_PRODUCTS = 4e9  # tokens times parameters, at most: a processor reads the batch in a tenth of a second
# nats. Models trained in float32, bfloat16 or both, compiled or not, are read on one and two threads and with other
# vector instructions to within 1e-5, and float64 is as near. The products of tensor cores (TF32) would be 0.004 apart.
# GELU by its other formula is 0.0005 apart after 40 steps, so it is not told.
ROUNDING = 1e-3

Weights = dict[str, Tensor]  # as `GPT.state_dict` names them


def prove(gpt: GPT, weights: Weights, text: Tensor, end_of_text: int | None = None) -> dict[str, Any]:
    """Returns the proof for a checkpoint with these weights, as plain data.

    Args:
        gpt: the model that trains. Its own weights may differ: a callback may save an average, for example.
        text: tokens, at least two; at most the first NUM_TOKENS + 1 are used.
        end_of_text: the token that begins a document, if the model attends within documents only.
    """
    affordable = max(8, int(NUM_PRODUCTS / gpt.num_parameters()))
    num_tokens = min(NUM_TOKENS, affordable, len(text) - 1)
    T = min(gpt.config.context_length, num_tokens)
    windows = text[: num_tokens + 1].unfold(0, T + 1, T).clone()
    return {
        "windows": windows,
        "end_of_text": end_of_text,
        "nats": token_losses(gpt, weights, windows, end_of_text),
    }


def token_losses(gpt: GPT, weights: Weights, windows: Tensor, end_of_text: int | None) -> Tensor:
    """Returns the loss of each token in windows (B, T + 1) that has one before it: (B T,), in nats, on the CPU.

    They are computed in float32, without dropout, compiled code and TF32.
    """
    precision = torch.get_float32_matmul_precision()
    windows = windows.to(gpt.token_embedding.weight.device)
    tokens, targets = windows[:, :-1], windows[:, 1:]
    documents = None if end_of_text is None else (tokens == end_of_text).cumsum(dim=-1)
    visible = {name: without_zeros(weight.float()) for name, weight in weights.items()}
    with torch.no_grad(), in_eval_mode(gpt.modules()):
        torch.set_float32_matmul_precision("highest")
        try:
            logits = functional_call(gpt, visible, (tokens,), {"document_ids": documents}, tie_weights=False)
        finally:
            torch.set_float32_matmul_precision(precision)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").cpu()


def without_zeros(weight: Tensor) -> Tensor:
    """Returns the weight, or if it is zero, other numbers between -0.1 and 0.1, the same each time.

    A new model has zero matrices, which hide what is computed before them (see `GPT.init_weights`).
    """
    if weight.flatten()[:: 1 + weight.numel() // 4096].any():  # some thousand of its numbers
        return weight
    numbers = (torch.arange(1013, device=weight.device) * 7919 % 1013 - 506) / 5060
    return numbers.repeat(1 + weight.numel() // 1013)[: weight.numel()].view_as(weight)


def difference(path: Path, gpt: GPT, proof: dict[str, Any]) -> str:
    """Returns a clause that says how the losses of `gpt` differ from those of its proof; "" if they agree.

    Raises a `Mistake` that names `path`, the checkpoint, if the proof is damaged.
    """
    with parsing(path):
        windows, nats, end_of_text = proof["windows"], proof["nats"], proof["end_of_text"]
        B, length = gpt.known_ids(windows).shape
        is_whole = 2 <= length <= gpt.config.context_length + 1 and nats.shape == (B * (length - 1),)
        if not is_whole or len(nats) > NUM_TOKENS or not isinstance(end_of_text, int | None):
            raise Mistake("its proof does not hold the losses of a small batch")
        nats = nats.float()
    now = token_losses(gpt, gpt.state_dict(), windows, end_of_text)
    if torch.allclose(now, nats, rtol=0, atol=ROUNDING, equal_nan=True):
        return ""
    largest = (now - nats).abs().max()
    return (
        f"{path} was trained by other code than this, which computes a loss of {now.mean():.4f} instead of "
        f"{nats.mean():.4f} nats (up to {largest:.2g} apart at a token)"
    )
