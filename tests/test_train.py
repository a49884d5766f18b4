"""What a user does with train.py: train, stop, resume, and find every file, weight and figure as it should be."""

import importlib
import re
import shlex
import shutil
import signal
import socket
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
from model.inspection.recording import Recording
from model.runs.code import read_code
from model.runs.end_of_step import EndOfStep
from model.runs.records import read_lines
from model.runs.run import Run
from model.training.module import GPTModule
from tests import programs
from tests.command_lines import check_mistakes, last_error, tells
from tests.html_pages import Page
from tests.programs import REPOSITORY
from tests.small_runs import EVENTFUL, assert_same, assert_same_run, column, final_state, metrics
from tests.watching import before_call
from train import main


def test_a_run_leaves_everything_in_its_folder_tells_of_itself_and_opens_no_connection(train, monkeypatch, capsys):
    network = Mock(side_effect=OSError("the network is off"))
    monkeypatch.setattr(socket.socket, "connect", network)
    monkeypatch.setattr(socket, "getaddrinfo", network)
    assert train("--name=first") == 0
    run = Path("runs/first")
    files = "attention checkpoints code.json config.yaml metrics.csv report.html samples.jsonl state.json"
    assert sorted(path.name for path in run.iterdir()) == files.split() and not network.called
    losses = column(run, "train/loss")
    assert [*column(run, "val/loss")] == [4, 8, 12] and losses[12] < losses[2] - 0.5
    assert column(run, "tokens")[12] == 12 * 4 * 16
    assert [sample["step"] for sample in read_lines(run / "samples.jsonl") if sample["text"]] == [4, 8, 12]
    assert Recording.open(run / "attention").steps == [0, 4, 8, 12]
    checkpoint = torch.load(run / "checkpoints/last.ckpt", weights_only=True)  # it is plain data
    assert checkpoint["global_step"] == 12 and checkpoint["tokenizer"]["name"] == "bytes"
    gpt, _ = load_gpt(run)

    output = capsys.readouterr().out
    model, corpus, *lines = output[output.index("runs/first: ") :].splitlines()  # after what you have changed
    assert re.match(rf"runs/first: {gpt.num_parameters():,} .* \d+ threads.* 32-true", model)
    assert tells(corpus, "words bytes 257")
    validated = [line for line in lines if tells(line, "train/loss val/bits_per_byte")]  # without a terminal one each
    assert [line.split(":")[0] for line in validated] == [f"step {step} of 12" for step in (4, 8, 12)]
    assert f"{column(run, 'val/bits_per_byte')[12]:.4f} bits per byte" in output
    assert "--resume runs/first" in output and output.count("runs/first/report.html") >= 2  # before and after


def test_the_printed_and_the_saved_config_repeat_the_run_to_the_last_digit(train, capsys):
    options = ["--model.gpt.logit_soft_cap=null", "--trainer.max_steps=4"]
    assert train(*options, "--print_config") == 0
    assert not Path("runs").exists()
    printed = capsys.readouterr().out
    assert train(*options, "--name=first") == 0
    saved = Path("runs/first/config.yaml")
    assert saved.read_text() == printed
    settings = yaml.safe_load(printed)
    assert "name" not in settings and settings["model"]["gpt"]["logit_soft_cap"] is None
    assert main([f"--config={saved}", "--name=second"]) == 0
    assert metrics("runs/first") == metrics("runs/second")


KEPT = "--checkpoints.keep_steps=[0,3,4,8,12,99]"
LITTLE = ["--recording.enabled=false", "--trainer.limit_val_batches=1", "--trainer.val_check_interval=6"]


@pytest.fixture
def in_batch(monkeypatch):
    """Calls an action in the n-th training batch, or in every batch."""
    return partial(before_call, monkeypatch.setattr, GPTModule, "training_step")


# Matrices that are large enough for two threads to share, and few steps: others slow them down.
WIDE = ["--model.gpt.embed_dim=128", "--model.gpt.context_length=64", "--data.batch_size=16", "--trainer.max_steps=3"]
WIDE += LITTLE
STOPS = [  # the batch, the signal, the step that is saved, threads and options
    (1, signal.SIGTERM, 1, 1, EVENTFUL),
    (9, signal.SIGINT, 5, 1, EVENTFUL),
    (16, signal.SIGUSR1, 8, 1, [*EVENTFUL, "--trainer.precision=bf16-mixed"]),  # before a validation
    (2, signal.SIGTERM, 2, 2, WIDE),
]


@pytest.mark.usefixtures("no_pages")
@pytest.mark.parametrize("batch, signum, saved_step, threads, options", STOPS)
def test_a_stopped_run_resumes_bit_for_bit(
    train, trained, in_batch, capsys, batch, signum, saved_step, threads, options
):
    torch.set_num_threads(threads)
    whole = trained(*options)
    in_batch(lambda *_: signal.raise_signal(signum), batch)
    assert train("--name=stopped", *options) == 128 + signum
    assert "python train.py --resume runs/stopped" in capsys.readouterr().err
    assert final_state("runs/stopped")["global_step"] == saved_step
    assert train("--resume=runs/stopped") == 0
    assert_same_run(whole, "runs/stopped")


@pytest.mark.usefixtures("no_pages")
def test_max_time_ends_a_run_after_a_whole_step_and_counts_from_the_start_of_each_call(
    train, trained, in_batch, monkeypatch, capsys
):
    whole, elapsed = trained(*EVENTFUL), [0.0]
    # _offset is the time of earlier calls.
    monkeypatch.setattr(Timer, "time_elapsed", lambda self, *_: self._offset + elapsed[-1])
    in_batch(lambda *_: elapsed.append(7200.0), 9)  # the first of the two batches of step 5
    assert train("--name=limited", *EVENTFUL, "--trainer.max_time=00:01:00:00", "--recording.enabled=false") == 0
    assert final_state("runs/limited")["global_step"] == 5
    assert tells(capsys.readouterr().out.splitlines()[-1], "5 trainer.max_time")
    assert Run(Path("runs/limited")).state == "stopped"
    elapsed.append(0.0)
    assert train("--resume=runs/limited") == 0
    assert_same(final_state(whole), final_state("runs/limited"))


@pytest.mark.usefixtures("no_pages")
def test_a_resumed_run_continues_reading_where_it_stopped_with_any_batch_size(train, in_batch, small_text):
    read = []
    in_batch(lambda _, batch, __: read.extend(batch["tokens"]))
    before = ["--trainer.accumulate_grad_batches=2", "--data.repeat_fraction=0.2", "--trainer.max_steps=6"]
    assert train("--name=run", *before, *LITTLE) == 0
    after = ["--trainer.accumulate_grad_batches=1", "--data.batch_size=8", "--trainer.max_steps=9"]
    assert train("--resume=runs/run", *after) == 0
    assert len(read) > 6 * 8
    options = {"files": str(small_text), "tokenizer": "bytes", "cache_dir": "cache", "context_length": 16}
    data = TextDataModule(**options, repeat_fraction=0.2, batch_size=len(read))
    data.setup()
    assert torch.equal(torch.stack(read), next(iter(data.train_dataloader()))["tokens"])


def steps_of(run):
    return {path.stem: read_checkpoint(path)["global_step"] for path in Path(run, "checkpoints").glob("*.ckpt")}


@pytest.mark.usefixtures("no_pages")
@pytest.mark.parametrize("kept", [0, 3])  # steps without a validation
def test_a_run_resumed_at_an_earlier_step_deletes_what_came_after_it(train, trained, monkeypatch, kept):
    """Even if it is killed at once. It ends in the same weights and figures."""
    whole = trained(KEPT)
    assert steps_of(whole)["best"] == 12
    shutil.copytree(whole, "runs/run")
    with monkeypatch.context() as killed, pytest.raises(ValueError):
        before_call(killed.setattr, GPTModule, "training_step", Mock(side_effect=ValueError))
        train(f"--resume=runs/run/checkpoints/step_{kept:08d}.ckpt")
    later = {f"step_{step:08d}": step for step in (0, 3, 4, 8, 12) if step <= kept} | {"last": kept}
    assert steps_of("runs/run") == later
    assert max(int(row["step"]) for row in metrics("runs/run")) <= kept
    recorded = Recording.open(Path("runs/run/attention")).steps
    assert recorded == [step for step in (0, 3) if step <= kept]
    assert len([*Path("runs/run/attention").glob("*.npz")]) == len(recorded)
    assert Run(Path("runs/run")).resumed.name == "last.ckpt"
    assert train("--resume=runs/run") == 0
    assert steps_of("runs/run") == steps_of(whole)
    assert_same_run(whole, "runs/run")


@pytest.mark.usefixtures("no_pages")
@pytest.mark.parametrize("kept, best", [(8, 8), (3, 4)])  # 3 has no validation
def test_of_what_is_left_the_best_is_the_resumed_checkpoint_or_one_that_follows(train, trained, kept, best):
    """However low the loss was later, of weights that are gone."""
    shutil.copytree(trained(KEPT), "runs/run")
    worse = ["--model.optimizer.rate_scale=0", "--trainer.max_steps=10"]  # not better than before
    assert train(f"--resume=runs/run/checkpoints/step_{kept:08d}.ckpt", *worse) == 0
    assert steps_of("runs/run")["best"] == best


def test_the_initial_model_is_the_best_where_training_makes_it_worse(train, finished_run, capsys):
    """Its options may be null where this is the default, whatever the model has."""
    worse = ["--model.optimizer.rate_scale=500", "--model.gpt.window=null", "--model.gpt.num_kv_heads=null"]
    assert train("--model.init_from=runs/run", "--name=new", *worse, "--trainer.max_steps=4") == 0
    assert steps_of("runs/new")["best"] == 0
    loss = column("runs/new", "val/loss")[0]
    assert loss == column(finished_run, "val/loss")[12] and f"val/loss {loss:.4g}" in capsys.readouterr().out
    assert "runs/run" in Page(Path("runs/new/report.html")).data["learning"]["story"]


def test_weights_that_are_not_finite_are_never_saved(train, monkeypatch, capsys):
    """Here the loss is finite when the run would be saved: the weight belongs to a token that never occurs."""

    def spoil(self, *args):
        with torch.no_grad():
            self.gpt.token_embedding.weight[0, 0] = torch.nan

    monkeypatch.setattr(GPTModule, "on_train_batch_start", spoil)
    assert train("--name=run", "--checkpoints.every_n_steps=1") == 2
    assert "weight" in last_error(capsys)
    assert not list(Path("runs/run/checkpoints").glob("*"))


@pytest.mark.parametrize("config", sorted((REPOSITORY / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_trains(train, config):
    # In the precision of a GPU.
    shrunk = """--data.dataset=null --data.dataset_config=null --data.validation_fraction=0.1
        --model.gpt.num_layers=2 --model.gpt.num_heads=2 --model.init_from=null --wandb=disabled --name=run
        --trainer.accelerator=cpu --trainer.precision=bf16-mixed --trainer.accumulate_grad_batches=1
        --trainer.max_steps=2 --data.validation_batch_size=4 --trainer.limit_val_batches=1"""
    assert train(f"--config={config}", *shrunk.split()) == 0
    assert Path("runs/run/checkpoints/best.ckpt").exists()
    options = yaml.safe_load(config.read_text(encoding="utf-8"))["model"]["gpt"] | {"vocab_size": 50257}
    with torch.device("meta"):  # at its own size
        gpt = GPT(GPTConfig(**options))
    assert config.stem != "gpt2_124m" or gpt.num_parameters() == 124_439_808  # as published


# Starting the two processes takes most of the time, so each starts a run, and resumes one twice: after a row, then
# between two. Python reads its locale only when it starts.
TWICE = """
import sys
from unittest.mock import Mock
sys.modules["transformers"] = Mock()  # which Lightning would import, for longer than PyTorch
import train
from model.runs import end_of_step

end_of_step.write_report = lambda *_: None  # writes no page
options = ["--recording.enabled=false", "--checkpoints.keep_steps=[10]"]
options += ["--trainer.devices=2", "--trainer.strategy=ddp"]
assert train.main([*sys.argv[1:], *options, "--name=new", "--trainer.max_steps=1"]) == 0
assert train.main(["--resume=runs/two", *options, "--trainer.max_steps=11"]) == 0
assert train.main(["--resume=runs/two/checkpoints/step_00000010.ckpt", *options, "--trainer.max_steps=18"]) == 0
"""
NO_UNICODE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.slow
def test_two_devices_give_the_losses_of_one_and_resume_between_two_rows_in_any_locale_with_nobody_listening(
    train, trained, small_options, here
):
    """One device begins the run, two continue it and one ends it; the losses are those of one device, in float32.

    Each device has its own part of the loss since the last row; the first row after a resume needs all parts. The two
    devices' locale has no letters but ASCII, and their standard output is closed.
    """
    # AdamW, because Muon's products in bfloat16 differ more by rounding.
    options = ["--model.optimizer.algorithm=adamw", "--model.optimizer.learning_rate=0.001"]
    options += ["--model.schedule.decay=none", "--trainer.log_every_n_steps=6", "--trainer.val_check_interval=6"]
    whole = trained(*options, "--trainer.max_steps=24")
    shutil.copytree(trained(*options, "--trainer.max_steps=6"), "runs/two")
    Path("twice.py").write_text(TWICE)
    program = programs.start(here / "twice.py", *small_options, env=NO_UNICODE, stderr=subprocess.PIPE)
    program.stdout.close()
    assert "ipe" not in programs.end(program)
    assert final_state("runs/new")["global_step"] == 1
    assert not Path("runs/new/samples.jsonl").read_text(encoding="utf-8").isascii()
    assert train("--resume=runs/two", "--trainer.devices=1", "--trainer.strategy=auto", "--trainer.max_steps=24") == 0
    for name in ("train/loss", "val/loss", "tokens"):
        assert column("runs/two", name) == pytest.approx(column(whole, name), abs=1e-5)


def test_a_repeated_job_starts_resumes_and_ends_once(train, no_pages, capsys, monkeypatch):
    again = ["--name=run", "--resume_or_start", "--samples.max_new_tokens=0", "--recording.enabled=false"]
    assert train(*again[1:]) == 2 and tells(capsys.readouterr().err, "--name")
    Path("runs/run").mkdir(parents=True)  # as a job leaves it that was killed before its first checkpoint
    Path("runs/run/metrics.csv").write_text("half a ro")
    with monkeypatch.context() as patch:
        before_call(patch.setattr, EndOfStep, "end_step", lambda *_: signal.raise_signal(signal.SIGTERM), 6)
        assert train(*again) == 128 + signal.SIGTERM
    assert [len(list(Path("runs").glob(f"run{rest}"))) for rest in ("", "-without-checkpoint-*")] == [1, 1]
    stopped = Run(Path("runs/run"))
    assert stopped.state == "stopped" and final_state(stopped.folder)["global_step"] == 5
    assert train(*again) == 0 and stopped.state == "finished"
    assert [*column("runs/run", "train/loss")][-1] == 12
    assert train(*again) == 2 and tells(capsys.readouterr().err, "runs/run exists --resume")


OWN = """
import torch
from data.text import Corpus, Passage


class Words(Corpus):
    name, identity = "words", {"words": 1}

    def __init__(self, validation_fraction, files):
        assert files == "some.txt"  # which does not select the corpus of files

    def passages(self, split):
        yield Passage(split + " own words" * 300, ends_document=True)


def quick(groups):
    return torch.optim.AdamW(groups, betas=(0.5, 0.9))  # refuses a sparse gradient
"""


def test_an_own_optimizer_which_follows_the_schedule_and_an_own_corpus_are_found_in_the_current_folder(
    small_options, here, no_pages, capsys
):
    Path("own_of_tests.py").write_text(OWN)
    importlib.invalidate_caches()  # the folder may have been searched in the same tick of the file system's clock
    options = [option for option in small_options if not option.startswith("--data.files")]
    own = [
        "--data.corpus=own_of_tests.Words",
        "--data.files=some.txt",
        "--model.optimizer.algorithm=own_of_tests.quick",
        "--recording.enabled=false",
    ]
    assert main([*options, *own, "--name=run", "--model.optimizer.rate_scale=0", "--model.gpt.ngram_sizes=[2]"]) == 0
    shown = capsys.readouterr().out
    assert "it has learned nothing" in shown and {own[0], own[2]} <= {*shown.split()}  # to resume
    (entry,) = read_code(Path("runs/run"))
    assert "own_of_tests.py" in entry["hashes"] and {*column("runs/run", "lr").values()} == {0.0}
    assert final_state("runs/run")["optimizer_states"][0]["param_groups"][0]["betas"] == (0.5, 0.9)
    resumed = ["--model.optimizer.rate_scale=1", "--model.schedule.decay_fraction=1", "--model.schedule.warmup_steps=0"]
    assert main(["--resume=runs/run", *own, *resumed, "--trainer.max_steps=13"]) == 0
    assert column("runs/run", "lr")[13] == pytest.approx(0.01 / 13)
    capsys.readouterr()
    mistakes = {"--resume=runs/run": "model.optimizer.algorithm"}
    mistakes[shlex.join([*options, "--data.corpus=absent.Words"])] = "data.corpus absent.Words PYTHONPATH"
    check_mistakes(main, capsys, mistakes)
