"""The GPT's attention layer against figures worked out by hand and against PyTorch's; all paths use its `attend`."""

import pytest
import torch
from torch import nn

from model.attention import CausalSelfAttention
from model.generation import generate, new_cache
from model.inspection.reading import read
from model.inspection.texts import Texts
from model.masks import document_mask, padding_mask, sliding_window_mask
from tests.attentions import UNIFORM, random, values_and_gradients
from tests.gpts import CONFIGS, loss_of, random_gpt


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3, 20])
def test_documents_and_a_window_are_masked_as_in_pytorchs_layer(window, bias):
    """test_gpt.py has everything else that the layer does, written out."""
    layer = CausalSelfAttention(32, 4, window=window, bias=bias).double()
    peer = nn.MultiheadAttention(32, 4, bias=bias, batch_first=True, dtype=torch.float64)
    peer.in_proj_weight, peer.in_proj_bias = layer.qkv_proj.weight, layer.qkv_proj.bias
    peer.out_proj = layer.output_proj
    mask, x = document_mask([[0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 1, 1, 0, 0, 0, 1, 1, 2]]), random(2, 9, 32)
    hidden = ~(mask[:, 0] & sliding_window_mask(9, window)).repeat_interleave(4, dim=0)
    actual = values_and_gradients(lambda x: layer(x, mask=mask), [x])
    expected = values_and_gradients(lambda x: peer(x, x, x, attn_mask=hidden, need_weights=False)[0], [x])
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", ["modern", "grouped heads", "window", "gpt2"])
def test_training_writing_cache_and_readings_compute_attention_by_attend(name, monkeypatch):
    gpt, tokens = random_gpt(CONFIGS[name]), torch.randint(50, (2, 10))
    own_loss, own = loss_of(gpt, tokens[:, :-1], tokens[:, 1:]), read(gpt, Texts.of(tokens[0]))
    assert own.checks.fidelity < 1e-5
    monkeypatch.setattr(CausalSelfAttention, "attend", UNIFORM)
    assert (loss_of(gpt, tokens[:, :-1], tokens[:, 1:]) - own_loss).abs() > 1e-3  # training
    logits = gpt(tokens)
    cache = new_cache(gpt, 2, 10)
    pieces = [gpt(piece, cache=cache) for piece in tokens.split((4, 1, 3, 2), dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), logits)
    expected = tokens[:, :4]
    while expected.shape[1] < 10:
        expected = torch.cat((expected, gpt(expected)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(generate(gpt, tokens[:, :4], 6, temperature=0), expected)
    uniform = read(gpt, Texts.of(tokens[0]))
    assert uniform.checks.fidelity < 1e-5 and (uniform.maps[..., -1, -1] * min(10, gpt.config.window or 10) == 1).all()
    attention, x = gpt.blocks[0].attention, random(2, 3, 32, dtype=torch.float32)
    output = attention(x, mask=padding_mask(torch.tensor([3, 0]), 3))
    torch.testing.assert_close(output[1], attention.output_proj(torch.zeros(3, 32)))
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert gradient[1].abs().max() == 0 and gradient.isfinite().all()
