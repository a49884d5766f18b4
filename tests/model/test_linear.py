"""Linear layers multiply the same within `sliced` as without, and are afterwards what they were."""

import pytest
import torch
from torch import nn

from model.generation import stream
from model.gpt import GPT, GPTConfig
from model.linear import FEW, Linear, sliced


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("out_features", [1, 12, 13, 64])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (FEW, 1), (1, FEW), (2, 2), (FEW + 1, 1), (3, 2, 2)])
def test_slices_change_neither_values_nor_gradients(shape, out_features, bias):
    layer, plain = Linear(6, out_features, bias=bias), nn.Linear(6, out_features, bias=bias)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(*shape, 6)
    expected = plain(x)
    with sliced(layer):
        y = layer(x)
    torch.testing.assert_close(y, expected)
    upstream = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(y, layer.parameters(), upstream),
        torch.autograd.grad(expected, plain.parameters(), upstream),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_a_few_vectors_are_multiplied_slice_by_slice(monkeypatch):
    calls = []
    bmm = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda *args: calls.append(args) or bmm(*args))
    layer = Linear(6, 16, bias=False)
    with sliced(nn.Sequential(layer)):
        layer(torch.randn(FEW, 6))
        layer(torch.randn(FEW + 1, 6))
    layer(torch.randn(1, 6))
    assert [weight.shape for weight, _ in calls] == [(8, 2, 6)]


def test_other_types_than_float32_are_left_alone():
    layer = Linear(6, 16).to(torch.float64)
    x = torch.randn(1, 6, dtype=torch.float64)
    with sliced(layer):
        assert layer.slices is None
        torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))


def test_writing_in_between_compiles_nothing_anew():
    graphs = []
    layer = Linear(6, 16)
    compiled = torch.compile(lambda x: layer(x), backend=lambda graph, inputs: graphs.append(graph) or graph.forward)
    x = torch.randn(FEW + 1, 6)
    compiled(x)
    with sliced(layer):
        pass
    compiled(x)
    assert len(graphs) == 1


def test_slices_are_gone_after_an_interruption_and_after_writing():
    gpt = GPT(GPTConfig(vocab_size=8, context_length=8, num_layers=1, num_heads=1, embed_dim=8))
    layers = [module for module in gpt.modules() if isinstance(module, Linear)]
    assert len(layers) == 5
    with pytest.raises(KeyboardInterrupt), sliced(gpt):
        assert all(layer.slices is not None for layer in layers)
        raise KeyboardInterrupt
    assert all(layer.slices is None for layer in layers)
    text = stream(gpt, torch.zeros(1, 1, dtype=torch.long), 8)
    next(text)
    assert all(layer.slices is not None for layer in layers)
    text.close()
    assert all(layer.slices is None for layer in layers)
