"""metrics.csv has one row per step, even after a kill and a resume."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from model.runs.metrics import RunLogger, TrainingMetrics
from model.runs.records import COLUMNS, add_rows, read_metrics
from model.runs.weights_and_biases import WeightsAndBiases
from tests.command_lines import mistake
from tests.small_runs import csv_rows, metrics


def run_logger(folder):
    logger = RunLogger(folder, WeightsAndBiases(folder, "disabled"))
    logger.trainer = SimpleNamespace(global_step=0)
    return logger


def log(logger, step, **figures):
    logger.trainer.global_step = step
    logger.log_metrics(figures, step=-1)  # Lightning's own step, which does not count


def test_all_metrics_of_a_step_are_in_one_row_and_a_new_column_keeps_the_rows_before_it(tmp_path):
    """Not the epoch, which Lightning adds, nor a callback's own step, nor what would make the file unreadable."""
    logger, figures = run_logger(tmp_path), {"train/loss": 2.5, "lr": 0.1, "epoch": 0}
    logger.finalize("failed")
    assert not list(tmp_path.iterdir())  # before the first metric
    log(logger, 10, **figures)
    logger.finalize("running")  # as for a checkpoint, after which the step may get more figures
    log(logger, 10, **{"val/loss": 2.25})
    log(logger, 20, **{"train/loss": 1 / 3, "attention/first_token/layer_0": 0.5})
    logger.finalize("running")
    logger = run_logger(tmp_path)  # that of a resumed run
    log(logger, 20, lr=0.2)
    log(logger, 30, lr=3.0)
    logger.log_metrics({"step": 99, "norm": torch.tensor(0.5), "is_large": True, "count": np.int64(3)})
    with pytest.raises(ValueError, match="words"):
        log(logger, 40, note="words")
    logger.finalize("success")
    assert [*csv_rows(tmp_path / "metrics.csv")[0]][: len(COLUMNS)] == [*COLUMNS]
    assert read_metrics(tmp_path / "metrics.csv") == [
        {"step": 10, "train/loss": 2.5, "val/loss": 2.25, "lr": 0.1},
        {"step": 20, "train/loss": 1 / 3, "lr": 0.2, "attention/first_token/layer_0": 0.5},
        {"step": 30, "lr": 3.0, "norm": 0.5, "is_large": 1, "count": 3},
    ]


def test_rows_that_are_added_one_by_one_make_the_file_of_all_at_once_and_later_ones_are_appended(tmp_path, monkeypatch):
    rows = [{"step": 10, "lr": 1 / 3}, {"step": 20, "a, b": 1, "lr": 2.0}, {"step": 30, "lr": 3e-9}]
    one_by_one, at_once = tmp_path / "a.csv", tmp_path / "b.csv"
    add_rows(at_once, rows)
    for row in rows:
        if row["step"] == 30:
            monkeypatch.delattr("model.runs.records.write_metrics")  # which replaces the file
        add_rows(one_by_one, [row])
    assert one_by_one.read_text() == at_once.read_text()


def test_a_row_has_the_mean_loss_since_the_last_one_all_tokens_and_the_speed_since_the_clock_was_started(monkeypatch):
    """tests/model/training/test_module.py checks the learning rates."""
    trainer = SimpleNamespace(
        strategy=SimpleNamespace(reduce=lambda loss, reduce_op: loss, root_device=torch.device("cpu")),
        optimizers=[SimpleNamespace(param_groups=[{"lr": 0.1}, {"lr": 0.2}])],
        precision="32-true",
        datamodule=SimpleNamespace(windows_read=25, context_length=16),
    )
    clock = SimpleNamespace(perf_counter=lambda: clock.now, now=10)
    monkeypatch.setattr("model.runs.metrics.time", clock)
    measured = TrainingMetrics()

    def add(loss, tokens, seconds):
        measured.start_clock()
        clock.now += seconds
        measured.add(torch.tensor(loss), tokens)

    add(4.0, 100, 7)
    measured.stop_clock()
    clock.now += 99  # of a validation
    add(2.0, 300, 2)
    expected = {"tokens": 400, "train/loss": 2.5, "lr": 0.1, "tokens_per_second": 150}
    assert measured.take(trainer) == expected
    clock.now += 99
    add(0.5, 100, 1)
    add(0.5, 100, 1)
    assert measured.take(trainer) == expected | {"train/loss": 0.5, "tokens_per_second": 100}
    for loss in (math.inf, math.nan):
        add(loss, 1, 1)
        with mistake("training loss"):
            measured.take(trainer)


CALLBACKS = """
from lightning.pytorch.callbacks import Callback

class OwnFigure(Callback):
    def on_train_batch_end(self, trainer, module, *_):
        module.log("own/step", float(trainer.global_step))
"""


def test_figures_of_the_users_callbacks_are_in_the_row_of_their_step_even_after_a_resume(
    train, no_pages, here, monkeypatch
):
    """ModelCheckpoint without a folder saves into the run's, and any of its files can be resumed."""
    monkeypatch.syspath_prepend(here)
    Path("own_figures_of_tests.py").write_text(CALLBACKS)
    keep = "{class_path: ModelCheckpoint, init_args: {every_n_train_steps: 5, save_top_k: -1}}"
    names = ("own_figures_of_tests.OwnFigure", keep)
    options = ["--recording.enabled=false", *(f"--trainer.callbacks+={name}" for name in names)]
    assert train("--name=run", *options, "--trainer.log_every_n_steps=1") == 0
    rows = metrics("runs/run")
    assert [(int(row["step"]), float(row["own/step"])) for row in rows] == [(step, step) for step in range(1, 13)]
    saved = sorted(Path("runs/run/checkpoints").glob("epoch*"))
    assert [path.name for path in saved] == ["epoch=1-step=5.ckpt", "epoch=2-step=10.ckpt"]
    for path in saved:
        assert train(f"--resume={path}", *options) == 0
        assert metrics("runs/run") == rows
