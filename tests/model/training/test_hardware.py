"""What is found out about the hardware: compilers, the fast precision, and the peak operations per second."""

from types import SimpleNamespace

import pytest
import torch

from model.training import hardware
from model.training.hardware import compile_where_it_pays, fast_precision, missing_compiler, peak_flops


@pytest.mark.parametrize(
    ("device", "name", "precision", "peak"),
    [
        ("cuda", "NVIDIA H200", "bf16-mixed", 989.4e12),
        ("cuda", "NVIDIA A100-SXM4-80GB", "16-mixed", 312e12),
        ("cuda", "NVIDIA H200", "16-true", 989.4e12),
        ("cuda", "NVIDIA H200", "transformer-engine", None),
        ("cuda", "NVIDIA H200", "32-true", None),
        ("cpu", "NVIDIA H200", "bf16-mixed", None),  # unknown, also beside a GPU
    ],
)
def test_the_peak_is_that_of_dense_matrices_on_all_devices_together(monkeypatch, device, name, precision, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: name)
    strategy = SimpleNamespace(root_device=torch.device(device))
    trainer = SimpleNamespace(strategy=strategy, precision=precision, world_size=8)
    assert peak_flops(trainer) == (peak and pytest.approx(8 * peak))


NAMED = [("gpu", "", "cuda"), ("cuda", "", "cuda"), ("cpu", "cuda", "cpu"), ("mps", "", "mps")]
AUTOMATIC = [("auto", "cuda mps", "cuda"), ("auto", "cuda", "cuda"), ("auto", "mps", "mps"), ("auto", "", "cpu")]


@pytest.mark.parametrize(("accelerator", "there", "asked"), NAMED + AUTOMATIC)
def test_the_fast_precision_is_that_of_the_named_or_first_accelerator(monkeypatch, accelerator, there, asked):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in there)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in there)
    for is_fast, precision in ((True, "bf16-mixed"), (False, "32-true")):
        monkeypatch.setattr(hardware, "has_fast_bfloat16", lambda device: (device == asked) == is_fast)  # noqa: B023
        assert fast_precision(accelerator) == precision


@pytest.mark.parametrize("compiler", ["g++", "clang++", "gcc", "clang", "cc", "cl", "/opt/own"])
def test_any_compiler_will_do_and_python_h_is_needed(monkeypatch, tmp_path, compiler):
    monkeypatch.setattr(hardware.shutil, "which", lambda name: name if name == compiler else None)
    monkeypatch.setattr(hardware.sysconfig, "get_path", lambda name: str(tmp_path / name))
    monkeypatch.setenv("CXX", "/opt/own")
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert "Python.h" in missing_compiler(cpu)
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "Python.h").touch()
    assert missing_compiler(cpu) is None
    for spec in (None, "a module"):
        monkeypatch.setattr(hardware, "find_spec", lambda name: spec)  # noqa: B023
        assert missing_compiler(cuda) == (None if spec else "triton")
        assert missing_compiler(cpu) is None
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(hardware.shutil, "which", lambda name: None)
    assert missing_compiler(cpu) == missing_compiler(cuda) == "a C++ compiler"


def test_the_network_is_compiled_only_on_gpus_or_on_request_and_with_a_compiler(monkeypatch, caplog):
    compiled, cpu, gpu = [], torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(torch, "compile", lambda function, mode, dynamic: compiled.append((mode, dynamic)))
    monkeypatch.setattr(hardware, "missing_compiler", lambda device: None)
    assert compile_where_it_pays(len, False, gpu) is len and compile_where_it_pays(len, "auto", cpu) is len
    for mode, device in ((True, cpu), ("auto", gpu), ("reduce-overhead", cpu)):
        compile_where_it_pays(len, mode, device)
    assert compiled == [(None, False), (None, False), ("reduce-overhead", False)]
    monkeypatch.setattr(hardware, "missing_compiler", lambda device: "a C++ compiler")
    assert compile_where_it_pays(len, True, cpu) is len and "a C++ compiler is missing" in caplog.text
