"""What a run says of itself before its first step, and while it trains."""

import re
import sys
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import Timer

from model.checkpoint import load_gpt


def first_lines(capsys, train, *options):
    assert train(*options) == 0
    return capsys.readouterr().out.splitlines()[:2]


def test_a_runs_first_lines_name_the_model_the_device_the_precision_and_the_corpus(train, small_text, capsys):
    options = ("--trainer.max_steps=1", "--trainer.precision=bf16-mixed", "--model.gpt.tie_embeddings=true")
    model, corpus = first_lines(capsys, train, "--name=run", *options)
    gpt, _ = load_gpt("runs/run/checkpoints/last.ckpt")
    size = sum(weight.numel() for weight in set(gpt.parameters()))
    assert re.fullmatch(rf"runs/run: {size:,} parameters, on cpu with \d+ threads, precision bf16-mixed", model)
    told = r"words: (\S+) tokens to train on and (\S+) to validate, from a vocabulary of 257 \(bytes\)"
    counts = re.fullmatch(told, corpus)
    num_tokens = sum(int(count.replace(",", "")) for count in counts.groups())
    assert 0 <= num_tokens - small_text.stat().st_size <= 4  # a token a byte, and the ends of the documents


def test_a_resumed_run_says_it_again_and_without_progress_nothing_is_said(train, finished_run, capsys):
    model, corpus = first_lines(capsys, train, "--resume=runs/run", "--trainer.max_steps=13")
    assert model.startswith("runs/run: ") and corpus.startswith("words: ")
    quiet = "--trainer.enable_progress_bar=false"
    assert not any("parameters" in line for line in first_lines(capsys, train, "--resume=runs/run", quiet))


def test_without_a_terminal_a_validation_is_a_line_and_with_one_there_is_lightnings_bar(train, monkeypatch, capsys):
    assert train("--name=run") == 0
    lines = capsys.readouterr().out.splitlines()
    validated = [line for line in lines if line.startswith("step ")]
    assert [line.split(":")[0] for line in validated] == [f"step {step} of 12" for step in (4, 8, 12)]
    assert all("train/loss" in line and "val/bits_per_byte" in line for line in validated)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert train("--resume=runs/run", "--trainer.max_steps=16", "--trainer.accumulate_grad_batches=2") == 0
    shown = capsys.readouterr().out
    assert "| 8/8 [" in shown and "step=16" in shown  # four steps of two batches
    assert any(line.startswith("step 16 of 16") for line in re.split("[\r\n]", shown))


def test_a_bar_of_the_persons_own_takes_the_place_of_ours(train, capsys):
    assert train("--trainer.callbacks+=TQDMProgressBar", "--trainer.max_steps=2") == 0
    assert "2/2 [" in capsys.readouterr().out


STOPPING = "{class_path: EarlyStopping, init_args: {monitor: val/loss, patience: 1, min_delta: 100.0}}"
WHY = {f"--trainer.callbacks+={STOPPING}": "val/loss did not improve", "--trainer.max_time=00:00:00:01": "max_time"}


@pytest.mark.parametrize("option", WHY)
def test_a_run_that_ends_early_says_why(train, monkeypatch, capsys, option):
    monkeypatch.setattr(Timer, "time_elapsed", lambda self, *_: 2.0 * ("runs/run" in str(list(Path().glob("runs/*")))))
    assert train("--name=run", option) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.match(r"ended after step \d+: ", last) and WHY[option] in last
