"""What the model predicts at each token, and what it would predict from each stage on the way there.

surprise    -log2 p of the true next token, in bits; its rank, 0 for the likeliest; and the likeliest tokens
lens        the same prediction read early, from the residual stream after each sub-layer, through the model's own final
            norm, head and soft-cap: the logit lens (nostalgebraist 2020, "interpreting GPT: the logit lens",
            https://www.lesswrong.com/posts/AcKRB8wDpdaN6v6ru), there after whole blocks

Early stages were never trained to be read like this, so a lens shows what is written already, not all that is known.

Shapes: L layers, T tokens, D model width, V vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from model.gpt import GPT
from model.inspection.trace import Trace, undisturbed

TOP = 5  # tokens shown for a position
MAX_LOGITS = 2**21  # at once: 8 MiB, whatever the vocabulary


def stages(gpt: GPT) -> list[str]:
    """The names of a trace's 2L + 1 sums, from which predictions are read."""
    layers = [f"{sublayer} {layer}" for layer in range(len(gpt.blocks)) for sublayer in ("attention", "feed-forward")]
    return ["embeddings", *layers]


@torch.no_grad()
def predictions(gpt: GPT, trace: Trace) -> dict:
    """What the page shows of surprise and lens, with lists where there are ids and tensors on the CPU elsewhere.

    Column t is the position that reads token t and predicts token t + 1. Where the true next token is needed, the last
    column is NaN (None among ids).

    Returns:
        bits (T,); rank, T numbers; top, T lists of up to TOP ids, likeliest first; top_probability (T, up to TOP); and
        lens with token, 2L + 1 lists of T ids, probability of the true token (2L + 1, T), and divergence (2L + 1, T),
        the Kullback-Leibler divergence of the sub-layer's prediction from the final one in bits.
    """
    T, V = len(trace.tokens), gpt.head.out_features
    has_next = torch.arange(T) < T - 1
    targets = F.pad(trace.tokens[1:], (0, 1))
    pieces = []
    with undisturbed(gpt):
        for positions in torch.arange(T, device=targets.device).split(max(1, MAX_LOGITS // V)):
            pieces.append(_read(gpt, trace, positions, targets[positions]))
    bits, rank, top, top_probability, token, probability, divergence = (
        torch.cat(parts, dim=-1).cpu() for parts in zip(*pieces, strict=True)
    )
    bits = bits.where(has_next, math.nan)
    return {
        "bits": bits,
        "rank": [int(place) if bit.isfinite() else None for place, bit in zip(rank, bits, strict=True)],
        "top": top.T.tolist(),
        "top_probability": top_probability.T,
        "lens": {
            "token": token.tolist(),
            "probability": probability.where(has_next, math.nan),
            "divergence": divergence,
        },
    }


def _read(gpt: GPT, trace: Trace, positions: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    """The seven results of `predictions` for some positions, which are the last axis of each."""

    def of_target(x: Tensor) -> Tensor:
        return x.gather(-1, targets[:, None])[:, 0]

    logits = gpt.unembed(trace.features[positions])
    final = logits.log_softmax(-1)
    final_probability = final.exp()
    top = final_probability.topk(min(TOP, logits.shape[-1]))
    rank = (logits > of_target(logits)[:, None]).sum(-1)
    token, probability, divergence = [], [], []
    for residual in trace.residual:
        early = gpt.unembed(gpt.final_norm(residual[positions])).log_softmax(-1)
        token.append(early.argmax(-1))
        probability.append(of_target(early).exp())
        divergence.append((final_probability * (final - early)).sum(-1) / math.log(2))
    lens = (torch.stack(rows) for rows in (token, probability, divergence))
    return -of_target(final) / math.log(2), rank, top.indices.T, top.values.T, *lens
