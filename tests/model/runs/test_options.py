"""Options of Lightning that are refused or let through, and what is hidden of what it says."""

import logging
import warnings
from types import SimpleNamespace

import pytest
import yaml

from model.runs.options import check_options, check_sections, named_code, quiet

USUAL = {
    "max_epochs": -1,
    "fast_dev_run": False,
    "limit_train_batches": 1.0,
    "overfit_batches": 0.0,
    "val_check_interval": 10,
    "accumulate_grad_batches": 1,
    "log_every_n_steps": 1,
}


def check(options):
    name = options.get("strategy", "SingleDeviceStrategy")
    check_options(SimpleNamespace(**USUAL | options | {"strategy": type(name, (), {})()}))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_epochs": None, "limit_train_batches": None},
        {"max_epochs": 1, "limit_train_batches": 1, "fast_dev_run": 1},
        {"limit_train_batches": 3, "overfit_batches": 3},
        {"strategy": "DDPStrategy"},
        {"strategy": "FullyShardedStrategy"},
        {"accumulate_grad_batches": 5},
        {"accumulate_grad_batches": 5, "val_check_interval": 0.5},
        {"val_check_interval": "00:00:10:00"},
    ],
    ids=str,
)
def test_options_that_do_what_they_say_are_let_through(options):
    check(options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_epochs": 2}, "trainer.max_epochs: training is counted in steps"),
        ({"limit_train_batches": 0.5}, "trainer.limit_train_batches: would repeat"),
        *(
            ({"strategy": name}, "trainer.strategy: .* write ddp or fsdp")
            for name in ("FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy")
        ),
        ({"log_every_n_steps": 0}, "trainer.log_every_n_steps must be at least 1, not 0"),
        ({"accumulate_grad_batches": 0}, "trainer.accumulate_grad_batches must be at least 1, not 0"),
        ({"accumulate_grad_batches": 2, "val_check_interval": "00:00:10:00"}, "must be a number of batches"),
        ({"accumulate_grad_batches": 3}, "trainer.val_check_interval is 10 batches, .*accumulate_grad_batches, 3"),
    ],
    ids=str,
)
def test_options_that_do_nothing_or_harm_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        check(options)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("The 'train_dataloader' does not have many workers which may be a bottleneck.", False),
        ("Detected call of `lr_scheduler.step()` before `optimizer.step()`.", False),
        ("Your `IterableDataset` has `__len__` defined. In combination with multi-process data loading", False),
        ("`isinstance(treespec, LeafSpec)` is deprecated", False),
        ("A warning that matters", True),
    ],
)
def test_only_what_every_start_says_is_hidden(text, shown):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        quiet()
        warnings.warn(text, stacklevel=1)
    assert bool(seen) == shown
    for name in ("lightning.pytorch", "lightning.fabric"):
        assert not logging.getLogger(name).isEnabledFor(logging.WARNING)
        assert logging.getLogger(name).isEnabledFor(logging.ERROR)
    assert logging.getLogger("model.runs.options").isEnabledFor(logging.WARNING)


GROUPS = ["data", "model", "model.gpt", "model.optimizer", "model.schedule"]
GROUPS += ["trainer", "attention", "samples", "checkpoints"]


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_of_options_that_is_something_else_is_named(tmp_path, group):
    def check(value):
        for name in reversed(group.split(".")):
            value = {name: value}
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(value))
        check_sections(tmp_path / "own.yaml")

    check({})
    for value in (3, "text", [1]):
        with pytest.raises(ValueError, match=f"{group} must hold options, not") as refused:
            check(value)
        assert repr(value) in str(refused.value)


def test_code_that_a_config_names_is_found_wherever_it_is():
    callback = {"class_path": "a.Callback", "init_args": {"function": "os.system", "path": "folder/a.txt", "n": 3}}
    config = {
        "trainer": {
            "callbacks": [callback, {"class_path": "b.Callback"}],
            "profiler": "some.module.function",
            "precision": "bf16-mixed",
            "default_root_dir": "my.runs",
        },
        "data": {"files": "my.txt", "own": {"class_path": "c.Reader", "init_args": {"name": "a.name"}}},
        "name": "v1.2",
    }
    assert list(named_code(config)) == ["a.Callback", "os.system", "b.Callback", "some.module.function", "c.Reader"]
