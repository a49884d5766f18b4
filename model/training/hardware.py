"""Hardware capabilities, detected at run time: fast precision, compiler, peak operations per second."""

import logging
import os
import platform
import re
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Trainer

from model.files import content_of
from model.kernels import has_fast_bfloat16

log = logging.getLogger(__name__)
TENSOR_CORES = (7, 0)  # NVIDIA GPUs of this compute capability or higher have tensor cores, and Triton supports them
# Peak 10^12 operations per second of one GPU, by its name without "NVIDIA", in bfloat16 or float16 with sums in
# float32, for products of dense matrices. From NVIDIA's data sheets, which often print the figure for sparse matrices,
# twice as high; for GeForce from the Ampere and Ada whitepapers.
PEAK_TFLOPS = {
    r"B200": 2250,
    r"H200": 989,
    r"H100 80GB HBM3": 989,
    r"H100 PCIe": 756,
    r"H100 NVL": 835,
    r"A100-SXM4-\d+GB|A100-PCIE-\d+GB|A100 80GB PCIe": 312,
    r"A40": 149.7,
    r"A10": 125,
    r"A10G": 70,
    r"L4": 121,
    r"L40": 181,
    r"L40S": 362,
    r"RTX A6000": 154.8,
    r"GeForce RTX 3090": 71,
    r"GeForce RTX 4090": 165.2,
}

CompileMode = bool | Literal["auto", "reduce-overhead"]


def device_name(device: torch.device) -> str:
    """Returns the name of a GPU of NVIDIA, else that of the processor, as far as the system tells it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    named = re.search(r"model name\s*: (.*)", content_of(Path("/proc/cpuinfo")).decode())
    return named[1] if named else platform.machine()


def compile_options(mode: CompileMode, device: torch.device, *, adds_gradients: bool) -> dict[str, Any] | None:
    """Returns the options for torch.compile, or None if the network is not to be compiled.

    "auto" compiles on CUDA devices only: compiling takes a minute, which a CPU run of a few minutes does not recover.
    With "reduce-overhead" a GPU launches all kernels of a pass at once, as a CUDA graph, so that it does not wait for
    Python. Each call then overwrites what the previous call returned, gradients included
    (https://docs.pytorch.org/docs/stable/user_guide/torch_compiler/torch.compiler_cudagraph_trees.html). So "auto" uses
    graphs unless `adds_gradients`: unless the gradients of several batches or devices are added up.
    """
    if mode is False or (mode == "auto" and device.type != "cuda"):
        return None
    if missing := missing_compiler(device):
        log.warning("The network is not compiled: %s is missing.", missing)
        return None
    uses_graphs = mode == "reduce-overhead" or (mode == "auto" and not adds_gradients)
    # Training and validation may differ in batch size: two programs of fixed shape are faster than one dynamic program.
    return {"mode": "reduce-overhead" if uses_graphs else None, "dynamic": False}


def missing_compiler(device: torch.device) -> str | None:
    """Returns something that torch.compile needs for `device` and this machine lacks; None if it lacks nothing."""
    if device.type == "cuda" and find_spec("triton") is None:
        return "triton"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < TENSOR_CORES:
        return "a GPU of compute capability 7.0 or higher, which Triton needs,"
    # GPUs need a compiler too: Triton builds its kernel launchers with it.
    compilers = [os.environ.get("CXX", ""), "g++", "clang++", "gcc", "clang", "cc", "cl"]
    if not any(map(shutil.which, compilers)):
        return "a C++ compiler"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python.h, from Python's development files,"
    return None


def fast_precision(accelerator: str) -> str:
    """Returns the fast value of trainer.precision for a value of trainer.accelerator.

    "bf16-mixed" if bfloat16 is faster than float32; emulated bfloat16 is several times slower. Otherwise "16-mixed" on
    NVIDIA GPUs before Ampere (T4, V100), where only float16 is fast; "32-true" on all other devices.
    """
    device_type = accelerator
    if accelerator in ("auto", "gpu"):
        device = torch.accelerator.current_accelerator(check_available=True)
        device_type = device.type if device else "cpu"
    if has_fast_bfloat16(device_type):
        return "bf16-mixed"
    has_fast_float16 = device_type == "cuda" and torch.cuda.get_device_capability() >= TENSOR_CORES
    return "16-mixed" if has_fast_float16 else "32-true"


def peak_flops(trainer: Trainer) -> float | None:
    """Returns the peak operations per second of all devices together at the run's precision, by the data sheets.

    None if it is unknown: for CPUs, for GPUs that are not in the table, and for float32.
    """
    device = trainer.strategy.root_device
    if device.type != "cuda" or not str(trainer.precision).startswith(("bf16", "16")):
        return None
    name = torch.cuda.get_device_name(device).removeprefix("NVIDIA ")
    for pattern, tflops in PEAK_TFLOPS.items():
        if re.fullmatch(pattern, name):
            return 1e12 * tflops * trainer.world_size
    return None
