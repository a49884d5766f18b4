"""Which parts of the model the logit of the true next token comes from.

Before the soft-cap, a logit is the product of the token's row in the head and the normalised residual stream, which is
a sum. With the scale of each norm fixed at what it is, the logit is a sum too, with one term for each part that was
added: a table, a head, a feed-forward or a bias. Elhage et al. 2021, "A Mathematical Framework for Transformer
Circuits"; "direct logit attribution" in TransformerLens, which folds the norms into the weights first. Here the weights
stay as they are.

A term is what the part adds directly. What it does through later layers is not in it; `ablation` measures both.

The biases of q, k, v and of a feed-forward's hidden layer act inside a head or feed-forward and count as its part.

Shapes: P parts, T tokens, N targets, D model width, H heads, K head width.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from model.gpt import GPT
from model.inspection.trace import Trace, before_norm, blocks_of, scale_of


@torch.no_grad()
def attribution(gpt: GPT, trace: Trace, targets: Tensor | None = None) -> tuple[dict[str, Tensor], float]:
    """What each part adds to the logit of a token at each position, in float64 on the CPU.

    Args:
        targets: (N,), for the first N positions. None: the true next tokens, of which the last position has none.

    Returns:
        By the part's name, (T,); positions without a target are NaN. And the largest difference between the sum of the
        parts and the model's own logit, divided by the largest of these logits where that is above 1, because rounding
        errors grow with them; NaN without any target.
    """
    targets = trace.tokens[1:] if targets is None else targets
    N = len(targets)
    rows = gpt.head.weight[targets]
    # (N, D): what features, the residual stream and what the embedding norm gets are multiplied with, to get the logit.
    of_features = _double(rows)
    ends = scale_of(gpt.final_norm, _double(trace.residual[-1, :N]))
    begins = scale_of(gpt.embedding_norm, _double(trace.embeddings[:N]))
    of_stream = before_norm(gpt.final_norm, of_features) * ends
    of_tables = before_norm(gpt.embedding_norm, of_stream) * begins
    parts: dict[str, Tensor] = {}

    def add(name: str, vectors: Tensor | None, direction: Tensor = of_stream) -> None:
        """A part that adds these vectors (T, D), or a bias (D,), if there is one."""
        if vectors is not None:
            parts[name] = (_double(vectors.expand(len(trace.tokens), -1)[:N]) * direction).sum(-1)

    for name, vectors in trace.tables.items():
        add(name, vectors, of_tables)
    add("embedding bias", getattr(gpt.embedding_norm, "bias", None))
    for layer, block in enumerate(blocks_of(gpt)):
        output, down = block.attention.output_proj, block.feed_forward.down_proj
        heads = _double(trace.heads[layer, :N])  # (N, H, K)
        by_head = (of_stream @ _double(output.weight)).view_as(heads)
        for head in range(heads.shape[1]):
            parts[f"head {layer}.{head}"] = (heads[:, head] * by_head[:, head]).sum(-1)
        add(f"attention bias {layer}", output.bias)
        added = _double(trace.feed_forwards[layer])
        add(f"feed-forward {layer}", added if down.bias is None else added - _double(down.bias))
        add(f"feed-forward bias {layer}", down.bias)
    add("final norm bias", getattr(gpt.final_norm, "bias", None), of_features)

    logits = _double((trace.features[:N] * rows).sum(-1))
    errors = (torch.stack(list(parts.values())).sum(0) - logits).abs()
    error = (errors.max() / logits.abs().max().clamp(min=1)).item() if N else math.nan
    return {name: F.pad(part, (0, len(trace.tokens) - N), value=math.nan) for name, part in parts.items()}, error


def _double(x: Tensor) -> Tensor:
    return x.detach().cpu().double()
