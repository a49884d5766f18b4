"""What a run's config may hold."""

import re
from pathlib import Path

import pytest
import yaml

from model.runs.configs import SECTIONS, check_sections, plain_config, typed_options

pytestmark = pytest.mark.usefixtures("here")


def stranger(trainer: str, more: str = "") -> Path:
    """The config of a run, with these options of the Trainer."""
    path = Path("runs/run/config.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"model: {{}}\ndata: {{}}\ntrainer: {{{trainer}}}\n{more}")
    return path


def test_an_option_counts_as_typed_wherever_it_is():
    Path("own.yaml").write_text("model: {gpt: {num_layers: 3}}\n")
    args = ["--config=own.yaml", "--name", "a", "--trainer.max_steps=3", "--trainer.callbacks+=X"]
    args += ["--data", '{"tokenizer": "bytes"}', "--model.gpt={num_heads: 2}"]
    named = {"config", "name", "data", "model.gpt", "trainer.max_steps", "trainer.callbacks"}
    assert typed_options(args) == named | {"model.gpt.num_layers", "model.gpt.num_heads", "data.tokenizer"}


EVIL = [  # options of the Trainer
    "callbacks: [{class_path: subprocess.Popen}]",
    "strategy: my.Strategy",
    "profiler: [{class_path: subprocess.Popen}]",
    "accelerator: evil",
    "callbacks+: {class_path: subprocess.Popen}",
    "callbacks: subprocess.Popen",
    "callbacks: [subprocess.Popen]",
    "logger: CSVLogger",
    "plugins+: MixedPrecision",
    "callbacks.class_path: subprocess.Popen",
    "callbacks: {class_path: EarlyStopping, init_args: {on_fit_start: subprocess.Popen}}",
    "profiler: 'class_path: subprocess.Popen'",
    "profiler: '{class_path: subprocess.Popen, init_args: {day: 2026-99-99}}'",
    "profiler: ./evil.yaml",
    "devices: [~/evil]",
    "precision: 'memory://evil'",
]
EVIL_MORE = [  # outside of the Trainer's
    "trainer.callbacks: subprocess.Popen",
    "config: evil",
    "config: [evil]",
    "model.optimizer.class_path: subprocess.Popen",
    "model.optimizer: evil",
    "trainer: evil",
]


@pytest.mark.parametrize(("trainer", "more"), [*((line, "") for line in EVIL), *(("", line) for line in EVIL_MORE)])
def test_a_run_may_not_have_the_parser_import_or_open_anything(trainer, more, monkeypatch):
    monkeypatch.setenv("HOME", str(Path.cwd()))
    config = stranger(trainer, more)
    Path("evil").write_text("{class_path: subprocess.Popen}")
    Path("runs/run/evil.yaml").write_text("{class_path: subprocess.Popen}")
    near_misses = ["--trainer.callbacks.init_args.patience=3", "--samples.prompt", "--trainer.callbacks2", "evil.yaml"]
    with pytest.raises(ValueError, match=r"runs/run/config.yaml: .* may name code, .*: if you mean it, repeat"):
        plain_config(config, near_misses)


TYPED = ["--trainer.callbacks=EarlyStopping", "--trainer.callbacks lightning.pytorch.callbacks.EarlyStopping"]
TYPED += ["--trainer.callbacks+=EarlyStopping", "--config=mine.yaml", "-c mine.yaml"]


@pytest.mark.parametrize("typed", map(str.split, TYPED), ids=TYPED)
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


@pytest.mark.parametrize("group", SECTIONS)
def test_a_group_of_options_that_is_something_else_is_named(group):
    for value in ({}, 3, "text", [1]):
        config = value
        for name in reversed(group.split(".")):
            config = {name: config}
        Path("own.yaml").write_text(yaml.safe_dump(config))
        if value == {}:
            check_sections(Path("own.yaml"))
        else:
            with pytest.raises(ValueError, match=f"{group} must hold options, not {re.escape(repr(value))}"):
                check_sections(Path("own.yaml"))
