"""The shapes of attention, in one table: each layer and the whole GPT, with and without a batch, a cache and weights.

B batch, T query length, S key length (with a cache, T new tokens and S - T before them), D = 16 model width,
H = 4 heads, K = 4 head width, V = 23 vocabulary, L = 2 layers; values that the formula and the multi-head layer mix
may have a width of their own, here 6.
"""

import pytest
import torch

from model.attention import CausalSelfAttention
from model.cache import KVCache
from model.gpt import GPT, GPTConfig
from model.multihead import MultiHeadAttention, scaled_dot_product_attention
from tests.attentions import maps_of_attend
from tests.gpts import GPT2

#   layer          B      T  S  H_kv  output          weights
TABLE = [
    ("formula",    (),    4, 7, None, (4, 6),         (4, 7)),
    ("formula",    (2,),  4, 7, None, (2, 4, 6),      (2, 4, 7)),
    ("formula",    (2, 3), 1, 7, None, (2, 3, 1, 6),  (2, 3, 1, 7)),
    ("formula",    (2,),  7, 4, None, (2, 7, 6),      (2, 7, 4)),
    ("multi-head", (),    4, 4, None, (4, 5),         (4, 4, 4)),
    ("multi-head", (2,),  4, 7, None, (2, 4, 5),      (2, 4, 4, 7)),
    ("multi-head", (1,),  1, 1, None, (1, 1, 5),      (1, 4, 1, 1)),
    ("gpt's",      (),    4, 4, 4,    (4, 16),        (4, 4, 4)),
    ("gpt's",      (),    4, 4, 1,    (4, 16),        (4, 4, 4)),
    ("gpt's",      (2,),  4, 4, 4,    (2, 4, 16),     (2, 4, 4, 4)),
    ("gpt's",      (2,),  4, 4, 2,    (2, 4, 16),     (2, 4, 4, 4)),
    ("gpt's",      (2,),  3, 7, 2,    (2, 3, 16),     (2, 4, 3, 7)),
    ("gpt's",      (2,),  1, 7, 1,    (2, 1, 16),     (2, 4, 1, 7)),
    ("gpt2",       (2,),  4, 4, 4,    (2, 4, 23),     (2, 2, 4, 4, 4)),
    ("gpt2",       (2,),  1, 7, 4,    (2, 1, 23),     (2, 2, 4, 1, 7)),
    ("modern",     (1,),  1, 1, 4,    (1, 1, 23),     (2, 1, 4, 1, 1)),
    ("modern",     (2,),  4, 4, 2,    (2, 4, 23),     (2, 2, 4, 4, 4)),
    ("modern",     (2,),  3, 7, 1,    (2, 3, 23),     (2, 2, 4, 3, 7)),
]  # fmt: skip


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize(("layer", "batch", "T", "S", "H_kv", "output", "weights"), TABLE)
@torch.no_grad()
def test_shapes(layer, batch, T, S, H_kv, output, weights, need_weights, monkeypatch):
    if layer in ("formula", "multi-head"):
        inputs = torch.randn(*batch, T, 16), torch.randn(*batch, S, 16), torch.randn(*batch, S, 6)
        attend = scaled_dot_product_attention
        if layer == "multi-head":
            attend = MultiHeadAttention(16, 4, value_dim=6, output_dim=5)
        values, given = attend(*inputs, need_weights=need_weights)
        assert values.shape == output and (given.shape == weights if need_weights else given is None)
        return

    maps = maps_of_attend(monkeypatch.setattr) if need_weights else []
    cache = KVCache(2, *batch, H_kv, S, 4) if S > T else None
    if layer == "gpt's":
        gpt, x = CausalSelfAttention(16, 4, num_kv_heads=H_kv), torch.randn(*batch, S, 16)
    else:
        sizes = {"vocab_size": 23, "context_length": 7, "num_layers": 2, "num_heads": 4, "embed_dim": 16}
        gpt = GPT(GPTConfig(**sizes, num_kv_heads=H_kv, **(GPT2 if layer == "gpt2" else {})))
        x = torch.randint(23, (*batch, S))
    pieces = x.split([S - T, T], dim=len(batch)) if cache else [x]
    for piece in pieces:
        maps.clear()
        part = cache.append(torch.zeros(*batch, piece.shape[1]))[0] if cache and layer == "gpt's" else cache
        values = gpt(piece, cache=part)
    assert values.shape == output
    if need_weights:
        assert (maps[0] if layer == "gpt's" else torch.stack(maps)).shape == weights
