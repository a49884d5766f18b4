"""What is logged to Weights & Biases, when it is online, and that its errors do not stop a run."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from model.inspection.heads import SCORES
from model.inspection.recording import Recording
from model.pages.images import mosaic_pixels
from model.runs.wandb_logger import WandbLogger


@pytest.fixture(autouse=True)
def not_logged_in(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_PROJECT", "WANDB_ERROR_REPORTING"):
        monkeypatch.setenv(name, "")  # so that the test's end restores it
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.fixture
def service(monkeypatch):
    """Replaces Weights & Biases; the calls that it got."""
    import wandb

    asked = []
    run = SimpleNamespace(log=lambda row: asked.append(("log", row)), define_metric=lambda *_, **__: None)
    run.finish = lambda exit_code: asked.append(("finish", exit_code))
    monkeypatch.setattr(wandb, "init", lambda **options: asked.append(("init", options)) or run)
    monkeypatch.setattr(wandb, "Image", lambda pixels, caption: (pixels, caption))
    monkeypatch.setattr(wandb, "login", lambda prompt: os.environ.get("WANDB_API_KEY") is not None)
    return asked


def wandb_logger(run_dir, mode="offline"):
    logger = WandbLogger(run_dir, mode)
    logger.trainer = SimpleNamespace(global_step=0)
    return logger


@pytest.mark.slow
def test_a_run_logs_metrics_maps_and_samples_of_each_recorded_step(train, service):
    options = ["--trainer.max_steps=2", "--trainer.val_check_interval=2", "--wandb=auto", "--name=run"]
    assert train(*options) == 0
    logged = [row for kind, row in service if kind == "log"]
    assert [row[0] for row in logged[1]["samples"].data] == [2] and "samples" not in logged[0]
    recording = Recording.open(Path("runs/run/attention"))
    assert [row["trainer/global_step"] for row in logged] == recording.steps == [0, 2]  # one row a step
    for snapshot, row in zip(recording.snapshots, logged, strict=True):
        assert row["attention/fidelity"] == pytest.approx(snapshot.checks.fidelity)
        for name in SCORES:
            assert row[f"attention/{name}/layer_1"] == pytest.approx(snapshot.scores[name][1].max(), abs=1e-4)
        pixels, caption = row["attention/maps"]
        np.testing.assert_array_equal(pixels, mosaic_pixels(recording.maps(snapshot.step)["text"]))
        assert f"step {snapshot.step}" in caption


@pytest.mark.parametrize(
    "mode, variables, expected",
    [
        ("auto", "", "offline"),
        ("auto", "WANDB_API_KEY=secret", "online"),
        ("auto", "WANDB_API_KEY=secret WANDB_MODE=offline", "offline"),
        ("online", "WANDB_MODE=disabled", "online"),
        ("disabled", "WANDB_API_KEY=secret", None),
    ],
)
def test_it_is_online_if_logged_in_and_offline_without_reports_of_errors(
    service, tmp_path, monkeypatch, mode, variables, expected
):
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    logger = wandb_logger(tmp_path, mode)
    logger.log_metrics({"lr": 1.0})
    logger.finalize("success")
    assert [options["mode"] for kind, options in service if kind == "init"] == ([expected] if expected else [])
    assert os.environ.get("WANDB_ERROR_REPORTING") == ("false" if expected == "offline" else None)


def test_it_starts_with_the_first_metric_and_gets_the_config_and_the_code_without_the_difference(service, tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 1")
    entry = {"step": 0, "commit": None, "hashes": {"train.py": "0" * 16}, "changed": {}, "since": ""}
    (tmp_path / "code.json").write_text(json.dumps([entry | {"difference": "+ secret"}]))
    logger = wandb_logger(tmp_path)
    logger.finalize("failed")
    assert not service
    for logger.trainer.global_step in (1, 2):
        logger.log_metrics({"lr": 1.0})
    logger.finalize("success")
    (_, options), *others = service
    assert others == [*(("log", {"trainer/global_step": step, "lr": 1.0}) for step in (1, 2)), ("finish", 0)]
    assert options["config"] == {"seed": 1, "code": [entry]}
    assert (options["name"], options["project"], Path(options["dir"])) == (tmp_path.name, "glassgpt", tmp_path)


@pytest.mark.parametrize("where", ["import", "init", "log", "finish"])
def test_an_error_in_weights_and_biases_is_one_warning(service, tmp_path, monkeypatch, caplog, where):
    import wandb

    def fail(*_, **__):
        raise TimeoutError("no answer")

    logger = wandb_logger(tmp_path)
    if where == "import":
        monkeypatch.setitem(sys.modules, "wandb", None)
    elif where == "init":
        monkeypatch.setattr(wandb, "init", fail)
    else:
        logger._attempt(lambda _: setattr(logger.run, where, fail))
    for logger.trainer.global_step in (2, 3):
        logger.log_metrics({"val/loss": 1.0})
    logger.finalize("success")
    assert len(caplog.messages) == 1 and (where == "import" or "no answer" in caplog.text)
    assert logger.mode == "disabled"


def test_a_resumed_run_continues_under_its_id(tmp_path):
    """With the real package, offline."""
    pytest.importorskip("wandb")
    for step in (1, 2):
        logger = wandb_logger(tmp_path)
        logger.trainer.global_step = step
        logger.log_metrics({"train/loss": 1.0})
        logger.finalize("success")
    folders = list((tmp_path / "wandb").glob("offline-run-*"))
    assert len(folders) == 2 and len({path.name.split("-")[3] for path in folders}) == 1  # offline-run-TIME-ID
