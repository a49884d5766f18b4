"""What a run writes to the terminal while it trains; test_train.py has what it writes where there is none."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from model.runs.progress import progress_line
from tests.command_lines import last_error, tells
from tests.html_pages import Page

EACH_STEP = ["--recording.every_n_steps=1", "--trainer.log_every_n_steps=1"]


def test_on_a_terminal_there_is_a_bar_and_a_line_for_each_recording_and_without_the_bar_the_lines(
    train, finished_run, monkeypatch, capsys
):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert train("--resume=runs/run", "--trainer.max_steps=16", "--trainer.accumulate_grad_batches=2") == 0
    shown = capsys.readouterr().out
    assert re.search("runs/run: .*\nwords: ", shown)  # a resumed run repeats its first lines
    assert "| 13/16 [" in shown and "| 16/16 [" in shown  # steps, of two batches each
    assert any(line.startswith("step 16 of 16") for line in re.split("[\r\n]", shown))
    assert train("--resume=runs/run", "--trainer.max_steps=18", "--trainer.enable_progress_bar=false", *EACH_STEP) == 0
    shown = capsys.readouterr().out
    assert re.search("words: (.*\n)*step 17 of 18: train/loss [^v]*\nstep 18.* val/", shown) and "18/18" not in shown


def test_figures_have_four_digits_or_more():
    module = SimpleNamespace(validation_metrics={"val/loss": 1.23456})
    on_bar = {"tokens_per_second": torch.tensor(51340.4)}
    trainer = SimpleNamespace(global_step=3, max_steps=-1, progress_bar_metrics=on_bar, lightning_module=module)
    assert tells(progress_line(trainer, is_validated=True), "step 3 tokens_per_second 51,340 val/loss 1.235")


def test_the_command_in_the_last_lines_quotes_the_path_and_the_last_page_says_that_the_run_has_ended(train, capsys):
    assert train("--name=my run", "--trainer.max_steps=1", "--recording.enabled=false") == 0
    assert "--resume 'runs/my run' --trainer.max_steps" in capsys.readouterr().out
    assert Page(Path("runs/my run/report.html")).data["status"]["state"] == "ended"


@pytest.mark.parametrize("max_steps", [5, 12])
def test_a_resumed_run_that_has_reached_its_last_step_says_that_nothing_was_trained(
    train, finished_run, capsys, max_steps
):
    assert train("--resume=runs/run", f"--trainer.max_steps={max_steps}") == 0
    [said] = capsys.readouterr().out.splitlines()
    assert tells(said, f"nothing 12 trainer.max_steps {max_steps}")


def test_a_metric_to_monitor_that_is_not_logged_gets_a_sentence(train, capsys):
    assert train("--trainer.callbacks+={class_path: EarlyStopping, init_args: {monitor: val_loss}}") == 2
    assert re.match(r"train.py: .*val_loss.*val/loss", last_error(capsys))
