"""What a run's config may name, which config a checkpoint is validated with, and which of Lightning's options count."""

import logging
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from model.runs.options import check_options, check_sections, expand, plain_config, quiet

DEFAULT = Path("default.yaml")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def stranger(trainer: str, more: str = "") -> Path:
    """The config of a run, with these options of the Trainer."""
    path = Path("runs/run/config.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"model: {{}}\ndata: {{}}\ntrainer: {{{trainer}}}\n{more}")
    return path


@pytest.mark.parametrize(
    ("trainer", "more"),
    [
        ("callbacks: [{class_path: subprocess.Popen}]", ""),
        ("callbacks: [[subprocess.Popen]]", ""),
        ("strategy: my.Strategy", ""),
        ("profiler: [{class_path: subprocess.Popen}]", ""),
        ("accelerator: evil", ""),
        ("callbacks+: {class_path: subprocess.Popen}", ""),
        ("callbacks: subprocess.Popen", ""),
        ("callbacks: [subprocess.Popen]", ""),
        ("callbacks: [DeviceStatsMonitor]", ""),
        ("logger: CSVLogger", ""),
        ("plugins+: MixedPrecision", ""),
        ("callbacks.class_path: subprocess.Popen", ""),
        ("", "trainer.callbacks: subprocess.Popen"),
        ("callbacks: {class_path: EarlyStopping, init_args: {on_fit_start: subprocess.Popen}}", ""),
        ("callbacks: 'class_path: subprocess.Popen'", ""),
        ("callbacks: '{class_path: subprocess.Popen, init_args: {day: 2026-99-99}}'", ""),
        ("callbacks: '[unfinished'", ""),
        ("callbacks: ./evil.yaml", ""),
        ("callbacks: evil", ""),
        ("callbacks: [~/evil]", ""),
        ("callbacks: 'memory://evil'", ""),
        ("", "config: evil"),
        ("", "config: [evil]"),
        ("", "model.optimizer.class_path: subprocess.Popen"),
        ("", "model.optimizer: evil"),
        ("", "trainer: evil"),
    ],
)
def test_a_run_may_not_have_the_parser_import_or_open_anything(trainer, more, monkeypatch):
    monkeypatch.setenv("HOME", str(Path.cwd()))
    config = stranger(trainer, more)
    Path("evil").write_text("{class_path: subprocess.Popen}")
    Path("runs/run/evil.yaml").write_text("{class_path: subprocess.Popen}")
    near_misses = ["--trainer.callbacks.init_args.patience=3", "--samples.prompt", "--trainer.callbacks2", "evil.yaml"]
    with pytest.raises(ValueError, match=r"runs/run/config.yaml: .* may name code, .*: if you mean it, repeat"):
        plain_config(config, near_misses)


@pytest.mark.parametrize(
    "typed",
    [
        ["--trainer.callbacks=EarlyStopping"],
        ["--trainer.callbacks", "lightning.pytorch.callbacks.EarlyStopping"],
        ["--trainer.callbacks+=EarlyStopping"],
        ["--config=mine.yaml"],
        ["-c", "mine.yaml"],
    ],
)
def test_of_an_option_that_is_typed_too_what_is_typed_is_taken(typed):
    config = stranger("max_steps: 5, callbacks: [{class_path: subprocess.Popen}]")
    Path("mine.yaml").write_text("trainer: {callbacks: [{class_path: EarlyStopping}]}")
    assert yaml.safe_load(plain_config(config, typed)) == {"model": {}, "data": {}, "trainer": {"max_steps": 5}}
    with pytest.raises(ValueError, match=r"trainer\.logger may name code"):
        plain_config(stranger("callbacks: EarlyStopping, logger: CSVLogger"), typed)


def test_plain_options_name_no_code():
    texts = "precision: bf16-mixed, max_time: '00:01:00:00', devices: '0,1', default_root_dir: my.runs"
    others = "profiler: simple, callbacks: null, logger: false, gradient_clip_val: 1.0"
    config = stranger(f"{texts}, {others}", "seed_everything: 3")
    assert plain_config(config, []) == config


def test_validate_takes_the_config_beside_the_checkpoints_of_a_run_only():
    for folder in ("runs/run/checkpoints", "models/bare"):
        Path(folder).mkdir(parents=True)
        torch.save({}, Path(folder, "best.ckpt"))
        Path(folder).with_name("config.yaml").write_text("model: {}\ndata: {}\ntrainer: {}\n")
    for checkpoint, config in (("runs/run/checkpoints", "runs/run/config.yaml"), ("models/bare", "default.yaml")):
        _, args = expand(["validate", "--ckpt_path", f"{checkpoint}/best.ckpt"], DEFAULT)
        assert args[0] == f"--config={config}"


USUAL = {
    "max_epochs": -1,
    "fast_dev_run": False,
    "limit_train_batches": 1.0,
    "overfit_batches": 0.0,
    "val_check_interval": 10,
    "accumulate_grad_batches": 1,
    "log_every_n_steps": 1,
    "gradient_clip_val": None,
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
        ({"gradient_clip_val": float("nan")}, "trainer.gradient_clip_val must be at least 0 and finite, not nan"),
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
