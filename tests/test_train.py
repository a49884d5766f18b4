"""What a user does with train.py: train, stop and resume. test_train_mistakes.py has the mistakes."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import yaml
from lightning.pytorch.callbacks import Timer

from data.datamodule import TextDataModule
from model.checkpoint import load_gpt, read_checkpoint
from model.gpt import GPT, GPTConfig
from model.runs.run import Run
from model.training.module import GPTModule
from tests import programs
from tests.small_runs import EVENTFUL, REPOSITORY, assert_same, assert_same_run, final_state, metrics
from tests.watching import before_call
from train import main


def test_a_run_leaves_everything_in_its_folder(train, capsys):
    assert train("--name=first") == 0
    run = Path("runs/first")
    files = "attention checkpoints config.yaml metrics.csv report.html samples.jsonl"
    assert sorted(path.name for path in run.iterdir()) == files.split()
    rows = metrics(run)
    assert [int(row["step"]) for row in rows if row["train/loss"]] == [2, 4, 6, 8, 10, 12]
    assert [int(row["step"]) for row in rows if row["val/loss"]] == [4, 8, 12]
    assert [int(row["tokens"]) for row in rows if row["tokens"]] == [128, 256, 384, 512, 640, 768]
    losses = [float(row["train/loss"]) for row in rows if row["train/loss"]]
    assert losses[-1] < losses[0] - 0.5

    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert [sample["step"] for sample in samples] == [4, 8, 12]
    assert all(sample["text"] for sample in samples)
    recorded = [int(path.stem.removeprefix("step_")) for path in sorted((run / "attention").glob("*.npz"))]
    assert recorded == [0, 4, 8, 12]

    output = capsys.readouterr().out
    last = [row for row in rows if row["val/bits_per_byte"]][-1]
    assert f"{float(last['val/bits_per_byte']):.4f} bits per byte" in output
    assert "--resume runs/first" in output and output.count("runs/first/report.html") >= 2  # before and after

    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)  # plain data
    assert checkpoint["global_step"] == 12
    assert checkpoint["tokenizer"]["name"] == "bytes"
    assert checkpoint["gpt_config"]["vocab_size"] == 257
    assert checkpoint["optimizer_states"] and checkpoint["random_states"]
    gpt, info = load_gpt(run / "checkpoints" / "best.ckpt")
    assert info["global_step"] in (4, 8, 12)
    assert gpt.config.num_layers == 2


def test_the_printed_and_the_saved_config_repeat_the_run_exactly(train, capsys):
    assert train("--model.gpt.logit_soft_cap=null", "--print_config") == 0
    assert not Path("runs").exists()
    printed = capsys.readouterr().out
    assert train("--name=first", "--model.gpt.logit_soft_cap=null") == 0
    saved = Path("runs/first/config.yaml")
    assert saved.read_text() == printed
    settings = yaml.safe_load(printed)
    assert "name" not in settings and settings["model"]["gpt"]["logit_soft_cap"] is None
    assert main([f"--config={saved}", "--name=second"]) == 0
    assert metrics("runs/first") == metrics("runs/second")


LITTLE = ["--attention.enabled=false", "--trainer.limit_val_batches=1", "--trainer.val_check_interval=6"]


@pytest.fixture
def in_batch(monkeypatch):
    """Calls an action at the beginning of the n-th training step, or of each."""
    return partial(before_call, monkeypatch.setattr, GPTModule, "training_step")


@pytest.mark.usefixtures("no_pages")
@pytest.mark.parametrize(
    ("batch", "signum", "saved_step", "workers", "precision"),
    [
        (1, signal.SIGTERM, 1, 0, "32-true"),
        (9, signal.SIGINT, 5, 2, "32-true"),
        (16, signal.SIGTERM, 8, 1, "bf16-mixed"),  # during a validation
    ],
)
def test_a_stopped_run_resumes_bit_for_bit(
    train, trained, in_batch, capsys, batch, signum, saved_step, workers, precision
):
    """With any number of loader processes, which are ended too."""
    options = [*EVENTFUL, f"--trainer.precision={precision}"]
    whole = trained(*options)
    in_batch(lambda *_: os.kill(os.getpid(), signum), batch)
    assert train("--name=stopped", *options, f"--data.num_workers={workers}") == 128 + signum
    assert not multiprocessing.active_children()
    assert "python train.py --resume runs/stopped" in capsys.readouterr().err
    assert final_state("runs/stopped")["global_step"] == saved_step
    assert train("--resume=runs/stopped") == 0
    assert_same_run(whole, "runs/stopped")


@pytest.mark.usefixtures("no_pages", "own_threads")
def test_a_run_with_two_threads_resumes_bit_for_bit(train, in_batch):
    """With sums that are large enough to be split over threads. Few of them: beside other programs they are slow."""
    torch.set_num_threads(2)
    wide = ["--model.gpt.embed_dim=128", "--model.gpt.context_length=64", "--data.batch_size=16"]
    wide += ["--trainer.max_steps=3", *LITTLE]
    assert train("--name=whole", *wide) == 0
    in_batch(lambda *_: os.kill(os.getpid(), signal.SIGTERM), 2)
    assert train("--name=stopped", *wide) == 128 + signal.SIGTERM
    assert train("--resume=runs/stopped") == 0
    assert_same(final_state("runs/whole"), final_state("runs/stopped"))


@pytest.mark.usefixtures("no_pages")
def test_a_time_limit_lets_an_accumulated_step_end_and_is_one_for_each_call(train, trained, in_batch, monkeypatch):
    whole, elapsed, batches = trained(*EVENTFUL), [0.0], []
    monkeypatch.setattr(Timer, "time_elapsed", lambda self, *_: self._offset + elapsed[-1])  # in earlier calls and this
    in_batch(lambda *_: elapsed.append(7200.0), 9)
    in_batch(lambda *_: batches.append(None))
    assert train("--name=limited", *EVENTFUL, "--trainer.max_time=00:01:00:00") == 0
    assert final_state("runs/limited")["global_step"] == 5
    assert len(batches) == 10
    elapsed.append(0.0)
    assert train("--resume=runs/limited") == 0
    assert_same(final_state(whole), final_state("runs/limited"))


OTHER_SIZES = {
    "larger batches": ([], ["--data.batch_size=8"]),
    "no longer accumulated": (["--trainer.accumulate_grad_batches=2"], ["--trainer.accumulate_grad_batches=1"]),
}


@pytest.fixture
def read(monkeypatch, no_pages) -> list[torch.Tensor]:
    """Collects the windows (T,) that training reads, in order."""
    windows: list[torch.Tensor] = []
    step = "training_step"
    before_call(monkeypatch.setattr, GPTModule, step, lambda _, batch, number: windows.extend(batch["tokens"]))
    return windows


def first_windows(small_text: Path, number: int, **options) -> torch.Tensor:
    """The first windows that a run on this text reads if it is never stopped."""
    options |= {"files": str(small_text), "tokenizer": "bytes", "cache_dir": "cache", "context_length": 16}
    data = TextDataModule(**options, batch_size=number)
    data.setup()
    return next(iter(data.train_dataloader()))["tokens"]


@pytest.mark.parametrize("sizes", OTHER_SIZES)
def test_a_resumed_run_reads_on_where_it_stopped_also_with_another_batch_size(train, read, small_text, sizes):
    before, after = OTHER_SIZES[sizes]
    assert train("--name=run", "--data.repeat_fraction=0.2", "--trainer.max_steps=6", *LITTLE, *before) == 0
    assert train("--resume=runs/run", "--trainer.max_steps=9", *after) == 0
    assert len(read) > 6 * 4
    assert torch.equal(torch.stack(read), first_windows(small_text, len(read), repeat_fraction=0.2))


def test_a_checkpoint_without_the_windows_read_counts_them_from_its_steps(train, read, small_text):
    """As in checkpoints of earlier versions."""
    assert train("--name=run", "--trainer.max_steps=6", *LITTLE) == 0
    state = read_checkpoint(Path("runs/run/checkpoints/last.ckpt"))
    del state["TextDataModule"]["windows_read"]
    torch.save(state, "runs/run/checkpoints/last.ckpt")
    assert train("--resume=runs/run", "--trainer.max_steps=8") == 0
    assert torch.equal(torch.stack(read), first_windows(small_text, 8 * 4))


@pytest.mark.usefixtures("no_pages")
def test_a_resumed_run_overrides_and_lengthens(train):
    assert train("--name=run", "--model.schedule.decay=none") == 0
    others = ["--model.optimizer.learning_rate=0.001", "--model.gpt.dropout=0.2"]
    assert train("--resume=runs/run", "--trainer.max_steps=20", *others) == 0
    rows = [row for row in metrics("runs/run") if row["train/loss"]]
    assert [int(row["step"]) for row in rows] == list(range(2, 21, 2))
    assert {float(row["lr"]) for row in rows[6:]} == {0.001}
    assert yaml.safe_load(Path("runs/run/config.yaml").read_text())["trainer"]["max_steps"] == 20


def steps_of(run):
    return {path.stem: read_checkpoint(path)["global_step"] for path in Path(run, "checkpoints").glob("*.ckpt")}


@pytest.mark.usefixtures("no_pages")
@pytest.mark.parametrize("kept", [0, 3])  # steps that were not validated
def test_a_run_resumed_at_an_earlier_step_deletes_what_came_after_it(train, trained, monkeypatch, kept):
    """Also if it is killed at once. It ends as the run that was not resumed."""
    options = ["--checkpoints.keep_steps=[0,3,4,8,12,99]"]
    whole = trained(*options)
    assert steps_of(whole)["best"] == 12
    shutil.copytree(whole, "runs/run")
    with monkeypatch.context() as killed, pytest.raises(ValueError):
        before_call(killed.setattr, GPTModule, "training_step", Mock(side_effect=ValueError))
        train(f"--resume=runs/run/checkpoints/step_{kept:08d}.ckpt")
    later = {f"step_{step:08d}": step for step in (0, 3, 4, 8, 12) if step <= kept} | {"last": kept}
    assert steps_of("runs/run") == later
    assert max(int(row["step"]) for row in metrics("runs/run")) <= kept
    assert Run(Path("runs/run")).resumed.name == "last.ckpt"
    assert train("--resume=runs/run") == 0
    assert steps_of("runs/run") == steps_of(whole)
    assert_same_run(whole, "runs/run")


@pytest.mark.usefixtures("no_pages")
def test_a_run_resumed_without_a_best_checkpoint_gets_the_best_of_what_follows(train, trained):
    """Though its loss was lower before, with weights that are gone."""
    finished_run = Path(shutil.copytree(trained("--checkpoints.keep_steps=[0,3,4,8,12,99]"), "runs/run"))
    worse = ["--model.optimizer.learning_rate=0", "--model.optimizer.matrix_learning_rate=0"]  # the loss stays
    assert train("--resume=runs/run/checkpoints/step_00000008.ckpt", *worse, "--trainer.max_steps=10") == 0
    assert steps_of("runs/run")["best"] == 10
    (finished_run / "checkpoints/best.ckpt").unlink()
    assert train("--resume=runs/run", *worse, "--trainer.max_steps=11") == 0
    assert steps_of("runs/run")["best"] == 11


def test_a_model_that_training_makes_worse_is_the_best_of_its_run(train, finished_run, capsys):
    worse = ["--model.optimizer.learning_rate=5", "--model.optimizer.matrix_learning_rate=5"]
    assert train("--model.init_from=runs/run", "--name=new", *worse, "--trainer.max_steps=4") == 0
    assert steps_of("runs/new")["best"] == 0 and ", best " in capsys.readouterr().out
    assert metrics("runs/new")[0]["val/loss"] == metrics(finished_run)[-1]["val/loss"]


def test_weights_that_are_not_finite_are_never_saved(train, monkeypatch, capsys):
    """The loss stays finite here: the weight belongs to a token that never occurs."""

    def spoil(self, *args):
        with torch.no_grad():
            self.gpt.token_embedding.weight[0, 0] = torch.nan

    monkeypatch.setattr(GPTModule, "on_train_batch_start", spoil)
    assert train("--name=run", "--checkpoints.every_n_steps=1") == 2
    assert "nan" in capsys.readouterr().err.splitlines()[-1]
    assert not list(Path("runs/run/checkpoints").glob("*"))


def test_a_run_resumed_on_another_text_warns(train, finished_run, small_text, caplog):
    assert train("--resume=runs/run", "--trainer.max_steps=13") == 0
    assert not caplog.messages
    lines = small_text.read_text().splitlines()
    Path("other.txt").write_text("\n".join([lines[0].upper(), *lines[1:]]))
    assert train("--resume=runs/run", "--trainer.max_steps=14", "--data.files=other.txt") == 0
    assert "text" in caplog.messages[0]


def test_a_run_with_several_options_of_lightnings_trainer(train):
    options = ["--trainer.precision=bf16-true", "--trainer.logger=true", "--trainer.profiler=simple"]
    assert train(*options, "--trainer.max_steps=4") == 0
    [run] = Path("runs").iterdir()
    assert run.name.startswith("debug-")  # named after its config
    assert (run / "report.html").exists() and "run_training_batch" in (run / "fit-profile.txt").read_text()
    before = sorted(Path().rglob("*"))
    assert train("--trainer.fast_dev_run=true") == 0
    assert sorted(Path().rglob("*")) == before  # no run that a script would take for the newest
    assert train(f"--resume={run}", "--trainer.fast_dev_run=true") == 2


@pytest.mark.parametrize("config", sorted((REPOSITORY / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_trains(train, config):
    shrunk = ["--data.dataset=null", "--data.dataset_config=null", "--data.validation_fraction=0.1"]
    shrunk += ["--data.num_workers=0", "--model.gpt.num_layers=2", "--model.gpt.num_heads=2", "--model.init_from=null"]
    shrunk += ["--trainer.accelerator=cpu", "--trainer.precision=bf16-mixed"]  # as on a GPU
    shrunk += ["--trainer.accumulate_grad_batches=1", "--trainer.max_steps=2", "--wandb=disabled", "--name=run"]
    assert train(f"--config={config}", *shrunk) == 0
    assert Path("runs/run/checkpoints/best.ckpt").exists()
    options = yaml.safe_load(config.read_text(encoding="utf-8"))["model"]["gpt"] | {"vocab_size": 50257}
    with torch.device("meta"):  # at its own size
        gpt = GPT(GPTConfig(**options))
    assert config.stem != "gpt2_124m" or gpt.num_parameters() == 124_439_808  # as published


@pytest.mark.slow
def test_neither_the_locale_nor_a_closed_standard_output_matters(here, small_options):
    """Samples in any language are written and read back. In a new process: Python reads its locale when it starts."""
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    options = [*small_options, "--name=run", "--trainer.max_steps=4"]
    program = programs.start("train.py", *options, env=environment, stderr=subprocess.PIPE)
    program.stdout.close()
    error = program.stderr.read()
    assert program.wait() == 0 and "ipe" not in error, error
    assert Path("runs/run/report.html").exists()
    assert not Path("runs/run/samples.jsonl").read_text(encoding="utf-8").isascii()


@pytest.mark.slow
def test_two_devices_give_the_losses_of_one_and_resume_between_two_rows(train, trained, here):
    """One device begins a run, two continue it and one ends it: the losses are those of one device, in float32.

    Each device has its own sum of the losses since the last row, and the first row after a resume needs all of them.
    """
    # AdamW, because Muon's products in bfloat16 differ more by rounding.
    options = ["--model.optimizer.algorithm=adamw", "--model.optimizer.learning_rate=0.001"]
    options += ["--model.schedule.decay=none", "--trainer.log_every_n_steps=6", "--trainer.val_check_interval=6"]
    two_devices = ["--trainer.devices=2", "--trainer.strategy=ddp", "--checkpoints.keep_steps=[10]"]
    whole = trained(*options, "--trainer.max_steps=24")
    shutil.copytree(trained(*options, "--trainer.max_steps=6"), "runs/two")
    rows = []
    for start in ("runs/two", "runs/two/checkpoints/step_00000010.ckpt"):
        programs.run("train.py", f"--resume={start}", *two_devices, "--trainer.max_steps=18")
        rows.append(metrics("runs/two"))
    assert rows[0] == rows[1] and [row["step"] for row in rows[0] if row["train/loss"]] == ["6", "12", "18"]
    assert train("--resume=runs/two", "--trainer.devices=1", "--trainer.strategy=auto", "--trainer.max_steps=24") == 0
    one, two = metrics(whole), metrics("runs/two")
    for column in ("train/loss", "val/loss"):
        expected = {row["step"]: float(row[column]) for row in one if row[column]}
        assert {row["step"]: float(row[column]) for row in two if row[column]} == pytest.approx(expected, abs=1e-5)
    assert [row["tokens"] for row in one if row["tokens"]] == [row["tokens"] for row in two if row["tokens"]]
