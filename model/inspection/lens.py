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
    targets = F.pad(trace.tokens[1:], (0, 1))[:, None]
    pieces = []
    with undisturbed(gpt):
        for positions in torch.arange(T, device=targets.device).split(max(1, MAX_LOGITS // V)):
            logits, wanted = gpt.unembed(trace.features[positions]), targets[positions]
            final = logits.log_softmax(-1)
            top = final.exp().topk(min(TOP, V))
            bits = -final.gather(-1, wanted)[:, 0] / math.log(2)
            rank = (logits > logits.gather(-1, wanted)).sum(-1)
            lens = []
            for residual in trace.residual:
                early = gpt.unembed(gpt.final_norm(residual[positions])).log_softmax(-1)
                divergence = (final.exp() * (final - early)).sum(-1) / math.log(2)
                lens.append((early.argmax(-1), early.gather(-1, wanted)[:, 0].exp(), divergence))
            rows = (torch.stack(row) for row in zip(*lens, strict=True))
            pieces.append((bits, rank, top.indices.T, top.values.T, *rows))
    bits, rank, tops, shares, token, probability, divergence = (
        torch.cat(parts, dim=-1).cpu() for parts in zip(*pieces, strict=True)
    )
    has_next = torch.arange(T) < T - 1
    bits, probability = bits.where(has_next, math.nan), probability.where(has_next, math.nan)
    return {
        "bits": bits,
        "rank": [int(place) if bit.isfinite() else None for place, bit in zip(rank, bits, strict=True)],
        "top": tops.T.tolist(),
        "top_probability": shares.T,
        "lens": {"token": token.tolist(), "probability": probability, "divergence": divergence},
    }
