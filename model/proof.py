"""A checkpoint proves its code: it holds a short text, and the loss of each token in it.

Opening the checkpoint computes these losses again. If they differ, the model was trained by other code, or a function
has been replaced since. Functions are compared, not files: code that computes the same gives the same losses. A model
that has not been trained proves little: its matrices of zeros hide what is computed before them.

Shapes: B windows, T tokens in a window.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from model.gpt import GPT, in_eval_mode
from model.mistakes import Mistake, parsing

NUM_TOKENS = 256  # of which the loss is known, at most
NUM_PRODUCTS = 4e9  # tokens times parameters, at most: a processor reads the text in a tenth of a second
# nats. Models trained in float32, bfloat16 or both, compiled or not, are read on one and two threads and with other
# vector instructions to within 1e-5, and float64 is as near. The products of tensor cores (TF32) would be 0.004 apart.
# GELU by its other formula is 0.0005 apart after 40 steps, so it is not told.
ROUNDING = 1e-3

Weights = dict[str, Tensor]  # as `GPT.state_dict` names them


def prove(
    gpt: GPT,
    weights: Weights,
    text: Tensor,
    end_of_text: int | None = None,
) -> dict[str, Any]:
    """Returns the proof for a checkpoint with these weights, as plain data.

    Args:
        gpt: the model that trains. Its own weights may differ: a callback may save an average, for example.
        text: tokens, at least two; at most the first NUM_TOKENS + 1 are used.
        end_of_text: the token that begins a document, if the model attends within documents only.
    """
    affordable = max(8, int(NUM_PRODUCTS / gpt.num_parameters()))
    text = text[: min(NUM_TOKENS, affordable) + 1].clone()
    return {
        "text": text,
        "end_of_text": end_of_text,
        "nats": token_losses(gpt, weights, text, end_of_text),
    }


def token_losses(
    gpt: GPT,
    weights: Weights,
    text: Tensor,
    end_of_text: int | None,
) -> Tensor:
    """Returns the losses of a text's tokens in windows of the context's length: (B T,), in nats, on the CPU.

    They are computed in float32, without dropout, compiled code and TF32. Tokens after the last window have none.
    """
    T = min(gpt.config.context_length, len(text) - 1)
    windows = text.to(gpt.token_embedding.weight.device).unfold(0, T + 1, T)
    tokens = windows[:, :-1]
    targets = windows[:, 1:]
    documents = None if end_of_text is None else (tokens == end_of_text).cumsum(dim=-1)
    weights = {name: weight.float() for name, weight in weights.items()}
    precision = torch.get_float32_matmul_precision()
    with torch.no_grad(), in_eval_mode(gpt.modules()):
        torch.set_float32_matmul_precision("highest")
        try:
            logits = functional_call(gpt, weights, (tokens,), {"document_ids": documents}, tie_weights=False)
        finally:
            torch.set_float32_matmul_precision(precision)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").cpu()


def difference(path: Path, gpt: GPT, proof: dict[str, Any]) -> str:
    """Returns a clause that says how the losses of `gpt` differ from those of its proof; "" if they agree.

    Raises a `Mistake` that names `path`, the checkpoint, if the proof is damaged.
    """
    with parsing(path):
        text = gpt.known_ids(proof["text"])
        nats = proof["nats"].float()
        end_of_text = proof["end_of_text"]
        num_tokens = len(text) - 1
        T = min(gpt.config.context_length, num_tokens)
        is_whole = text.dim() == 1 and nats.shape == (num_tokens // T * T,)
        if not is_whole or num_tokens > NUM_TOKENS or not isinstance(end_of_text, int | None):
            raise Mistake("its proof does not hold the losses of a short text")
    now = token_losses(gpt, gpt.state_dict(), text, end_of_text)
    if torch.allclose(now, nats, rtol=0, atol=ROUNDING, equal_nan=True):
        return ""
    largest = (now - nats).abs().max()
    return (
        f"{path} was trained by other code than this, which computes a loss of {now.mean():.4f} instead of "
        f"{nats.mean():.4f} nats (up to {largest:.2g} apart at a token)"
    )
