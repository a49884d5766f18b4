"""What is filled in on the command line, which options exclude each other, and what is not said at every start."""

import logging
import warnings
from pathlib import Path

import pytest
import torch

from model.runs.command_line import expand, quiet

DEFAULT = Path("default.yaml")


pytestmark = pytest.mark.usefixtures("here")


def test_what_may_be_left_out_is_filled_in():
    assert expand([], DEFAULT) == ("fit", ["--config=default.yaml"])
    assert expand(["fit", "--name", "a"], DEFAULT) == ("fit", ["--config=default.yaml", "--name", "a"])
    assert expand(["-c", "own.yaml"], DEFAULT) == ("fit", ["-c", "own.yaml"])
    assert expand(["--config=own.yaml"], DEFAULT) == ("fit", ["--config=own.yaml"])
    assert expand(["--config=a", "--data.context_length=8"], DEFAULT)[1][-1] == "--model.gpt.context_length=8"
    Path("x.ckpt").touch()
    assert expand(["--ckpt_path=x.ckpt", "-c", "a"], DEFAULT)[1][-2:] == ["--ckpt_path", "x.ckpt"]
    assert expand(["--config=a", "--name", "fit"], DEFAULT)[1] == ["--config=a", "--name", "fit"]


REFUSED = {
    "train": "unknown subcommand 'train'",
    "--wandb=disabled validate": "the subcommand comes first: python train.py validate",
    "--name a fit --wandb=disabled": "the subcommand comes first: python train.py fit",
    "validate --resume runs/a": "write --ckpt_path runs/a",
    "--resume=runs/a --ckpt_path=runs/a/checkpoints/best.ckpt": "--resume and --ckpt_path exclude each other",
    "--resume=runs/a --resume runs/b": "--resume is given 2 times",
    "validate --ckpt_path runs/a --ckpt_path runs/b": "--ckpt_path is given 2 times",
    "--resume": "argument --resume: expected one argument",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_no_option_is_ignored(typed):
    with pytest.raises(ValueError, match=REFUSED[typed]):
        expand(typed.split(), DEFAULT)


def test_validate_takes_the_config_beside_the_checkpoints_of_a_run_only():
    for folder in ("runs/run/checkpoints", "models/bare"):
        Path(folder).mkdir(parents=True)
        torch.save({}, Path(folder, "best.ckpt"))
        Path(folder).with_name("config.yaml").write_text("model: {}\ndata: {}\ntrainer: {}\n")
    for checkpoint, config in (("runs/run/checkpoints", "runs/run/config.yaml"), ("models/bare", "default.yaml")):
        _, args = expand(["validate", "--ckpt_path", f"{checkpoint}/best.ckpt"], DEFAULT)
        assert args[0] == f"--config={config}"


def test_only_what_every_start_says_is_hidden():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        quiet()
        for text in (
            "The 'train_dataloader' does not have many workers which may be a bottleneck.",
            "Detected call of `lr_scheduler.step()` before `optimizer.step()`.",
            "Your `IterableDataset` has `__len__` defined. In combination with multi-process data loading",
            "`isinstance(treespec, LeafSpec)` is deprecated",
            "A warning that matters",
        ):
            warnings.warn(text, stacklevel=1)
    assert [str(warning.message) for warning in seen] == ["A warning that matters"]
    for name, level in (("lightning.pytorch", "ERROR"), ("lightning.fabric", "ERROR"), ("model.runs", "WARNING")):
        assert logging.getLevelName(logging.getLogger(name).getEffectiveLevel()) == level
