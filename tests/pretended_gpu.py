"""A pretended GPU: its tensors claim to be on cuda:0 or mps:0, and the CPU computes them.

It is a pytest plugin, because it must be set up before PyTorch is imported:

    PRETENDED_GPU=cuda python -m pytest -p tests.pretended_gpu tests/on_a_gpu.py

It raises where a real device would: for tensors of two devices in one operation, for `numpy()` of a device tensor, and
for float64 on mps. It counts operations, each of which is at least one launch on a real device, and how often a program
waits for the device. It does not imitate kernels, rounding, streams, random numbers or memory.
"""

import ctypes
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

KIND = os.environ["PRETENDED_GPU"]
SOURCE = Path(__file__).with_suffix(".cpp")


def library(torch_folder):
    """Compiles and loads the C++ part, which tells PyTorch of the device."""
    built = Path(tempfile.gettempdir(), f"pretended_gpu_{os.getuid()}_{int(SOURCE.stat().st_mtime)}.so")
    if not built.exists():
        libraries = [f"-L{torch_folder}/lib", f"-Wl,-rpath,{torch_folder}/lib", "-lc10", "-ltorch_cpu"]
        whole = built.with_suffix(f".{os.getpid()}")
        command = ["g++", "-shared", "-fPIC", "-std=c++20", f"-I{torch_folder}/include", str(SOURCE), "-o", str(whole)]
        subprocess.run(command + libraries, check=True)
        whole.replace(built)  # atomic: two processes may build it at once
    return ctypes.CDLL(str(built))


getattr(library(Path(importlib.util.find_spec("torch").origin).parent), f"pretend_{KIND}")()

# Nothing here needs transformers, and Lightning imports it by way of torchmetrics, for longer than PyTorch.
sys.modules["transformers"] = Mock()

import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing  # noqa: E402

DEVICE = torch.device(KIND, 0)
COPIES = {"_to_copy", "copy_"}  # may read and write another device
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}  # also take indices on the CPU
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_consecutive"}

counts = Counter()  # "operations" and "waits"


class OnDevice(torch.Tensor):
    """A tensor on the device; `inner`, a CPU tensor, holds its values."""

    @staticmethod
    def __new__(cls, inner):
        if KIND == "mps" and inner.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype, which the MPS framework does not have")
        places = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        tensor = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=DEVICE, **places)
        tensor.inner = inner
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return compute(function, args, kwargs or {})

    def tolist(self):
        return self.cpu().tolist()

    def __reduce_ex__(self, protocol):
        return self.inner.__reduce_ex__(protocol)


class Pretending(TorchDispatchMode):
    """Also handles functions that make a tensor, such as torch.zeros."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return compute(function, args, kwargs or {})


def changed(kind, change, value):
    """Changes what is of a kind in tuples, lists and dicts. PyTorch's own function takes ten times as long."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)([changed(kind, change, each) for each in value])
    return {name: changed(kind, change, each) for name, each in value.items()} if isinstance(value, dict) else value


def compute(function, args, kwargs):
    """Computes an operation on the device or the CPU."""
    name = function._schema.name.removeprefix("aten::")
    tensors = []
    changed(torch.Tensor, tensors.append, (args, kwargs))
    ours = [x for x in tensors if isinstance(x, OnDevice)]
    wanted = kwargs.get("device")
    stays = wanted is None or torch.device(wanted).type == KIND
    if not ours and (wanted is None or not stays):
        return function(*args, **kwargs)
    if torch.is_inference_mode_enabled():  # composite operations arrive here too
        with Pretending():
            parts = function.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
    if name == "copy_":
        stays = isinstance(args[0], OnDevice)
    if name in INDEXED:
        waits = any(x is not None and (x.dtype == torch.bool or not isinstance(x, OnDevice)) for x in args[1])
        tensors = [args[0], *args[2:3]] if isinstance(args[0], OnDevice) else tensors
    else:
        waits = name in WAITS or not stays
    if name not in COPIES:
        check_devices(function, tensors)
    counts["waits"] += waits
    counts["operations"] += not function.is_view
    inner_args, inner_kwargs = changed(OnDevice, lambda x: x.inner, (args, kwargs))
    if wanted is not None:
        inner_kwargs |= {"device": torch.device("cpu")} | ({"pin_memory": False} if "pin_memory" in kwargs else {})
    result = function(*inner_args, **inner_kwargs)
    if not stays:
        return args[0] if name == "copy_" else result
    # A view of an older tensor is as old, also in inference mode: the two share a count of their changes.
    is_new = torch.is_inference_mode_enabled() and not (function.is_view and ours and not ours[0].is_inference())
    with torch.inference_mode(is_new):
        result = changed(torch.Tensor, OnDevice, result)
    return return_and_correct_aliasing(function, args, kwargs, result) if ours and name != "_to_copy" else result


def check_devices(function, tensors):
    """Raises for CPU tensors that a real device would refuse. A single number may come from the CPU."""
    elsewhere = [x for x in tensors if not isinstance(x, OnDevice) and x.ndim]
    if elsewhere:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {DEVICE} and cpu: {function}")


class Generator(torch.Generator):
    """A generator for any device, which draws the CPU's numbers."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu")


torch.Generator = Generator
torch._C._set_only_lift_cpu_tensors(True)  # so that torch.tensor(..., device=DEVICE) passes through here
torch.__future__.set_swap_module_params_on_conversion(True)
torch.Tensor.pin_memory = lambda tensor, *_: tensor
state = torch.zeros(16, dtype=torch.uint8)
module = getattr(torch, KIND)
module.get_rng_state = lambda *_: state.clone()
module.set_rng_state = lambda *_: None
module.manual_seed_all = module.manual_seed = module.set_device = module.empty_cache = lambda *_: None
module.is_available = torch.backends.mps.is_available = lambda: True
module.device_count = lambda: 1
if KIND == "mps":
    platform.processor = lambda: "arm"  # Lightning checks this

    def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **options):
        return torch._scaled_dot_product_attention_math(q, k, v, attn_mask, dropout_p, is_causal, **options)[0]

    torch.nn.functional.scaled_dot_product_attention = attention  # PyTorch chooses its mps kernel before dispatching
else:
    torch.backends.mps.is_available = lambda: False
    module._lazy_init = lambda: None
    module.is_bf16_supported = lambda **_: True
    module.get_device_name = lambda *_: "a pretended GPU"
    module.get_device_capability = lambda *_: (9, 0)
Pretending().__enter__()
