"""What a run's config may name, and which config a checkpoint is validated with."""

from pathlib import Path

import pytest
import torch

from model.runs.options import check_code, expand

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
        ("callbacks+: {class_path: subprocess.Popen}", ""),
        ("callbacks: subprocess.Popen", ""),
        ("callbacks: [subprocess.Popen]", ""),
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
    near_misses = ["--trainer.callbacks=my.subprocess.Popen2", "--samples.prompt", "a subprocess.Popen", "evil.yaml"]
    with pytest.raises(ValueError, match=r"runs/run/config.yaml names .*, which would be run: if you mean it, repeat"):
        check_code(config, [*near_misses, "--trainer.callbacks=EarlyStopping"])


@pytest.mark.parametrize(
    "typed",
    [
        ["--trainer.callbacks=EarlyStopping"],
        ["--trainer.callbacks", "lightning.pytorch.callbacks.EarlyStopping"],
        ["--trainer.callbacks+=EarlyStopping"],
        ["--trainer.callbacks", "[{class_path: EarlyStopping, init_args: {monitor: val/loss}}]"],
        ["--config=mine.yaml"],
        ["-c", "mine.yaml"],
    ],
)
def test_a_class_that_is_typed_is_meant(typed):
    arguments = "init_args: {monitor: val/loss, mode: min, patience: 3}"
    config = stranger(f"callbacks: [{{class_path: lightning.pytorch.callbacks.EarlyStopping, {arguments}}}]")
    Path("mine.yaml").write_text("trainer: {callbacks: [{class_path: EarlyStopping}]}")
    check_code(config, typed)
    with pytest.raises(ValueError, match=r"names lightning\.pytorch\.callbacks\.EarlyStopping"):
        check_code(config, [option.replace("Early", "Late") for option in typed if "mine" not in option])


def test_plain_options_of_the_trainer_name_no_code():
    check_code(
        stranger("precision: bf16-mixed, max_time: '00:01:00:00', devices: '0,1', default_root_dir: my.runs"), []
    )


def test_validate_takes_the_config_beside_the_checkpoints_of_a_run_only():
    for folder in ("runs/run/checkpoints", "models/bare"):
        Path(folder).mkdir(parents=True)
        torch.save({}, Path(folder, "best.ckpt"))
        Path(folder).with_name("config.yaml").write_text("model: {}\ndata: {}\ntrainer: {}\n")
    for checkpoint, config in (("runs/run/checkpoints", "runs/run/config.yaml"), ("models/bare", "default.yaml")):
        _, args = expand(["validate", "--ckpt_path", f"{checkpoint}/best.ckpt"], DEFAULT)
        assert args[:2] == ["--config", config]
