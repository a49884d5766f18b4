"""What a head moves, read from its weights: the circuit from a token that it attends to, to the logits.

Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits",
https://transformer-circuits.pub/2021/framework/index.html, sections on the OV circuit and on copying.

Shapes: L layers, H heads, H_kv key and value heads, T tokens, D model width, K head width, V vocabulary.
"""

import math

import torch
from torch import Tensor

from model.gpt import GPT
from model.inspection.trace import Trace, before_norm, blocks_of, scale_of, value_tables

CHUNK = 8192  # tokens of the vocabulary at a time


@torch.no_grad()
def copying_scores(gpt: GPT) -> Tensor:
    """How far each head raises the logits of the tokens that it attends to, in [-1, 1]: (L, H), float64 on the CPU.

    The full OV circuit of a head is a V x V matrix: what the logits get from each token that is attended to, by way of
    its embedding, the head's value matrix and the output matrix. Positive eigenvalues mean tokens, or groups of tokens,
    that raise their own logits. The score is the sum of the eigenvalues divided by the sum of their absolute values.
    Except for zeros, the eigenvalues are those of a K x K matrix, the same product begun at another factor.

    The paper has no norms. Here an embedding is normalised as the head would read it with nothing added to it yet, and
    the final norm's weights and its subtraction of the mean count as part of the head; its scale, a positive number, is
    left out. So are positions, the pair table and the biases of a layer, which tell no tokens apart. Value embeddings
    count: they are added to the value of each token. Heads that share a value matrix (grouped-query attention) each
    have an output matrix and so a score.

    A head that writes nothing has a score of 0; one whose weights are not finite, NaN.
    """
    D = gpt.config.embed_dim
    tables = {layer: table.weight for layer, table in value_tables(gpt).items()}
    through_stream = gpt.head.weight.new_zeros(D, D)
    through_table = {layer: table.new_zeros(D, table.shape[1]) for layer, table in tables.items()}
    for tokens in torch.arange(gpt.head.out_features, device=gpt.head.weight.device).split(CHUNK):
        unembedding = before_norm(gpt.final_norm, gpt.head.weight[tokens])  # (tokens, D)
        embedding = gpt.embedding_norm(gpt.token_embedding.weight[tokens])
        through_stream += unembedding.mT @ (embedding * scale_of(blocks_of(gpt)[0].attention_norm, embedding))
        for layer, table in tables.items():
            through_table[layer] += unembedding.mT @ table[tokens]
    products = []
    for layer, block in enumerate(blocks_of(gpt)):
        attention = block.attention
        H, H_kv, K = attention.num_heads, attention.num_kv_heads, attention.head_dim
        value = before_norm(block.attention_norm, attention.qkv_proj.weight[-H_kv * K :])
        to_values = through_stream @ value.mT  # (D, H_kv K): the logits' direction of each value
        if layer in tables:
            to_values = to_values + through_table[layer]
        to_values = to_values.unflatten(1, (H_kv, K)).repeat_interleave(H // H_kv, dim=1)
        output = attention.output_proj.weight.unflatten(1, (H, K))
        products.append(torch.einsum("dhk,dhl->hkl", output, to_values))
    circuits = torch.stack(products).cpu().double()  # (L, H, K, K)
    finite = circuits.isfinite().flatten(2).all(-1)  # eigvals refuses other matrices
    eigenvalues = torch.linalg.eigvals(circuits[finite])
    total = eigenvalues.abs().sum(-1)
    scores = circuits.new_full(finite.shape, math.nan)
    scores[finite] = torch.where(total > 0, eigenvalues.real.sum(-1) / total, 0.0)
    return scores


@torch.no_grad()
def value_norms(gpt: GPT, trace: Trace) -> Tensor:
    """The length of what each head would write if it attended to one key alone: |value @ output matrix|, (L, H, T).

    A weight times this length says how much a key matters, where a weight alone does not: heads rest on keys with small
    values (Kobayashi et al. 2020, "Attention is Not Only a Weight", https://arxiv.org/abs/2004.10102).
    """
    norms = []
    for block, values in zip(blocks_of(gpt), trace.values, strict=True):
        output = block.attention.output_proj.weight.unflatten(1, (len(values), -1))  # (D, H, K)
        norms.append(torch.einsum("htk,dhk->htd", values, output).norm(dim=-1))
    return torch.stack(norms).cpu()
