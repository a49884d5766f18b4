"""The peak operations per second of GPUs that are known, and of others."""

from types import SimpleNamespace

import pytest
import torch

from model.training import hardware
from model.training.hardware import fast_precision, peak_flops


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16-mixed", 989.4e12),
        ("NVIDIA H200", "bf16-mixed", 989.4e12),
        ("NVIDIA A100-SXM4-80GB", "bf16-mixed", 312e12),
        ("NVIDIA H200", "32-true", None),
    ],
)
def test_the_peak_is_that_of_dense_matrices_on_all_devices_together(monkeypatch, name, precision, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: name)
    strategy = SimpleNamespace(root_device=torch.device("cuda", 0))
    trainer = SimpleNamespace(strategy=strategy, precision=precision, world_size=8)
    found = peak_flops(trainer)
    assert found == (peak and pytest.approx(8 * peak))


def test_the_peak_of_a_cpu_is_unknown():
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("cpu")), world_size=1)
    assert peak_flops(trainer) is None


@pytest.mark.parametrize(("accelerator", "asked"), [("gpu", "cuda"), ("cuda", "cuda"), ("cpu", "cpu"), ("mps", "mps")])
def test_the_fast_precision_is_that_of_the_accelerator(monkeypatch, accelerator, asked):
    monkeypatch.setattr(hardware, "has_fast_bfloat16", lambda device: device == asked)
    assert fast_precision(accelerator) == "bf16-mixed"
    monkeypatch.setattr(hardware, "has_fast_bfloat16", lambda device: device != asked)
    assert fast_precision(accelerator) == "32-true"
