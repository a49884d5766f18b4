"""What a run says of itself before its first step, and while it trains."""

import io
import re
import sys
from types import SimpleNamespace

import pytest
import torch

from model.checkpoint import load_gpt
from model.runs import progress
from model.runs.progress import Progress


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


@pytest.fixture
def started(monkeypatch):
    """Starts at a step, 100 seconds ago."""

    def start(step: int, max_steps: int) -> tuple[Progress, SimpleNamespace]:
        trainer = SimpleNamespace(is_global_zero=True, global_step=step, max_steps=max_steps)
        shown = Progress()
        monkeypatch.setattr(progress, "opening", lambda trainer: "")
        monkeypatch.setattr(progress.time, "monotonic", lambda: 1000.0)
        shown.start(trainer)
        monkeypatch.setattr(progress.time, "monotonic", lambda: 1100.0)
        return shown, trainer

    return start


FIGURES = {"train/loss": 2.3454, "val/bits_per_byte": 1.8966, "tokens_per_second": 51_340.0, "mfu": 0.347, "lr": 0.1}


@pytest.mark.parametrize(
    ("first", "step", "max_steps", "figures", "told"),
    [
        # 660 steps at 3 a second are left
        (0, 300, 960, FIGURES, ["step 300/960", "loss 2.345", "1.897 bits", "51,340 tokens", "35% MFU", "03:40 left"]),
        (200, 300, 960, {}, ["11:00 left"]),  # a resumed run has made 100 of them
        (0, 0, 960, {}, ["step   0/960"]),
        (0, 1, 1, {}, ["00:00 left"]),
        (0, 7, -1, {}, ["step 7"]),
    ],
)
def test_a_line_shows_what_is_known_and_the_time_left(started, capsys, first, step, max_steps, figures, told):
    shown, trainer = started(first, max_steps)
    trainer.global_step = step
    capsys.readouterr()
    shown.figures = figures
    shown.report(trainer)
    line = capsys.readouterr().out
    assert line.count("\n") == 1 and all(part in line for part in told)
    assert ("left" in line) == any("left" in part for part in told) and ("loss" in line) == bool(figures)


def test_the_bar_is_on_a_terminal_and_moves_with_the_steps(started, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    sys.stderr.isatty = lambda: True
    shown, trainer = started(200, 960)
    shown.figures = {"train/loss": 2.0}
    for trainer.global_step in (201, 240):
        shown.refresh(trainer)
        assert (shown.bar.n, shown.bar.total) == (trainer.global_step, 960)
    assert shown.bar.desc.startswith("step 240/960  loss 2.000")
    shown.bar.close()
    assert sys.stderr.getvalue().endswith("\r")  # nothing of it stays
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert started(0, 960)[0].bar.disable


def test_other_ranks_say_nothing(started, capsys):
    shown, trainer = started(0, 960)
    trainer.is_global_zero = False
    shown.start(trainer)
    capsys.readouterr()
    shown.report(trainer)
    assert shown.bar.disable and capsys.readouterr() == ("", "")


PLACES = [("cpu", 1, "cpu with 3 threads"), ("cuda", 1, "Some GPU")]


@pytest.mark.parametrize(("device", "devices", "place"), [*PLACES, ("cuda", 8, "8 x Some GPU")])
def test_the_first_line_names_the_device(monkeypatch, device, devices, place):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    part = SimpleNamespace(name="any", num_parameters=lambda: 12_345, num_tokens=1000, vocab_size=257)
    data = SimpleNamespace(corpus=part, tokenizer=part, tokenized=SimpleNamespace(train=part, validation=part))
    strategy = SimpleNamespace(root_device=torch.device(device))
    trainer = SimpleNamespace(lightning_module=SimpleNamespace(gpt=part), datamodule=data, strategy=strategy)
    trainer.world_size, trainer.default_root_dir, trainer.precision = devices, "runs/a", "32-true"
    first, _, watch = progress.opening(trainer).splitlines()
    assert "runs/a/report.html" in watch
    assert all(part in first for part in ("runs/a", "12,345 parameters", f"on {place},", "32-true"))
