"""Detecting the hardware: compilers, the fast precision, and the peak operations per second."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from model.training import hardware
from model.training.hardware import fast_precision, missing_compiler, peak_flops

# From the whitepapers: multiprocessors, multiplications of a tensor core a clock, and boost clocks.
CHIPS = {
    "NVIDIA GeForce RTX 4090": (128, 256, 2.520e9),  # GeForce: half of 512 if sums are in float32
    "NVIDIA RTX A6000": (84, 512, 1.800e9),
    "NVIDIA A100-SXM4-80GB": (108, 1024, 1.410e9),
    "NVIDIA H200": (132, 2048, 1.830e9),
}
PEAKS = [
    (name, precision, 2 * processors * each * clock)  # a multiplication and an addition
    for name, (processors, each, clock) in CHIPS.items()
    for precision in ("bf16-mixed", "16-true")
]


@pytest.mark.parametrize(
    "device, name, precision, peak",
    [
        *(("cuda", *one) for one in PEAKS),
        ("cuda", "NVIDIA H200", "32-true", None),
        # Other chips with a longer name, and unknown ones.
        ("cuda", "NVIDIA GeForce RTX 4090 Laptop GPU", "bf16-mixed", None),
        ("cuda", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "bf16-mixed", None),
        ("cuda", "NVIDIA GeForce GTX 1080", "bf16-mixed", None),
        ("cpu", "NVIDIA H200", "bf16-mixed", None),  # a CPU's peak is unknown, even beside a GPU
    ],
)
def test_the_peak_is_that_of_dense_products_on_all_devices(monkeypatch, device, name, precision, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: name)
    strategy = SimpleNamespace(root_device=torch.device(device))
    trainer = SimpleNamespace(strategy=strategy, precision=precision, world_size=8)
    assert peak_flops(trainer) == (peak and pytest.approx(8 * peak, rel=0.1))


NAMED = [("cuda", None, "cuda"), ("cpu", "cuda", "cpu"), ("mps", None, "mps")]
NAMED += [(name, there, there or "cpu") for name in ("auto", "gpu") for there in ("cuda", "mps", None)]


@pytest.mark.parametrize("accelerator, there, asked", NAMED)
def test_the_fast_precision_is_that_of_the_given_or_detected_accelerator(monkeypatch, accelerator, there, asked):
    device = there and torch.device(there)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: device)
    before_ampere = "16-mixed" if asked == "cuda" else "32-true"
    found = [(True, (9, 0), "bf16-mixed"), (False, (7, 5), before_ampere), (False, (6, 1), "32-true")]
    for is_fast, capability, precision in found:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)  # noqa: B023
        monkeypatch.setattr(hardware, "has_fast_bfloat16", lambda device: (device == asked) == is_fast)  # noqa: B023
        assert fast_precision(accelerator) == precision


@pytest.mark.parametrize(
    "device, has, missing",
    [
        ("cpu", {"/opt/own", "Python.h"}, None),
        ("cpu", {"g++"}, "Python.h"),
        ("cpu", {"Python.h"}, "a C++ compiler"),
        ("cuda", {"g++", "Python.h", "7.0"}, "triton"),
        ("cuda", {"g++", "Python.h", "triton"}, "7.0"),
        ("cuda", {"cl", "Python.h", "triton", "7.0"}, None),
    ],
)
def test_compiling_needs_any_compiler_and_python_h_and_on_a_gpu_triton(monkeypatch, tmp_path, device, has, missing):
    monkeypatch.setenv("CXX", "/opt/own")
    monkeypatch.setattr(hardware.shutil, "which", lambda name: name if name in has else None)
    monkeypatch.setattr(hardware, "find_spec", lambda name: name if name in has else None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0) if "7.0" in has else (6, 1))
    monkeypatch.setattr(hardware.sysconfig, "get_path", lambda name: tmp_path)
    if "Python.h" in has:
        (tmp_path / "Python.h").touch()
    assert str(missing) in str(missing_compiler(torch.device(device)))


def test_the_network_is_compiled_on_gpus_or_on_request_and_with_graphs_if_nothing_adds_gradients(monkeypatch, caplog):
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(hardware, "missing_compiler", lambda device: None)
    compile_options = partial(hardware.compile_options, adds_gradients=False)
    assert compile_options(False, gpu) is None and compile_options("auto", cpu) is None
    plain = {"mode": None, "dynamic": False}
    assert compile_options(True, cpu) == compile_options(True, gpu) == plain
    assert compile_options("auto", gpu, adds_gradients=True) == plain
    graphs = plain | {"mode": "reduce-overhead"}
    assert compile_options("auto", gpu) == compile_options("reduce-overhead", cpu) == graphs
    monkeypatch.setattr(hardware, "missing_compiler", lambda device: "a C++ compiler")
    assert compile_options(True, cpu) is None and "a C++ compiler is missing" in caplog.text
