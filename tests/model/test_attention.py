"""All paths compute attention by the layer's `attend`. test_gpt.py has what it computes."""

import pytest
import torch

from model.attention import CausalSelfAttention
from model.generation import generate
from model.inspection.reading import read
from model.inspection.texts import Texts
from model.masks import padding_mask
from tests.attentions import UNIFORM, random
from tests.gpts import CONFIGS, loss_of, random_gpt


@pytest.mark.parametrize("name", ["modern", "grouped heads", "window", "gpt2"])
def test_training_writing_and_readings_compute_attention_by_attend(name, monkeypatch):
    gpt, tokens = random_gpt(CONFIGS[name]), torch.randint(50, (2, 10))
    own_loss, own = loss_of(gpt, tokens[:, :-1], tokens[:, 1:]), read(gpt, Texts.of(tokens[0]))
    assert own.checks.fidelity < 1e-5
    monkeypatch.setattr(CausalSelfAttention, "attend", UNIFORM)
    assert (loss_of(gpt, tokens[:, :-1], tokens[:, 1:]) - own_loss).abs() > 1e-3  # training
    expected = tokens[:, :4]
    while expected.shape[1] < 10:
        expected = torch.cat((expected, gpt(expected)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(generate(gpt, tokens[:, :4], 6, temperature=0), expected)  # with a cache
    uniform = read(gpt, Texts.of(tokens[0]))
    assert uniform.checks.fidelity < 1e-5 and (uniform.maps[..., -1, -1] * min(10, gpt.config.window or 10) == 1).all()
    attention, x = gpt.blocks[0].attention, random(2, 3, 32, dtype=torch.float32)
    output = attention(x, mask=padding_mask(torch.tensor([3, 0]), 3))
    torch.testing.assert_close(output[1], attention.output_proj(torch.zeros(3, 32)))
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert gradient[1].abs().max() == 0 and gradient.isfinite().all()
