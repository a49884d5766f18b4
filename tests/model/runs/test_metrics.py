"""metrics.csv has every step once, whatever happens; Weights & Biases is never waited for."""

import csv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.training.logging import COLUMNS, CSVLogger, WandbLogger, has_wandb_credentials, wandb_mode


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(autouse=True)
def not_logged_in(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def test_what_is_logged_for_one_step_is_one_row(tmp_path):
    logger = CSVLogger(tmp_path / "metrics.csv")
    logger.log_metrics({"train/loss": 2.5, "lr": 0.1}, step=10)
    logger.log_metrics({"val/loss": 2.25}, step=10)
    logger.log_metrics({"train/loss": 1.0 / 3}, step=20)
    logger.save()
    rows = read(tmp_path / "metrics.csv")
    assert list(rows[0]) == list(COLUMNS)
    assert [(row["step"], row["train/loss"], row["val/loss"], row["lr"]) for row in rows] == [
        ("10", "2.5", "2.25", "0.1"),
        ("20", str(1.0 / 3), "", ""),
    ]


def test_a_new_column_keeps_the_rows_before_it(tmp_path):
    logger = CSVLogger(tmp_path / "metrics.csv")
    for step, metrics in enumerate([{"lr": 1.0}, {"lr": 2.0, "attention/sink/layer_0": 0.5}, {"lr": 3.0}]):
        logger.log_metrics(metrics, step=step)
    logger.save()
    rows = read(tmp_path / "metrics.csv")
    assert list(rows[0]) == [*COLUMNS, "attention/sink/layer_0"]
    assert [(row["lr"], row["attention/sink/layer_0"]) for row in rows] == [("1.0", ""), ("2.0", "0.5"), ("3.0", "")]


@settings(deadline=None, max_examples=50)  # writing files takes as long as the disk lets it
@given(st.lists(st.booleans(), min_size=1, max_size=12), st.data())
def test_a_run_cut_anywhere_and_gone_on_writes_the_same_file(tmp_path_factory, has_extra, data):
    """The file is cut at any byte behind the row of the step that is gone on from, as a kill may leave it."""

    def log(path, steps, rewind_to=None):
        logger = CSVLogger(path)
        if rewind_to is not None:
            logger.rewind(rewind_to)
        for step in steps:
            logger.log_metrics({"train/loss": step / 7} | ({"extra": step} if has_extra[step] else {}), step=step)
        logger.save()

    folder = tmp_path_factory.mktemp("metrics")
    log(folder / "whole.csv", range(len(has_extra)))
    resumed = data.draw(st.integers(0, len(has_extra) - 1))
    whole = (folder / "whole.csv").read_bytes()
    behind_row = len(b"".join(whole.splitlines(keepends=True)[: resumed + 2]))
    (folder / "cut.csv").write_bytes(whole[: data.draw(st.integers(behind_row, len(whole)))])
    log(folder / "cut.csv", range(resumed + 1, len(has_extra)), rewind_to=resumed)
    assert read(folder / "cut.csv") == read(folder / "whole.csv")


def test_nothing_is_written_before_the_first_figure(tmp_path):
    logger = CSVLogger(tmp_path / "metrics.csv")
    logger.rewind(0)
    logger.finalize("failed")
    assert not list(tmp_path.iterdir())


def test_weights_and_biases_is_offline_until_somebody_has_logged_in(tmp_path, monkeypatch):
    assert wandb_mode("auto") == "offline"
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert has_wandb_credentials() and wandb_mode("auto") == "online"
    assert wandb_mode("offline") == "offline"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_mode("auto") == "disabled"


def test_a_key_for_another_server_does_not_count(tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine example.org login user password secret\n")
    assert not has_wandb_credentials()
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert has_wandb_credentials()


def test_weights_and_biases_that_fails_costs_a_warning(tmp_path, monkeypatch, caplog):
    logger = WandbLogger(tmp_path, mode="offline")
    monkeypatch.setattr(logger, "_start", lambda wandb: 1 / 0)
    logger.log_metrics({"val/loss": 1.0}, step=1)
    logger.log_metrics({"val/loss": 1.0}, step=2)
    logger.finalize("success")
    assert caplog.text.count("goes on without it") == 1


def test_offline_figures_lie_in_the_runs_own_folder_under_one_id(tmp_path):
    for step in (1, 2):
        logger = WandbLogger(tmp_path, mode="offline", config={"seed": 1})
        logger.log_metrics({"train/loss": 1.0}, step=step)
        assert logger.run is None  # nothing is started for it
        logger.log_metrics({"val/loss": 1.0}, step=step)
        logger.finalize("success")
    run_id = (tmp_path / "wandb" / "run_id").read_text()
    assert len(list((tmp_path / "wandb").glob(f"offline-run-*{run_id}*"))) >= 1
    assert len({path.name.rsplit("-", 1)[1] for path in (tmp_path / "wandb").glob("offline-run-*")}) == 1
