"""Options and callbacks of Lightning's Trainer: those that are named as working do, and all others are refused."""

import re
import signal
from pathlib import Path

import lightning.pytorch.callbacks
import pytest
import torch
from lightning.pytorch import Callback

from model.checkpoint import read_checkpoint
from model.runs.comparison import compare
from model.runs.configs import parse
from model.runs.end_of_step import EndOfStep
from model.runs.trainer_options import BASES, CALLBACKS, OPTIONS, OTHERS, working_callbacks
from model.training.module import GPTModule
from tests.command_lines import mistake
from tests.small_runs import column
from tests.watching import before_call

pytestmark = pytest.mark.usefixtures("no_pages")

# A value of each option, and what it does to the Trainer or to torch.
USED = {
    "accelerator": ("cpu", lambda trainer: trainer.strategy.root_device.type == "cpu"),
    "accumulate_grad_batches": (2, lambda trainer: trainer.datamodule.windows_read == 4 * 2 * trainer.global_step),
    "benchmark": ("true", lambda _: torch.backends.cudnn.benchmark),
    "default_root_dir": ("~/elsewhere", lambda trainer: Path("elsewhere/run").samefile(trainer.default_root_dir)),
    "detect_anomaly": ("true", lambda _: torch.is_anomaly_enabled()),
    "deterministic": ("true", lambda _: torch.are_deterministic_algorithms_enabled()),
    "devices": (1, lambda trainer: trainer.num_devices == 1),
    "enable_progress_bar": ("false", lambda trainer: trainer.progress_bar_callback is None),
    "gradient_clip_algorithm": ("value", lambda trainer: trainer.gradient_clip_algorithm == "value"),
    "gradient_clip_val": (0.5, lambda trainer: trainer.gradient_clip_val == 0.5),
    "limit_val_batches": (1, lambda trainer: trainer.num_val_batches == [1]),
    "log_every_n_steps": (1, lambda trainer: trainer.log_every_n_steps == 1),
    "logger": (
        "{class_path: lightning.pytorch.loggers.CSVLogger, init_args: {save_dir: theirs}}",
        lambda trainer: len(trainer.loggers) == 2,  # metrics.csv's is the other
    ),
    "max_steps": (3, lambda trainer: trainer.global_step == 3),
    "num_nodes": (1, lambda trainer: trainer.num_nodes == 1),
    "precision": ("bf16-true", lambda trainer: trainer.model.gpt.lm_head.weight.dtype == torch.bfloat16),
    "profiler": ("simple", lambda trainer: "run_training_batch" in trainer.profiler.recorded_durations),
    "strategy": ("auto", lambda trainer: trainer.world_size == 1),
    "val_check_interval": (2, lambda trainer: trainer.current_epoch == 2),
}
ELSEWHERE = {"callbacks", "max_time"}  # below, and in tests/test_train.py


def test_each_option_that_works_does_what_it_says(train, monkeypatch):
    assert USED.keys() | ELSEWHERE == set(OPTIONS.split())
    deterministic, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    failed = []
    monkeypatch.setenv("HOME", str(Path.cwd()))

    def check(_, trainer, __):
        failed.extend(name for name, (_, holds) in USED.items() if not holds(trainer))

    before_call(monkeypatch.setattr, EndOfStep, "on_train_end", check)
    try:
        options = [f"--trainer.{name}={value}" for name, (value, _) in USED.items()]
        assert train("--name=run", *options) == 0
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.backends.cudnn.benchmark = benchmark
    assert not failed and [*column("elsewhere/run", "lr")] == [1, 2, 3]
    assert Path("theirs/lightning_logs").exists() and Path("elsewhere/run/fit-profile.txt").exists()


def test_every_other_option_gets_a_sentence(parser):
    for name in OTHERS:
        for source in ([f"--trainer.{name}=1"], f"trainer: {{{name}: 1}}"):
            with mistake(rf"{name}.*\)$"):
                parse(parser, source)
    assert "trainer.max_epochs" not in parser.format_help()


STOPPING = "{monitor: val/loss, patience: 1, min_delta: 100, check_on_train_epoch_end: %s}"
KEEPING = "{monitor: val/loss, save_top_k: -1, every_n_epochs: 2}"


BARS = ["RichProgressBar", "TQDMProgressBar"]


@pytest.mark.parametrize("at_epoch_end, bar", zip(["true", "null"], BARS, strict=True))
def test_each_callback_that_works_does_what_it_says(train, at_epoch_end, bar, capsys):
    """EarlyStopping stops after the second validation without a lower loss; the run says so and saves its count."""
    stopping = f"{{class_path: EarlyStopping, init_args: {STOPPING % at_epoch_end}}}"
    keeping = f"{{class_path: ModelCheckpoint, init_args: {KEEPING}}}"
    tested = [stopping, keeping, "LearningRateMonitor", bar, "Timer"]
    assert all(any(name in typed for typed in [*tested, *BARS]) for name in CALLBACKS.split())
    callbacks = [f"--trainer.callbacks+={typed}" for typed in tested] + ["--recording.enabled=false"]
    assert train("--name=run", "--trainer.log_every_n_steps=5", *callbacks) == 0
    shown = capsys.readouterr().out
    assert "4/4" in shown and "learning rate" in shown  # the bar; what becomes of it if the run is trained further
    assert re.match(r".* 8\b.*val/loss", shown.splitlines()[-1])
    saved = read_checkpoint(Path("runs/run/checkpoints/last.ckpt"))
    [counted] = [state for name, state in saved["callbacks"].items() if name.startswith("EarlyStopping")]
    assert (saved["global_step"], counted["wait_count"]) == (8, 1)
    assert [path.name for path in Path("runs/run/checkpoints").glob("epoch*")] == ["epoch=1-step=8.ckpt"]
    assert column("runs/run", "lr-MuonAdamW/embeddings")
    assert [*compare("runs/run").rows.index] == ["finished"]
    assert [*column("runs/run", "train/loss")] == [4, 5, 8]  # no step is missing in the figures of a run that stops


class OwnAveraging(lightning.pytorch.callbacks.WeightAveraging):
    pass


def test_every_other_callback_of_lightning_and_what_is_derived_from_one_is_refused():
    others = {*lightning.pytorch.callbacks.__all__} - {*CALLBACKS.split(), *BASES.split()}
    kinds = [getattr(lightning.pytorch.callbacks, name) for name in others]
    assert len(kinds) > 10
    for kind in [*kinds, OwnAveraging]:
        with mistake(r"trainer.callbacks: \w+ .*EarlyStopping"):
            working_callbacks([Callback(), kind.__new__(kind)])
    own = Callback()
    assert working_callbacks(own) == [own] and working_callbacks(None) == []


def test_slurm_does_not_requeue_a_job_whose_command_would_not_resume_it(train, monkeypatch):
    for name, value in {"NTASKS": 1, "JOB_NAME": "train", "JOB_ID": 1, "LOCALID": 0, "PROCID": 0, "NODEID": 0}.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    usual, during = signal.signal(signal.SIGUSR1, before := lambda *_: None), []  # as train.py does, as a program

    def receive(*_):
        signal.raise_signal(signal.SIGUSR1)  # the run's own handler then restores the one it has found
        during.append(signal.getsignal(signal.SIGUSR1))

    before_call(monkeypatch.setattr, GPTModule, "training_step", receive)
    assert train("--name=run", "--trainer.max_steps=2") == 128 + signal.SIGUSR1
    signal.signal(signal.SIGUSR1, usual)
    assert during == [before]
