"""Reads a GPT from a checkpoint file. model/runs/saving.py writes the files.

A checkpoint may come from a stranger. So no code in it is run, and a small file cannot make this module fill the
memory: a model is built only after its config has been compared with the weights in the file.
"""

import dataclasses
import logging
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
from model.mistakes import Missing, Mistake, check_range, parsing
from model.proof import difference, prove

log = logging.getLogger(__name__)
WEIGHT_PREFIX = "gpt."  # GPTModule, whose state_dict is saved, holds the GPT as its attribute `gpt`
NO_CHECKPOINT = ", or is no checkpoint of GlassGPT"  # ends the message about a file that cannot be parsed
VERSION = 3  # of what a checkpoint holds; other versions are refused
CONTENT = ("state_dict", "gpt_config", "tokenizer", "global_step", "proof")  # the keys that every checkpoint has
# The types that a checkpoint's pickle may name: tensors, ordered dicts and bytes. torch's own list also allows types
# that take any amount of memory when they are created, such as bytearray.
PLAIN_TYPES = re.compile(r"torch\._utils _rebuild_tensor_v2|torch \w+Storage|collections OrderedDict|_codecs encode")


def load_gpt(path: str | Path, device: str | torch.device = "cpu") -> tuple[GPT, dict[str, Any]]:
    """Returns the GPT in a checkpoint, its tokenizer and its step.

    Args:
        path: a checkpoint, or the folder of a run: then its best checkpoint is read, or its last one if it has no best.

    Returns:
        The model, on `device` and in evaluation mode.
        A dict of `tokenizer` (plain data, for `Tokenizer.from_dict`) and `global_step` (the number of updates so far).

    Raises:
        Mistake: if the file is missing, cut short, damaged or no checkpoint of GlassGPT, or if its weights do not fit
            its own config.

    Warns if other code than this trained the model, see model/proof.py.
    """
    path = Path(path)
    if path.is_dir():
        checkpoints = [path / name for name in RUN_CHECKPOINTS]
        path = next(filter(Path.is_file, checkpoints), checkpoints[0])
    gpt, checkpoint = open_checkpoint(path, device)
    if told := difference(path, gpt, checkpoint["proof"]):
        log.warning("%s", told)
    return gpt, {key: checkpoint[key] for key in ("tokenizer", "global_step")}


def entries_of(
    gpt: GPT,
    state_dict: dict[str, Tensor],
    tokenizer: Any,
    text: Tensor,
    document_masking: bool,
) -> dict[str, Any]:
    """Returns what a checkpoint holds of a model besides its step and its `state_dict`.

    text: the tokens of its proof, see `prove`. document_masking: whether it attends within documents only.
    """
    begins_document = tokenizer.end_of_text if document_masking else None
    return {
        "version": VERSION,
        "gpt_config": dataclasses.asdict(gpt.config),
        "tokenizer": tokenizer.to_dict(),
        "document_masking": document_masking,
        "proof": prove(with_weights(gpt.config, gpt_weights(state_dict)), text, begins_document),
    }


def gpt_weights(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the GPT's weights among those of a GPTModule, by their names in the GPT."""
    return {
        name.removeprefix(WEIGHT_PREFIX): weight
        for name, weight in state_dict.items()
        if name.startswith(WEIGHT_PREFIX)
    }


class OtherNetwork(Mistake):
    """Raised for a checkpoint with a config that this code does not know, or weights that do not fit its network."""


def open_checkpoint(path: Path, device: str | torch.device = "cpu") -> tuple[GPT, dict[str, Any]]:
    """Returns the GPT in a checkpoint, on `device`, in evaluation mode and float32, and the checkpoint's content.

    Raises the errors of `read_checkpoint`, and `OtherNetwork`.
    """
    checkpoint = read_checkpoint(path)
    with parsing(path, ", or was written by another version of GlassGPT"):
        fields = checkpoint["gpt_config"]
        weights = gpt_weights(checkpoint["state_dict"])
    try:
        config = GPTConfig(**fields)
    except Exception as error:  # damaged fields can raise errors of any type
        message = f"{path} has a config that this version of the code cannot use: {error}"
        raise OtherNetwork(message) from error
    try:
        gpt = with_weights(config, weights)
    except Mistake as error:
        message = f"{path} holds weights that do not fit its own config in this version of the code: {error}"
        raise OtherNetwork(message) from error
    return gpt.to(device).eval(), checkpoint


def with_weights(config: GPTConfig, weights: dict[str, Tensor]) -> GPT:
    """Builds a GPT whose weights are these tensors, in float32. Raises a `Mistake` if they do not fit the config.

    Its weights are first built on the meta device, so that a config too large for any machine costs no memory.
    """
    for name, weight in weights.items():
        if not isinstance(weight, Tensor):
            raise Mistake(f"{name} holds {type(weight).__name__}, no tensor")
    # Building a million layers takes minutes and gigabytes, even without weights.
    if config.num_layers > len(weights):
        raise Mistake(f"num_layers is {config.num_layers}, but there are only {len(weights)} weights")
    # Even on the meta device, torch fails on a tensor with more elements than 64 bits can count.
    num_values = sum(map(Tensor.numel, weights.values()))
    if config.vocab_size is None or config.vocab_size * config.embed_dim > num_values:
        raise Mistake("its embeddings are smaller than vocab_size x embed_dim")
    model = without_weights(config)
    own = model.state_dict()
    for name in sorted(own.keys() | weights.keys()):
        in_file, in_code = (list(of[name].shape) if name in of else "absent" for of in (weights, own))
        if in_file != in_code:
            raise Mistake(f"{name} is {in_file} in the file, but {in_code} in the network")
        if weights[name].is_floating_point() != own[name].is_floating_point():
            raise Mistake(f"{name} holds {weights[name].dtype} in the file, but {own[name].dtype} in the network")
    model.load_state_dict({name: weight.to(own[name].dtype) for name, weight in weights.items()}, assign=True)
    if config.tie_embeddings:
        model.lm_head.weight = model.token_embedding.weight
    return model


def without_weights(config: GPTConfig) -> GPT:
    """Builds a GPT whose weights are on the meta device: they take no memory and are not initialised."""
    with _OnMeta():
        return GPT(config)


class _OnMeta(TorchFunctionMode):
    """Puts what `torch.empty` makes, as PyTorch's modules do for weights, on the meta device, and draws no weights.

    To draw there makes torch import its compiler, which takes a second. Other tensors have their values: what a network
    computes from them while it is built, and buffers that a checkpoint does not hold.
    """

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func in (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_):
            return kwargs["tensor"]
        if func is torch.empty:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def read_checkpoint(path: Path, *, on_disk: bool = False) -> dict[str, Any]:
    """Returns the content of a checkpoint, on the CPU, after checking every byte against its checksum.

    With `on_disk` the tensors stay on the disk and no checksum is computed: a quick look at shapes and plain data.
    Raises a `Mistake` if the file is missing, cut short, damaged or no checkpoint of GlassGPT.
    """
    if not path.is_file():
        raise Missing(f"there is no checkpoint {path}")
    with parsing(path, NO_CHECKPOINT), zipfile.ZipFile(path) as archive:
        records = archive.infolist()
        if sum(record.file_size for record in records) > path.stat().st_size:
            raise Mistake("it is compressed, and would be larger when unpacked")  # torch.save compresses nothing
        if not on_disk and (damaged := archive.testzip()):
            raise Mistake(f"{damaged} does not match its checksum")
        # Reads each record, not each name: several records can have one name, and torch may load any of them.
        pickles = [archive.read(record) for record in records if record.filename.lower().endswith("data.pkl")]
        for opcode, argument, _ in chain.from_iterable(map(pickletools.genops, pickles)):
            if opcode.name == "GLOBAL" and not PLAIN_TYPES.fullmatch(argument):
                raise Mistake(f"it may hold only plain tensors and values, but names {argument}")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=on_disk)
        _check_size(checkpoint, 2 * path.stat().st_size)  # a tied lm_head may count twice
        version = checkpoint.get("version", 1 if "gpt_config" in checkpoint else VERSION)
        if version == VERSION and (missing := [name for name in CONTENT if name not in checkpoint]):
            raise Mistake(f"it has no {', '.join(missing)}")
    if version != VERSION:
        raise Mistake(f"{path} is of version {version}, and this is version {VERSION}: open it with its own GlassGPT")
    check_range(f"global_step in {path}", checkpoint["global_step"], 0, whole=True)
    return checkpoint


def _check_size(value: Any, limit: int) -> None:
    """Raises a `Mistake` if all tensors and values inside `value` together would take more than `limit` bytes.

    An object that is referenced twice counts twice: with nested references, a file of a kilobyte can describe lists of
    any length, and with a stride of 0 a tensor of any size. Weights that layers share are in the file once, and opening
    it does not copy them if they are contiguous and in float32.
    """
    waiting = [value]
    size = 0
    while waiting:
        value = waiting.pop()
        values = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        values = values if isinstance(values, list | tuple) else ()
        waiting += values
        is_copied = isinstance(value, Tensor) and not (value.dtype == torch.float32 and value.is_contiguous())
        size += value.nbytes if is_copied else 1 + len(values)
        if size > limit:
            raise Mistake("it describes more data than it holds")
