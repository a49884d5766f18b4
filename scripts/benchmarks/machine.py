"""The clock of a contender, and what it says of itself."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn


def synchronized_time(device: str) -> float:
    """The clock, in seconds, once the device has finished its work."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def describe(network: nn.Module, precision: str) -> dict[str, Any]:
    """The network, in which precision of matrix products, and on which machine. Shared weights count once."""
    parameters = list(network.parameters())
    name = torch.cuda.get_device_name() if parameters[0].is_cuda else processor_name()
    machine = {"device": name, "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    machine["system"] = platform.platform(terse=True)
    precision = "bfloat16" if precision.startswith("b") else "float32"  # "bf16-mixed" is the Trainer's name for it
    return {"parameters": sum(p.numel() for p in parameters), "precision": precision, "machine": machine}


def processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
