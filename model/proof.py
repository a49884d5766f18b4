"""A checkpoint proves its code: it holds a short text, and the loss of each token in it.

Opening the checkpoint computes these losses again. If they differ, the model was trained by other code, or a function
has been replaced since. Functions are compared, not files: code that computes the same gives the same losses. A model
that has not been trained proves little: its matrices of zeros hide what is computed before them.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.gpt import GPT, one_at_a_time
from model.losses import text_logprobs
from model.masks import document_ids
from model.mistakes import Mistake, parsing

NUM_TOKENS = 256  # of which the loss is known, at most
NUM_PRODUCTS = 1e9  # tokens times parameters, at most: a processor reads the text in less than a tenth of a second
# Of the largest loss. Models trained in float32, bfloat16 or both, compiled or not, are read on one and two threads,
# with other vector instructions and in float64 to within 3e-6 of it. For a largest loss of 10 nats, ROUNDING is 0.0002:
# GELU by its other formula is 0.0005 apart after 40 steps, the products of tensor cores (TF32) would be 0.004 apart.
ROUNDING = 2e-5


def prove(gpt: GPT, text: Tensor, end_of_text: int | None = None) -> dict[str, Any]:
    """Returns the proof for a checkpoint of this model, as plain data.

    Args:
        gpt: the model as the checkpoint will be opened, in float32.
        text: tokens, at least two; at most the first NUM_TOKENS + 1 are used.
        end_of_text: the token that begins a document, if the model attends within documents only.
    """
    affordable = max(8, int(NUM_PRODUCTS / gpt.num_parameters()))
    text = text[: min(NUM_TOKENS, affordable) + 1].clone()
    return {
        "text": text,
        "end_of_text": end_of_text,
        "nats": token_losses(gpt, text, end_of_text),
    }


def token_losses(gpt: GPT, text: Tensor, end_of_text: int | None) -> Tensor:
    """Returns the losses of a text's tokens but the first: in nats, on the CPU, computed without dropout and TF32."""
    documents = document_ids(text, end_of_text)
    with one_at_a_time, ExitStack() as undo:
        undo.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("highest")
        return -text_logprobs(gpt, text, stride=gpt.config.context_length, document_ids=documents)


def difference(path: Path, gpt: GPT, proof: dict[str, Any]) -> str:
    """Returns a clause that says how the losses of `gpt` differ from those of its proof; "" if they agree.

    Raises a `Mistake` that names `path`, the checkpoint, if the proof is damaged.
    """
    with parsing(path):
        text = gpt.known_ids(proof["text"])
        nats = proof["nats"].float()
        end_of_text = proof["end_of_text"]
        is_short = nats.dim() == 1 and 0 < len(nats) <= NUM_TOKENS
        if not is_short or text.shape != (len(nats) + 1,) or not isinstance(end_of_text, int | None):
            raise Mistake("its proof does not hold the losses of a short text")
    if not gpt.is_finite():  # it has diverged, and its code is not to blame: see `Glass`
        return ""
    now = token_losses(gpt, text, end_of_text)
    largest_loss = nats.nan_to_num().max().item()
    if torch.allclose(now, nats, rtol=0, atol=ROUNDING * largest_loss, equal_nan=True):
        return ""
    largest = (now - nats).abs().max()
    return (
        f"{path} was trained by other code than this, which computes a loss of {now.mean():.4f} instead of "
        f"{nats.mean():.4f} nats (up to {largest:.2g} apart at a token)"
    )
