"""Hardware capabilities, detected at run time, and what exists only because some machine is faster that way."""

import ctypes
import platform
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor


@cache
def has_fast_bfloat16(device_type: str) -> bool:
    """Whether matrix products in bfloat16 are faster than in float32 on "cpu", "cuda" or another device.

    On a processor that takes AVX-512 BF16 or AMX (x86), or the BF16 extension (Arm); on a GPU, tensor cores that know
    the format (NVIDIA from Ampere on).
    """
    if device_type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device_type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "arm_bf16"))
    return False


def keep_freed_memory() -> None:
    """Lets the C library keep the memory that tensors free, rather than return it to the system; Linux with glibc only.

    glibc maps every large block anew and unmaps it when freed, so that each large activation of each step is paid
    for in page faults: on 2 cores they were 40% of the time of a training step. The price is that the process keeps
    the size it had at its largest.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    m_trim_threshold, m_mmap_max = -1, -4  # names and values of malloc.h
    libc = ctypes.CDLL(None)
    libc.mallopt(m_mmap_max, 0)
    libc.mallopt(m_trim_threshold, 2**31 - 1)


def record_cuda_graph(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Launches all kernels of `function` as one from then on, on the same memory; each call overwrites the result.

    See https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what libraries set up at their first call cannot be recorded
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Other threads, such as one that loads data, may meanwhile use the device.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        result = function()

    def repeat() -> Tensor:
        graph.replay()
        return result

    return repeat
