"""What the config of a resumed run may hold. tests/test_train_mistakes.py has mistakes in options."""

from pathlib import Path

import pytest
import yaml

from model.runs.configs import CODE_OPTIONS, plain_config
from model.runs.trainer_options import OPTIONS
from tests.command_lines import mistake

pytestmark = pytest.mark.usefixtures("here")


def stranger(trainer, more=""):
    """Writes the config of a run, with these options of the Trainer."""
    path = Path("runs/run/config.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"model: {{}}\ndata: {{}}\ntrainer: {{{trainer}}}\n{more}")
    return path


KNOWN = {f"trainer.{name}" for name in OPTIONS.split()} | {"seed_everything", *CODE_OPTIONS}
EVIL = [  # options of the Trainer that would import or open something
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
EVIL_MORE = [  # such options outside the Trainer's section
    "trainer.callbacks: subprocess.Popen",
    "config: evil",
    "config: [evil]",
    "model.optimizer.class_path: subprocess.Popen",
    "model.optimizer: evil",
    "model.optimizer.algorithm: evil.Optimizer",
    "data.corpus: evil.corpus",
]


@pytest.mark.parametrize("trainer, more", [*((line, "") for line in EVIL), *(("", line) for line in EVIL_MORE)])
def test_the_config_of_a_run_that_would_import_or_open_anything_is_refused(trainer, more, monkeypatch):
    monkeypatch.setenv("HOME", str(Path.cwd()))
    config = stranger(trainer, more)
    Path("evil").write_text("{class_path: subprocess.Popen}")
    near_misses = {"trainer.callbacks2", "trainer", "samples.prompt", "config"}
    with mistake(r"runs/run/config.yaml: .*(code|no option)"):
        plain_config(config, near_misses, KNOWN)


@pytest.mark.parametrize("typed", ["trainer.callbacks", "trainer.callbacks.init_args.patience"])
def test_an_option_that_the_user_types_replaces_the_one_in_the_config(typed):
    config = stranger("max_steps: 5, callbacks: [{class_path: subprocess.Popen}]")
    assert yaml.safe_load(plain_config(config, {typed}, KNOWN)) == {
        "model": {},
        "data": {},
        "trainer": {"max_steps": 5},
    }
    assert yaml.safe_load(plain_config(config, {typed, "trainer.max_steps"}, KNOWN))["trainer"] == {}
    with mistake(r"trainer\.logger .*code"):
        plain_config(stranger("callbacks: EarlyStopping, logger: CSVLogger"), {typed}, KNOWN)
    for name in ("model.optimizer.algorithm", "data.corpus"):  # the user's own code
        assert f"{name}: mine.A" in plain_config(stranger("", f"{name}: mine.A"), {name}, KNOWN)


def test_options_that_name_no_code_are_kept_as_they_are():
    texts = "precision: bf16-mixed, max_time: '00:01:00:00', devices: '0,1', default_root_dir: my.runs"
    others = "profiler: simple, callbacks: null, logger: false, gradient_clip_val: 1.0"
    config = stranger(f"{texts}, {others}", "seed_everything: 3")
    assert yaml.safe_load(plain_config(config, set(), KNOWN)) == yaml.safe_load(config.read_text())
