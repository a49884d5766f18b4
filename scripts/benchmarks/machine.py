"""What the machine is, and the most that it can do: its matrix rate and its memory bandwidth."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import Timer

from model.kernels import has_fast_bfloat16, keep_freed_memory


def measure(device: str, seconds: float, seed: int) -> dict[str, Any]:
    """The machine's description and its limits, each measured for `seconds`.

    Returns:
        `machine`; `float32_flops` and `bfloat16_flops` (None if the format is emulated), operations per second of
        the best of several sizes of matrix product; `bytes_per_second`, read and written, of the better of a copy
        and a matrix-vector product, both far larger than any cache.
    """
    keep_freed_memory()
    torch.set_float32_matmul_precision("highest")
    return {
        "machine": {
            "device": torch.cuda.get_device_name() if device == "cuda" else processor_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "system": platform.platform(terse=True),
        },
        "float32_flops": matrix_rate(device, torch.float32, seconds),
        "bfloat16_flops": matrix_rate(device, torch.bfloat16, seconds) if has_fast_bfloat16(device) else None,
        "bytes_per_second": memory_bandwidth(device, seconds),
    }


def matrix_rate(device: str, dtype: torch.dtype, seconds: float) -> float:
    """Operations per second of square matrix products; a multiplication and an addition count as two."""
    sizes = (4096, 8192) if device == "cuda" else (512, 1024, 2048)
    rates = []
    for size in sizes:
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        product = torch.empty_like(a)
        duration = shortest("torch.mm(a, b, out=product)", seconds / len(sizes), a=a, b=b, product=product)
        rates.append(2 * size**3 / duration)
    return max(rates)


def memory_bandwidth(device: str, seconds: float) -> float:
    """Bytes per second."""
    source = torch.ones(65536 if device == "cuda" else 4096, 16384, device=device)
    target, vector = torch.empty_like(source), torch.ones(16384, device=device)
    copying = shortest("target.copy_(source)", seconds / 2, target=target, source=source)
    multiplying = shortest("source @ vector", seconds / 2, source=source, vector=vector)
    return max(2 * source.nbytes / copying, source.nbytes / multiplying)


def shortest(statement: str, seconds: float, **variables: torch.Tensor) -> float:
    """The shortest time of one execution, in seconds."""
    timer = Timer(statement, globals={"torch": torch, **variables}, num_threads=torch.get_num_threads())
    return min(timer.blocked_autorange(min_run_time=seconds).times)


def synchronized_time(device: str) -> float:
    """The clock, in seconds, once the device has finished its work."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
