"""What is logged to Weights & Biases, when it is online, and that its errors do not stop a run."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from model.inspection.recording import Recording
from model.pages.images import mosaic_pixels
from model.runs.records import read_metrics
from model.runs.weights_and_biases import WeightsAndBiases

ENTRY = {"id": "0a1b", "step": 0, "commit": None, "hashes": {}, "changed": {}, "since": ""}


@pytest.fixture(autouse=True)
def not_logged_in(monkeypatch, tmp_path):
    (tmp_path / "code.json").write_text(json.dumps([ENTRY | {"difference": "+ secret"}]))
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
    monkeypatch.setattr(wandb, "setup", lambda settings: None)
    monkeypatch.setattr(wandb, "Image", lambda pixels: pixels)
    monkeypatch.setattr(wandb, "login", lambda prompt: os.environ.get("WANDB_API_KEY") is not None)
    return asked


@pytest.mark.slow
def test_a_run_logs_all_of_its_metrics_and_maps_by_step(train, service):
    assert train("--trainer.max_steps=2", "--trainer.val_check_interval=2", "--wandb=auto", "--name=run") == 0
    logged: dict[int, dict] = {}
    for kind, row in service:
        if kind == "log":
            logged.setdefault(row["trainer/global_step"], {}).update(row)
    recording = Recording.open(Path("runs/run/attention"))
    for step, row in logged.items():
        [pixels] = row.pop("attention/maps")
        stored = mosaic_pixels(recording.maps(step)["text"]).astype(int)  # from float16
        np.testing.assert_allclose(pixels, stored, atol=4)
    rows = read_metrics(Path("runs/run/metrics.csv"))
    assert [*logged.values()] == [{"trainer/global_step": row.pop("step"), **row} for row in rows]
    assert [*logged] == [0, 2] and "val/loss" in logged[2]
    assert service[-1] == ("finish", 0)


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
    logger = WeightsAndBiases(tmp_path, mode)
    logger.log({"lr": 1.0}, 0)
    logger.finish("success")
    assert [options["mode"] for kind, options in service if kind == "init"] == ([expected] if expected else [])
    assert os.environ.get("WANDB_ERROR_REPORTING") == ("false" if expected == "offline" else None)


def test_it_starts_with_the_first_metric_and_gets_the_config_and_the_code_without_the_difference(service, tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 1")
    logger = WeightsAndBiases(tmp_path, "offline")
    logger.finish("failed")
    assert not service
    for step in (1, 2):
        logger.log({"lr": 1.0}, step)
        logger.finish("running")
    logger.finish("success")
    (_, options), *others = service
    assert others == [*(("log", {"trainer/global_step": step, "lr": 1.0}) for step in (1, 2)), ("finish", 0)]
    assert options["config"] == {"seed": 1, "code": [ENTRY]}
    assert (options["name"], options["project"], Path(options["dir"])) == (tmp_path.name, "glassgpt", tmp_path)


@pytest.mark.parametrize("where", ["import", "init", "log", "finish"])
def test_an_error_in_weights_and_biases_is_one_warning(service, tmp_path, monkeypatch, caplog, where):
    import wandb

    def fail(*_, **__):
        raise TimeoutError("no answer")

    logger = WeightsAndBiases(tmp_path, "offline")
    if where == "import":
        monkeypatch.setitem(sys.modules, "wandb", None)
    elif where == "init":
        monkeypatch.setattr(wandb, "init", fail)
    else:
        logger.log({}, 1)
        setattr(logger.logger.experiment, where, fail)
    for step in (2, 3):
        logger.log({"val/loss": 1.0}, step)
    logger.finish("success")
    assert len(caplog.messages) == 1 and (where == "import" or "no answer" in caplog.text)
    assert logger.mode == "disabled"


def test_a_resumed_run_continues_under_its_id(tmp_path, capfd):
    """With the real package, offline."""
    pytest.importorskip("wandb")
    for step in (1, 2):
        logger = WeightsAndBiases(tmp_path, "offline")
        logger.log({"train/loss": 1.0}, step)
        logger.finish("success")
    assert not capfd.readouterr().err
    folders = list((tmp_path / "wandb").glob("offline-run-*"))
    assert len(folders) == 2 and all(path.name.split("-")[3] == "0a1b" for path in folders)  # offline-run-TIME-ID
