"""Training and writing compute attention by the layer's `attend`, and a query without keys gets zeros.

test_gpt.py has what `attend` computes, and inspection/test_maps.py what a recording computes with any other.
"""

import pytest
import torch

from model.generation import generate
from model.masks import padding_mask
from tests.attentions import UNIFORM, random
from tests.gpts import CONFIGS, random_gpt


@pytest.mark.parametrize("name", ["modern", "grouped heads", "window", "gpt2"])
def test_any_attend_writes_with_a_cache_as_it_is_trained_and_a_query_without_keys_gets_zeros(name, replace_attend):
    gpt, tokens = random_gpt(CONFIGS[name]).train(), torch.randint(50, (2, 10))
    replace_attend(UNIFORM)
    expected = tokens[:, :4]
    while expected.shape[1] < 10:
        expected = torch.cat((expected, gpt(expected)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(generate(gpt, tokens[:, :4], 6, temperature=0), expected)  # with a cache
    attention, x = gpt.blocks[0].attention, random(2, 3, 32, dtype=torch.float32)
    output = attention(x, mask=padding_mask(torch.tensor([3, 0]), 3))
    torch.testing.assert_close(output[1], attention.output_proj(torch.zeros(3, 32)))
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert gradient[1].abs().max() == 0 and gradient.isfinite().all()
