"""What the machine is, the most that it can do in matrix products, and its clock."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.benchmark import Timer

from model.kernels import has_fast_bfloat16, keep_freed_memory


def measure(job: SimpleNamespace) -> dict[str, Any]:
    """The machine's description, and its `float32_flops` and `bfloat16_flops` (None if the format is emulated)."""
    keep_freed_memory()
    torch.set_float32_matmul_precision("highest")
    name = torch.cuda.get_device_name() if job.device == "cuda" else processor_name()
    machine = {"device": name, "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    return {
        "machine": {**machine, "system": platform.platform(terse=True)},
        "float32_flops": matrix_rate(torch.float32, job),
        "bfloat16_flops": matrix_rate(torch.bfloat16, job) if has_fast_bfloat16(job.device) else None,
    }


def matrix_rate(dtype: torch.dtype, job: SimpleNamespace) -> float:
    """Operations per second of the best of several sizes; a multiplication and an addition count as two."""
    rates = []
    sizes = (4096, 8192) if job.device == "cuda" else (512, 1024, 2048)
    for size in sizes:
        a, b = (torch.randn(size, size, device=job.device).to(dtype) for _ in range(2))
        timer = Timer("torch.mm(a, b)", globals={"torch": torch, "a": a, "b": b}, num_threads=torch.get_num_threads())
        rates += [2 * size**3 / t for t in timer.blocked_autorange(min_run_time=job.seconds / len(sizes)).times]
    return max(rates)


def processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def synchronized_time(device: str) -> float:
    """The clock, in seconds, once the device has finished its work."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
