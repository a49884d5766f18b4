"""Defaults of the command line, options that exclude each other or do harm, and hidden warnings."""

import logging
import shlex
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml
from jsonargparse import Namespace

from model.runs.command_line import NOT_SAVED, REFUSED_CALLBACKS, check_trainer, quiet, read_options
from train import build_parser

CONFIG = "model: {gpt: {num_layers: 3}}\ntrainer: {max_steps: 5, precision: 32-true}\ndata: {tokenizer: bytes}\n"


@pytest.fixture
def options(here):
    Path("default.yaml").write_text(CONFIG)
    return lambda *args: read_options(build_parser(), list(args), Path("default.yaml"))


def test_options_that_are_left_out_get_their_defaults(options):
    Path("own.yaml").write_text("trainer: {max_steps: 7}\n")
    for args, layers, steps in (
        ([], 3, 5),
        (["--name", "a"], 3, 5),
        (["--config=own.yaml"], 6, 7),
        (["-c", "own.yaml"], 6, 7),
        (["--config=own.yaml", "--config", "default.yaml"], 3, 5),
        (["--trainer.max_steps=9", "--config=default.yaml"], 3, 9),  # the order does not matter
    ):
        read = options(*args)
        assert (read.config.model.gpt.num_layers, read.config.trainer.max_steps) == (layers, steps), args
        assert read.config.trainer.precision is not None
        saved = yaml.safe_load(read.saved)
        assert saved["model"]["gpt"]["num_layers"] == layers and read.run is None
        assert saved.keys() == read.config.as_dict().keys() - set(NOT_SAVED)


REFUSED = {
    "--resume": "--resume",
    "--resume=runs/a --model.init_from=runs/a": "--model.init_from",
    "--resume=runs/a --model '{init_from: runs/a}'": "--model.init_from",
    "--resume=runs/a --name=b": "--name",
    "--data.context_length=8": "data.context_length",
    "--config=nested.yaml": "nested.yaml",
    "validate": "validate",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_options_that_exclude_each_other_or_do_not_exist_are_refused(options, typed):
    Path("nested.yaml").write_text("config: [own.yaml]\n")
    with pytest.raises(ValueError, match=REFUSED[typed]):
        options(*shlex.split(typed))


GROUPS = "data model model.gpt model.optimizer model.schedule trainer attention samples checkpoints"


@pytest.mark.parametrize("group", GROUPS.split())
@pytest.mark.parametrize("value", [3, "text", [1], None], ids=repr)
def test_a_group_of_options_with_a_plain_value_is_refused(options, group, value):
    config = value
    for name in reversed(group.split(".")):
        config = {name: config}
    Path("own.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ValueError, match=rf"\b{group.partition('.')[0]}\b"):
        options("--config=own.yaml")


def test_only_warnings_of_every_start_are_hidden():
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


USUAL = {"max_epochs": -1, "fast_dev_run": False, "limit_train_batches": 1.0, "overfit_batches": 0.0}
USUAL |= {"val_check_interval": 10, "accumulate_grad_batches": 1, "log_every_n_steps": 1}
USUAL |= {"strategy": "auto", "callbacks": None, "min_epochs": None, "min_steps": None}


def callback(name, **options):
    return Namespace(class_path=f"lightning.pytorch.callbacks.{name}", init_args=Namespace(**options))


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, None),
        ({"max_epochs": None, "limit_train_batches": None}, None),
        *(({"limit_train_batches": share}, "trainer.limit_train_batches") for share in (0.5, 1)),
        *(({name: 1}, f"trainer.{name}") for name in ("max_epochs", "min_epochs", "min_steps")),
        ({"strategy": "ddp"}, None),
        ({"strategy": Namespace(class_path="lightning.pytorch.strategies.DDPStrategy")}, None),
        ({"strategy": Namespace(class_path="lightning.pytorch.strategies.FSDPStrategy")}, "trainer.strategy"),
        *(({"strategy": name}, "trainer.strategy.* ddp") for name in ("fsdp", "deepspeed", "ddp_spawn")),
        *(({"callbacks": callback(name)}, name) for name in REFUSED_CALLBACKS),
        ({"log_every_n_steps": 0}, "trainer.log_every_n_steps .*0"),
        ({"accumulate_grad_batches": 0}, "trainer.accumulate_grad_batches .*0"),
        ({"val_check_interval": 0}, "trainer.val_check_interval.* 0 "),
        ({"val_check_interval": "00:00:00:05"}, "trainer.val_check_interval"),
        ({"accumulate_grad_batches": 5}, None),
        ({"val_check_interval": 0.5}, "trainer.val_check_interval.* 0.5 "),
        ({"val_check_interval": None}, None),
        ({"accumulate_grad_batches": 3}, "trainer.val_check_interval.* 10 .* 3 "),
        ({"callbacks": [callback("EarlyStopping", monitor="val/loss")]}, None),
        ({"callbacks": callback("LearningRateMonitor")}, None),
    ],
    ids=repr,
)
def test_trainer_options_that_do_harm_are_refused_and_others_accepted(options, message):
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        check_trainer(Namespace(**USUAL | options))
