"""From a checkpoint file back to a GPT. Training writes the files, see model/runs/checkpoints.py."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from model.gpt import GPT, GPTConfig

# The module that trains a GPT holds it as its attribute `gpt`.
WEIGHT_PREFIX = "gpt."


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
    try:
        model = GPT(GPTConfig(**checkpoint["gpt_config"]))
        weights = {
            name.removeprefix(WEIGHT_PREFIX): weight
            for name, weight in checkpoint["state_dict"].items()
            if name.startswith(WEIGHT_PREFIX)
        }
        model.load_state_dict(weights)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        # load_state_dict's message is a title, then one reason per line.
        reason = str(error).removeprefix("Error(s) in loading state_dict for GPT:").strip().splitlines()[0]
        raise ValueError(f"the weights in {path} do not fit the model it describes: {reason}") from error
    info = {"tokenizer": checkpoint["tokenizer"], "global_step": checkpoint["global_step"]}
    return model.to(device).eval(), info


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU, after comparing every byte with its checksum.

    Raises:
        FileNotFoundError, ValueError: as `load_gpt`.
    """
    verify_checkpoint(path)
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is not read: it is not a checkpoint of plain tensors and values") from error
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
    for name, weight in checkpoint["state_dict"].items():
        if not isinstance(name, str) or not isinstance(weight, torch.Tensor):
            raise ValueError(f"{path} is not a checkpoint of GlassGPT: its state_dict has no tensor as {name!r}")
    return checkpoint


def verify_checkpoint(path: Path) -> None:
    """Compares all of `path` with the checksums that torch.save stores with every tensor.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is cut short or any bit of it has changed.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} is damaged, or no checkpoint: {error}") from error
    if damaged is not None:
        raise ValueError(f"{path} is damaged: {damaged} does not match its checksum")
