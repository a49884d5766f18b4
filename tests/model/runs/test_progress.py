"""What a run writes to the terminal while it trains; test_train.py has what it writes where there is none."""

import re
import sys

import pytest

from tests.command_lines import last_error, tells


def test_on_a_terminal_there_is_a_bar_and_a_line_for_each_validation_and_without_progress_nothing(
    train, finished_run, monkeypatch, capsys
):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert train("--resume=runs/run", "--trainer.max_steps=16", "--trainer.accumulate_grad_batches=2") == 0
    shown = capsys.readouterr().out
    assert re.search("runs/run: .*\nwords: ", shown)  # a resumed run repeats its first lines
    assert "| 13/16 [" in shown and "| 16/16 [" in shown  # steps, of two batches each
    assert any(line.startswith("step 16 of 16") for line in re.split("[\r\n]", shown))
    assert train("--resume=runs/run", "--trainer.max_steps=18", "--trainer.enable_progress_bar=false") == 0
    assert not re.search("words: |step 18", capsys.readouterr().out)


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
