"""Hardware capabilities, detected at run time: fast precision, compiler, peak operations per second."""

import logging
import os
import shutil
import sysconfig
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch
from lightning.fabric.utilities.throughput import get_available_flops
from lightning.pytorch import Trainer

from model.kernels import has_fast_bfloat16

log = logging.getLogger(__name__)
H200_FLOPS = 989.4e12  # dense, in 16 bits, as in NVIDIA's data sheet of the H100 SXM
# Of a value of trainer.precision what stands before "-mixed" or "-true".
TYPES = {"bf16": torch.bfloat16, "16": torch.float16, "32": torch.float32, "64": torch.float64}

CompileMode = bool | Literal["auto", "reduce-overhead"]


def compile_where_it_pays(function: Callable, mode: CompileMode, device: torch.device) -> Callable:
    """`function`, compiled or unchanged.

    "auto" compiles on CUDA devices only: a CPU run of a few minutes does not win back the minute that compiling takes.
    With "reduce-overhead" a GPU launches all kernels of a pass at once, as a CUDA graph, and each call overwrites what
    the call before returned, gradients included
    (https://docs.pytorch.org/docs/stable/user_guide/torch_compiler/torch.compiler_cudagraph_trees.html).
    """
    if mode is False or (mode == "auto" and device.type != "cuda"):
        return function
    if missing := missing_compiler(device):
        log.warning("The network is not compiled: %s is missing.", missing)
        return function
    # Training and validation may differ in batch size: two graphs of fixed shape are faster than one of any shape.
    return torch.compile(function, mode="reduce-overhead" if mode == "reduce-overhead" else None, dynamic=False)


def missing_compiler(device: torch.device) -> str | None:
    """What torch.compile needs for `device` and this machine does not have, or None."""
    if device.type == "cuda" and find_spec("triton") is None:
        return "triton"
    # GPUs need one too, for Triton's launchers.
    compilers = [os.environ.get("CXX", ""), "g++", "clang++", "gcc", "clang", "cc", "cl"]
    if not any(map(shutil.which, compilers)):
        return "a C++ compiler"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python.h, of Python's development files,"
    return None


def fast_precision(accelerator: str) -> str:
    """The value of trainer.precision that is fast: "bf16-mixed" where bfloat16 is faster than float32, else "32-true".

    `accelerator` is the value of trainer.accelerator. Emulated bfloat16 is several times slower than float32.
    """
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    return "bf16-mixed" if has_fast_bfloat16("cuda" if accelerator == "gpu" else accelerator) else "32-true"


def peak_flops(trainer: Trainer) -> float | None:
    """Peak operations per second of all devices together, from their data sheets, for the run's precision.

    None where it is unknown: for CPUs, and for GPUs that are not in Lightning's table.
    """
    device = trainer.strategy.root_device
    if device.type != "cuda":
        return None
    dtype = TYPES.get(str(trainer.precision).partition("-")[0])
    if dtype is None:
        return None
    if "H200" in torch.cuda.get_device_name(device):
        # An H100 with more memory. Lightning's figures for it are those of sparse matrices, twice as high.
        flops = H200_FLOPS if dtype in (torch.bfloat16, torch.float16) else None
    else:
        flops = get_available_flops(device, dtype)
    return flops and float(flops) * trainer.world_size
