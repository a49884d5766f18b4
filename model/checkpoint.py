"""From a checkpoint file back to a GPT. Training writes the files, see model/runs/saving.py.

A checkpoint may come from a stranger. Nothing in it is run, and no memory is taken that its size does not account for:
what it describes is compared with what it holds before a model is built.
"""

import pickletools
import re
import zipfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from model.files import RUN_CHECKPOINTS
from model.gpt import GPT, GPTConfig
from model.mistakes import Missing, Mistake, file_errors, parsing

WEIGHT_PREFIX = "gpt."  # the module that trains a GPT holds it as its attribute `gpt`
OTHERS = ", or no checkpoint of GlassGPT"
CONTENT = ("state_dict", "gpt_config", "tokenizer", "global_step")  # what every checkpoint holds
# What a checkpoint may name: tensors, ordered dicts and bytes. torch's own list also has types that take any amount of
# memory when they are made, such as bytearray.
PLAIN_TYPES = re.compile(r"torch\._utils _rebuild_tensor_v2|torch \w+Storage|collections OrderedDict|_codecs encode")


def load_gpt(path: str | Path, device: str | torch.device = "cpu") -> tuple[GPT, dict[str, Any]]:
    """The GPT in a checkpoint, in evaluation mode, with its tokenizer and step.

    Args:
        path: a checkpoint, or the folder of a run, of which it is the best.

    Returns the model on `device`, and a dict of `tokenizer` (plain data, for `Tokenizer.from_dict`) and `global_step`
    (the number of updates it was trained for).

    Raises a `Mistake` if there is no such file, it is cut short or damaged, is not a checkpoint of GlassGPT, or its
    weights do not fit its own config.
    """
    path = Path(path)
    if path.is_dir():
        there = [path / name for name in RUN_CHECKPOINTS if (path / name).is_file()]
        path = there[0] if there else path / RUN_CHECKPOINTS[0]
    checkpoint = read_checkpoint(path)
    about = {part: checkpoint[part] for part in ("tokenizer", "global_step")}
    return build_gpt(path, checkpoint).to(device).eval(), about


def build_gpt(path: Path, checkpoint: dict[str, Any]) -> GPT:
    """The GPT that a checkpoint describes, with the checkpoint's own tensors as its weights, in float32.

    It is built on the meta device, so that even a description of a model too large for any machine costs nothing.

    Raises a `Mistake` if the weights do not fit the config; `path`, where it is from, is for the message.
    """
    options = checkpoint["gpt_config"]
    if isinstance(options, dict) and (unknown := options.keys() - GPTConfig.__dataclass_fields__.keys()):
        raise Mistake(
            f"{path} is of another version of GlassGPT: its network has {', '.join(map(str, unknown))}, which this one "
            "does not know, so open it with that version"
        )
    with parsing(path, OTHERS):
        config = GPTConfig(**options)
        weights = {
            name.removeprefix(WEIGHT_PREFIX): weight
            for name, weight in checkpoint["state_dict"].items()
            if name.startswith(WEIGHT_PREFIX)
        }
    try:
        return with_weights(config, weights)
    except Mistake as error:
        raise Mistake(
            f"{path} holds weights that do not fit the model it describes, as the code is now: {error}"
        ) from error


def with_weights(config: GPTConfig, weights: dict[str, Tensor]) -> GPT:
    """A GPT whose weights are these tensors, in float32. Raises a `Mistake` if they do not fit."""
    for name, weight in weights.items():
        if not isinstance(weight, Tensor) or not weight.is_floating_point():
            raise Mistake(f"{name} holds {getattr(weight, 'dtype', type(weight).__name__)}, not floats")
    if config.num_layers > len(weights):  # a million empty layers take minutes and gigabytes, even without weights
        raise Mistake(f"num_layers is {config.num_layers}, but there are {len(weights)} weights")
    num_values = sum(map(Tensor.numel, weights.values()))
    if config.vocab_size is None or config.vocab_size * config.embed_dim > num_values:
        raise Mistake("its embeddings are not those of its vocabulary")  # whose size torch could not even count
    model = without_weights(config)
    sizes = {name: list(weight.shape) for name, weight in model.state_dict().items()}
    for name in sorted(sizes.keys() | weights.keys()):
        found = list(weights[name].shape) if name in weights else "missing"
        expected = sizes.get(name, "of no part of it")
        if found != expected:
            raise Mistake(f"{name} is {found}, not {expected}")
    model.load_state_dict({name: weight.float() for name, weight in weights.items()}, assign=True)
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


def read_checkpoint(path: Path, *, on_disk: bool = False) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU, after comparing every byte with its checksum.

    With `on_disk` the tensors stay on the disk and are not compared: quick, to look at their shapes. Raises as
    `load_gpt`.
    """
    if not path.is_file():
        raise Missing(f"there is no checkpoint {path}")
    with (
        file_errors(path),
        path.open("rb") as file,
        parsing(path, OTHERS),
        zipfile.ZipFile(file) as archive,
    ):
        records = archive.infolist()
        if sum(record.file_size for record in records) > path.stat().st_size:
            raise Mistake("it would be larger if it were unpacked")  # torch.save compresses nothing
        if not on_disk and (damaged := archive.testzip()):
            raise Mistake(f"{damaged} does not match its checksum")
        # Not by name, which several may have.
        pickles = [archive.read(record) for record in records if record.filename.lower().endswith("data.pkl")]
        for opcode, argument, _ in chain.from_iterable(map(pickletools.genops, pickles)):
            if opcode.name == "GLOBAL" and not PLAIN_TYPES.fullmatch(argument):
                raise Mistake(f"it is not of plain tensors and values, but names {argument}")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=on_disk)
        _check_size(checkpoint, 2 * path.stat().st_size)  # a tied head is there twice
        if missing := [name for name in CONTENT if name not in checkpoint]:
            raise Mistake(f"it has no {', '.join(missing)}")
        return checkpoint


def _check_size(value: Any, limit: int) -> None:
    """Raises a `Mistake` if the tensors and values that can be reached from `value` take more than `limit` bytes.

    What can be reached twice counts twice: by references to references a file of a kilobyte can hold lists of any
    length, and by a stride of 0 a tensor of any size.
    """
    waiting, size = [value], 0
    while waiting:
        value = waiting.pop()
        values = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        values = values if isinstance(values, list | tuple) else ()
        waiting += values
        size += value.nbytes if isinstance(value, Tensor) else 1 + len(values)
        if size > limit:
            raise Mistake("it describes more than its own size")
