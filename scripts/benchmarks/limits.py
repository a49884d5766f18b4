"""What the machine could do at most: its matrix rate and its memory bandwidth, measured in the same run."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from model.kernels import has_fast_bfloat16, keep_freed_memory


def measure(device: str, seconds: float) -> dict[str, Any]:
    """The limits of `device`, and what the machine is.

    Returns:
        `float32_flops` and `bfloat16_flops` (None where it is emulated), operations a second of the best of several
        sizes of matrix product; `bytes_per_second` read and written by the better of a copy and a product of a
        matrix with a vector, both far larger than any cache; `machine`, in words.
    """
    keep_freed_memory()
    torch.set_float32_matmul_precision("highest")
    fast = torch.bfloat16 if has_fast_bfloat16(device) else None
    return {
        "float32_flops": matrix_rate(device, torch.float32, seconds),
        "bfloat16_flops": fast and matrix_rate(device, fast, seconds),
        "bytes_per_second": memory_bandwidth(device, seconds),
        "machine": describe(device),
    }


def check_gpu() -> None:
    """Raises ValueError where there is none."""
    if not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch finds no GPU here, leave it out to measure on the processor")


def matrix_rate(device: str, dtype: torch.dtype, seconds: float) -> float:
    """Operations a second of square matrix products, a multiplication and an addition counted as two."""
    sizes = (4096, 8192) if device == "cuda" else (512, 1024, 2048)
    best = 0.0
    for size in sizes:
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        product = torch.empty_like(a)
        duration = shortest(lambda a=a, b=b, product=product: torch.mm(a, b, out=product), device, seconds / len(sizes))
        best = max(best, 2 * size**3 / duration)
    return best


def memory_bandwidth(device: str, seconds: float) -> float:
    """Bytes a second."""
    rows, columns = (65536, 16384) if device == "cuda" else (4096, 16384)
    source = torch.ones(rows, columns, device=device)
    target, vector = torch.empty_like(source), torch.ones(columns, device=device)
    copying = shortest(lambda: target.copy_(source), device, seconds / 2)
    multiplying = shortest(lambda: source @ vector, device, seconds / 2)
    return max(2 * source.nbytes / copying, source.nbytes / multiplying)


def shortest(function: Callable[[], Any], device: str, seconds: float) -> float:
    """The shortest time of one call, in seconds, over about `seconds` of trying; at least two calls after a first."""
    function()
    calls, best, started = 0, float("inf"), time.perf_counter()
    while calls < 2 or time.perf_counter() - started < seconds:
        synchronize(device)
        begin = time.perf_counter()
        function()
        synchronize(device)
        best = min(best, time.perf_counter() - begin)
        calls += 1
    return best


def synchronize(device: str) -> None:
    """Waits until the device has done all that it was told to."""
    if device == "cuda":
        torch.cuda.synchronize()


def describe(device: str) -> dict[str, Any]:
    """The machine in words and numbers."""
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(terse=True),
    }


def processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
