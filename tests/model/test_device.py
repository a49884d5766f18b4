"""Everything that a run does stays on the model's device, here PyTorch's meta device, which has no values.

A tensor that is made on the CPU and meets the model's fails there as it would on a GPU. Where the code needs a value (a
check of the tokens, a figure to report, maps to write), it gets zeros from `Valueless`; nothing else is replaced.
"""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from model.generation import generate, new_cache
from model.gpt import GPT
from model.inspection.reading import read
from model.inspection.texts import Texts
from model.training.optimizer import OptimizerConfig, build_optimizer
from tests.gpts import CONFIGS

META = torch.device("meta")


@pytest.fixture(autouse=True)
def without_autocast(monkeypatch):
    """It does not know the meta device."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())


class Valueless(TorchFunctionMode):
    """Gives zeros where the values of a tensor on the meta device are asked for, and counts how often."""

    asked = 0

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        values = {Tensor.item: 0.0, Tensor.__bool__: False, Tensor.__int__: 0, Tensor.__float__: 0.0}
        if args and isinstance(args[0], Tensor) and args[0].is_meta:
            if function in values:
                self.asked += 1
                return values[function]
            if function in (Tensor.cpu, Tensor.tolist, Tensor.numpy):
                self.asked += 1
                return function(torch.zeros(args[0].shape, dtype=args[0].dtype), *args[1:], **(kwargs or {}))
        return function(*args, **(kwargs or {}))


@pytest.fixture(params=["modern", "gpt2", "tables", "window", "every norm and bias"])
def gpt(request) -> GPT:
    return GPT(replace(CONFIGS[request.param], dropout=0.1)).to(META)


def tokens(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long, device=META)


def test_a_tensor_on_the_cpu_is_noticed(gpt):
    with pytest.raises(RuntimeError, match="device"):
        torch.zeros(3) + torch.zeros(3, device=META)
    with pytest.raises(RuntimeError, match="device"), Valueless():
        gpt(torch.zeros(1, 4, dtype=torch.long)) + torch.zeros(50)


@pytest.mark.parametrize("algorithm", ["muon", "adamw"])
def test_a_training_step_needs_no_value_and_no_other_device(gpt, algorithm):
    optimizer = build_optimizer(gpt, OptimizerConfig(algorithm=algorithm, weight_decay=0.1))
    for _ in range(2):
        gpt.loss(tokens(3, 12), tokens(3, 12), document_ids=tokens(3, 12)).backward()
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    states = [value for state in optimizer.state.values() for value in state.values()]
    assert states and all(value.is_meta for value in states)


def test_a_plain_and_a_cached_pass_need_no_value_and_no_other_device(gpt):
    cache = new_cache(gpt.eval(), 2, 12)
    with torch.no_grad():
        assert gpt(tokens(2, 12), document_ids=tokens(2, 12)).is_meta
        for length in (5, 1, 1):
            logits = gpt(tokens(2, length), cache=cache)
            assert logits.is_meta and logits.shape == (2, length, 50)
    assert cache.length == 7 and gpt.loss(tokens(2, 12), tokens(2, 12), reduction="sum").is_meta


@pytest.mark.parametrize(
    "choices",
    [{}, {"top_k": 3, "top_p": 0.9, "min_p": 0.1, "stop_token": 0}, {"temperature": 0}],
)
def test_sampling_stays_on_the_device(gpt, choices):
    """The tokens are checked before, and a stop token ends the text: both need values. The context fills up."""
    with Valueless() as values:
        written = generate(gpt, tokens(2, 14), 4, **choices)
    assert written.is_meta and written.shape == (2, 18)
    assert values.asked


def test_recording_stays_on_the_device_until_the_maps_are_written(gpt):
    """The checks of the tokens, the figures and the maps themselves are values."""
    with Valueless() as values:
        maps = read(gpt, Texts.of(range(8))).maps
    assert maps.device.type == "cpu" and maps.shape == (3, 4, 8, 8)
    assert values.asked and gpt.training
