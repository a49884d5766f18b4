"""From a checkpoint file back to a GPT. Training writes the files, see model/runs/saving.py.

A checkpoint may come from a stranger. Nothing in it is run, and no memory is taken that its size does not account for:
what it describes is compared with what it holds before a model is built.
"""

import pickletools
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from model.gpt import GPT, GPTConfig

# The module that trains a GPT holds it as its attribute `gpt`.
WEIGHT_PREFIX = "gpt."

# What a checkpoint may name: tensors, ordered dicts and bytes. torch's own list also has types that take any amount of
# memory when they are made, such as bytearray.
PLAIN_TYPES = re.compile(r"torch\._utils _rebuild_tensor_v2|torch \w+Storage|collections OrderedDict|_codecs encode")


def load_gpt(path: str | Path, device: str | torch.device = "cpu") -> tuple[GPT, dict[str, Any]]:
    """The GPT in a checkpoint, in evaluation mode, with its tokenizer and step.

    The file is read as plain data; nothing in it is run.

    Returns:
        The model on `device`, and a dict of `tokenizer` (plain data, for `Tokenizer.from_dict`) and `global_step`
        (the number of updates it was trained for).

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is cut short or damaged, is not a checkpoint of GlassGPT, or its weights do not fit
            its own config.
    """
    path = Path(path)
    checkpoint = read_checkpoint(path)
    model = build_gpt(path, checkpoint)
    info = {"tokenizer": checkpoint["tokenizer"], "global_step": checkpoint["global_step"]}
    return model.to(device).eval(), info


def build_gpt(path: Path, checkpoint: dict[str, Any]) -> GPT:
    """The GPT that a checkpoint describes, with the checkpoint's own tensors as its weights, in float32.

    It is built on the meta device, so that even a description of a model too large for any machine costs nothing.

    Args:
        path: where the checkpoint is from, for the message.

    Raises:
        ValueError: if the weights do not fit the config.
    """
    try:
        config = GPTConfig(**checkpoint["gpt_config"])
        weights = {
            name.removeprefix(WEIGHT_PREFIX): as_float(name, weight)
            for name, weight in checkpoint["state_dict"].items()
            if name.startswith(WEIGHT_PREFIX)
        }
        if config.num_layers > len(weights):  # a million empty layers take minutes and gigabytes, even without weights
            raise ValueError(f"num_layers is {config.num_layers}, but there are {len(weights)} weights")
        model = without_weights(config)
        model.load_state_dict(weights, assign=True)
    except (TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
        # load_state_dict's message is a title, then one reason per line.
        reason = str(error).removeprefix("Error(s) in loading state_dict for GPT:").strip().splitlines()[0]
        raise ValueError(f"the weights in {path} do not fit the model it describes: {reason}") from error
    if config.tie_embeddings:
        model.head.weight = model.token_embedding.weight
    return model


def without_weights(config: GPTConfig) -> GPT:
    """A GPT on the meta device, whose weights take no memory and are not drawn."""
    with torch.device("meta"), _NoDrawing():
        return GPT(config)


class _NoDrawing(TorchFunctionMode):
    """Leaves new weights as they are: to draw them on the meta device torch imports its compiler, for a second."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func in (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_):
            return (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def as_float(name: str, weight: Tensor) -> Tensor:
    if not weight.is_floating_point():
        raise ValueError(f"{name} holds {weight.dtype}, not floats")
    return weight.float()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU, after comparing every byte with its checksum.

    Raises:
        FileNotFoundError, ValueError: as `load_gpt`.
    """
    verify_checkpoint(path)
    return _read(path)


def read_description(path: Path) -> dict[str, Any]:
    """As `read_checkpoint`, but the tensors stay on the disk and are not compared: quick, to look at their shapes."""
    verify_checkpoint(path, checksums=False)
    return _read(path, mmap=True)


def verify_checkpoint(path: Path, *, checksums: bool = True) -> None:
    """Compares all of `path` with the checksums that torch.save stores with every tensor.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is cut short, any bit of it has changed, or it would be larger if it were unpacked.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    size = path.stat().st_size
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                unpacked = sum(record.file_size for record in archive.infolist())
                damaged = archive.testzip() if checksums and unpacked <= size else None
        except Exception as error:  # a zip file can be wrong in many ways
            raise ValueError(f"{path} is damaged, or no checkpoint: {error}") from error
    if unpacked > size:  # torch.save compresses nothing
        raise ValueError(f"{path} is not a checkpoint of GlassGPT: unpacked it has {unpacked:,} bytes, here {size:,}")
    if damaged is not None:
        raise ValueError(f"{path} is damaged: {damaged} does not match its checksum")


def _read(path: Path, mmap: bool = False) -> dict[str, Any]:
    """Raises ValueError unless the file holds plain data of the right types, of no more than its own size."""
    try:
        with zipfile.ZipFile(path) as archive:
            for record in archive.infolist():
                if record.filename.lower().endswith("data.pkl"):
                    _check_names(archive.read(record))
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # an unpickler fails in many ways
        raise ValueError(f"{path} is not read: it is not a checkpoint of plain tensors and values") from error
    if _exceeds(checkpoint, 2 * path.stat().st_size):  # a tied head is there twice
        raise ValueError(f"{path} is not a checkpoint of GlassGPT: it describes more than its own size")
    expected = {"state_dict": dict, "gpt_config": dict, "tokenizer": dict, "global_step": int}
    missing = [key for key in expected if not isinstance(checkpoint, dict) or key not in checkpoint]
    if missing:
        raise ValueError(f"{path} is not a checkpoint of GlassGPT: it has no {', '.join(missing)}")
    for key, kind in expected.items():
        if not isinstance(checkpoint[key], kind):
            found = type(checkpoint[key]).__name__
            raise ValueError(
                f"{path} is not a checkpoint of GlassGPT: its {key} is of type {found}, not {kind.__name__}"
            )
    for key, kinds, of in (("state_dict", Tensor, "tensor"), ("gpt_config", int | float | str | None, "plain value")):
        for name, value in checkpoint[key].items():
            if not isinstance(name, str) or not isinstance(value, kinds):
                raise ValueError(f"{path} is not a checkpoint of GlassGPT: its {key} has no {of} as {name!r}")
    for name, value in {**checkpoint["gpt_config"], "global_step": checkpoint["global_step"]}.items():
        if isinstance(value, int) and abs(value) >= 2**53:
            raise ValueError(f"{path} is not a checkpoint of GlassGPT: its {name} is {value}, which is too large")
    if checkpoint["global_step"] < 0:
        raise ValueError(f"{path} is not a checkpoint of GlassGPT: its global_step is negative")
    return checkpoint


def _check_names(pickled: bytes) -> None:
    """Raises ValueError if a pickle names anything but PLAIN_TYPES."""
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name == "GLOBAL" and not PLAIN_TYPES.fullmatch(argument):
            raise ValueError(f"it names {argument}")


def _exceeds(value: Any, limit: int) -> bool:
    """Whether there are more than `limit` bytes in the tensors and values that can be reached from `value`.

    What can be reached twice counts twice: by references to references a file of a kilobyte can hold lists of any
    length, and by a stride of 0 a tensor of any size.
    """
    waiting, size = [value], 0
    while waiting and size <= limit:
        value = waiting.pop()
        size += value.nbytes if isinstance(value, Tensor) else 1
        if isinstance(value, dict):
            size += 2 * len(value)
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            size += len(value)
            waiting += value
    return size > limit
