"""The benchmarks' command line: what it prints and refuses. The work is too small for its figures to mean anything."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from scripts import benchmark
from scripts.benchmarks import gpt2
from tests.command_lines import call, check_mistakes, mistake, tells

SMALL = {"num_layers": 1, "num_heads": 2, "embed_dim": 16, "context_length": 8, "vocab_size": 257}
LEARNING = {"size": SMALL, "batch_size": 2, "our_steps": 60, "steps": 90, "train_options": []}
# Stands in for nanoGPT's model.py, with our network.
STAND_IN = """
from collections import namedtuple
import torch
from model.generation import generate
from model.gpt import GPT as Network
from scripts.benchmarks.gpt2 import gpt2_config

GPTConfig = namedtuple("GPTConfig", "block_size vocab_size n_layer n_head n_embd dropout bias")


class GPT(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        size = {"num_layers": config.n_layer, "num_heads": config.n_head, "embed_dim": config.n_embd}
        size |= {"context_length": config.block_size, "vocab_size": config.vocab_size}
        self.network = Network(gpt2_config(size, bias=config.bias))

    def forward(self, tokens, targets):
        logits = self.network(tokens)
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)

    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        return torch.optim.AdamW(self.parameters(), lr=learning_rate, betas=betas, weight_decay=weight_decay)

    def generate(self, tokens, max_new_tokens, temperature, top_k):
        return generate(self.network, tokens, max_new_tokens, temperature=temperature, top_k=top_k)
"""


@pytest.fixture(scope="module")
def nanogpt(tmp_path_factory):
    """The option that names a folder like a checkout of nanoGPT."""
    folder = tmp_path_factory.mktemp("nanogpt")
    (folder / "model.py").write_text(STAND_IN)
    return f"--nanogpt={folder}"


@pytest.fixture(scope="module")
def characters(tmp_path_factory):
    """The option that names a text of 3,000 ASCII characters that is soon learned."""
    path = tmp_path_factory.mktemp("characters") / "text.txt"
    path.write_text("abcdefgh \n" * 300)
    return f"--data={path}"


@pytest.fixture
def measure(cache, monkeypatch, capsys):
    """Runs a benchmark with work of seconds, and its contenders in this process; returns the rows."""
    sizes = {"STEPS_OF": {"cpu": [(SMALL, 2)]}, "WRITER": SMALL | {"context_length": 24}, "NEW_TOKENS": 3}
    sizes |= {"TEXTS": (1, 2), "LEARNING": {"cpu": LEARNING}}
    sizes |= {"RUNS": [(16, 1)], "VOCABULARIES": (300,), "WIDE": SMALL}
    for name, value in sizes.items():
        monkeypatch.setattr(benchmark, name, value)
    monkeypatch.setattr(gpt2, "EVALUATIONS", 3)
    monkeypatch.setattr(gpt2, "SECONDS", 0.0)
    monkeypatch.chdir(benchmark.ROOT)  # as the processes of contenders

    def run(job):
        gpt2.main(json.dumps(job))
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    monkeypatch.setattr(benchmark, "run", run)

    def run_benchmark(name, *arguments):
        assert benchmark.main([name, "--rounds=1", *arguments]) == 0, capsys.readouterr().err
        printed = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert set(printed) == {"benchmark", "machine", "commit", "rows"} and printed["benchmark"] == name
        assert printed["machine"]["device"] and printed["machine"]["threads"] >= 1
        return printed["rows"]

    return run_benchmark


def test_train_and_generate_compare_each_work_with_models_of_one_size(measure, nanogpt):
    trained, written = measure("train", nanogpt, "--rounds=2"), measure("generate", nanogpt)
    for rows in (trained, written):
        assert [row["contender"] for row in rows[:2]] == ["glassgpt", "nanogpt"]
        assert len({row["parameters"] for row in rows}) == rows[0]["times_faster"] == 1
    assert len(trained[1]["milliseconds_per_step_of_rounds"]) == 2 and trained[1]["times_faster"] > 0
    assert {row["work"] for row in written} == {"writing 1 x 3 tokens, 1x16", "writing 2 x 3 tokens, 1x16"}


@pytest.mark.filterwarnings("ignore:'scripts.* found in sys.modules:RuntimeWarning")
def test_a_contender_is_measured_by_a_module_that_is_started(nanogpt, monkeypatch, capsys):
    """Here in this process: a new one takes seconds to import Lightning. Those of the next tests are real."""

    def start(command, cwd, **_):
        assert (*command[:2], cwd) == (sys.executable, "-m", benchmark.ROOT)
        monkeypatch.setattr(sys, "argv", command[2:])
        runpy.run_module(command[2], run_name="__main__")
        return subprocess.CompletedProcess(command, 0, capsys.readouterr().out)

    monkeypatch.setattr(subprocess, "run", start)
    job = {"function": "measure_writing", "contender": "nanogpt", "checkout": nanogpt.partition("=")[2], "seed": 0}
    job |= {"size": SMALL, "batch_size": 2, "new_tokens": 3, "device": "cpu"}
    assert benchmark.run(job)["tokens"] == 6


def test_time_to_loss_reaches_the_peers_lowest_loss_and_takes_options_of_train(measure, nanogpt, characters):
    ours, theirs = measure("time_to_loss", nanogpt, characters)
    assert [ours["contender"], theirs["contender"]] == ["glassgpt", "nanogpt"]
    assert [point["step"] for point in ours["curve"] + theirs["curve"]] == [40, 60, 60, 90]
    assert theirs["curve"][1]["loss"] < theirs["curve"][0]["loss"] - 0.05  # it learns
    assert theirs["seconds"] > 0 and ours["seconds"] > 0
    (deeper,) = measure("time_to_loss", characters, "--", "--model.gpt.num_layers=2")  # without a peer
    assert deeper["steps_to_target"] == min(deeper["curve"], key=lambda point: point["loss"])["step"]
    assert deeper["times_faster"] == 1 and deeper["parameters"] > ours["parameters"]


def test_growth_tells_recordings_and_pages_in_steps_and_compares_tokenising_with_numpy(measure):
    run, vocabulary, ours, numpys = measure("growth")
    assert run["recording_in_steps"] > 0 and run["page_in_steps"] > 0 and vocabulary["milliseconds_per_step"] > 0
    assert [ours["contender"], numpys["contender"]] == ["glassgpt", "numpy"] and numpys["times_faster"] > 0


def test_times_are_compared_round_by_round():
    turns = {"glassgpt": (2.0, 2.0, 3.0), "nanogpt": (8.0, 5.0, 3.0)}
    rows = benchmark.compare("learning", {name: [{"seconds": each} for each in turns[name]] for name in turns})
    # The median of the rounds, and of 8 / 2, 5 / 2 and 3 / 3.
    assert [(row["seconds"], row["times_faster"]) for row in rows] == [(2.0, 1.0), (5.0, 2.5)]


def replace_processes(monkeypatch, **codes):
    """Replaces the process of each contender by one that runs the given Python code, which may use `seed`."""
    popen = subprocess.Popen

    def start(command, **options):
        if command[0] == "git":
            return popen(command, **options)
        job = json.loads(command[3])
        return popen([sys.executable, "-c", f"seed = {job['seed']}\n{codes[job['contender']]}"], **options)

    monkeypatch.setattr(subprocess, "Popen", start)


WORKS = "print('first'); print(seed)"
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


def test_contenders_take_turns_and_a_peer_that_crashes_is_left_out(monkeypatch, capsys):
    replace_processes(monkeypatch, glassgpt=WORKS, transformers=DIES, numpy=WORKS)
    results = benchmark.take_turns(["glassgpt", "transformers", "numpy", "nanogpt"], {}, "cpu", None, rounds=2)
    assert results == {"glassgpt": [0, 1], "numpy": [0, 1]}
    assert tells(capsys.readouterr().err, "transformers -11")


def test_an_error_in_our_own_process_ends_the_benchmark(nanogpt, monkeypatch, capsys):
    with monkeypatch.context() as patch, pytest.raises(subprocess.CalledProcessError):
        replace_processes(patch, glassgpt="raise KeyError('lost')")
        benchmark.main(["train", nanogpt])
    replace_processes(monkeypatch, glassgpt="raise SystemExit(2)")  # train.py refuses an option
    assert call(benchmark.main, capsys, "train", nanogpt)[0] == 2


def test_the_target_is_reached_at_the_first_evaluation_below_it():
    curve = [{"step": step, "seconds": step / 2, "loss": loss} for step, loss in enumerate([3.0, 1.9, 2.0, 1.8])]
    reached = benchmark.reached({"curve": curve}, 1.95)
    assert (reached["seconds"], reached["steps_to_target"]) == (0.5, 1)
    with mistake(r"1\.700.* 1\.800"):
        benchmark.reached({"curve": curve}, 1.7)


def test_the_first_steps_count_as_much_as_the_average_of_the_later_ones(monkeypatch):
    """Steps of a second each, after half a minute of compiling."""
    curve = [{"step": step, "seconds": 30.0 + step} for step in (5, 10, 15)]
    monkeypatch.setattr(gpt2, "train_nanogpt", lambda job: (curve, {}))
    points = gpt2.learn_characters(SimpleNamespace(contender="nanogpt"))["curve"]
    assert [(point["step"], point["seconds"]) for point in points] == [(10, 10.0), (15, 15.0)]


def test_validation_counts_every_token_of_the_windows_once():
    log_probabilities, text = torch.randn(5, 5).log_softmax(dim=-1), torch.randint(5, (4 * 200 + 1,))
    learner = gpt2.Learner(torch.nn.Identity(), lambda old, new: -log_probabilities[old, new].mean(), None)
    expected = -log_probabilities[text[:-1], text[1:]].mean().item()
    assert gpt2.mean_nats(learner, text.unfold(0, 5, 4)) == pytest.approx(expected, rel=1e-5)


MISTAKES = {
    "train --nanogpt nowhere": "nowhere nanoGPT",
    **({} if torch.cuda.is_available() else {"train --device cuda": "cuda cpu"}),
    "time_to_loss --data x.txt": "x.txt",
    "time_to_loss --data umlauts.txt": "umlauts.txt ASCII",
}


def test_every_mistake_gets_one_sentence(here, capsys, tmp_path):
    Path("umlauts.txt").write_text("ä" * 1000, encoding="utf-8")
    check_mistakes(benchmark.main, capsys, MISTAKES)
    assert len(list(tmp_path.iterdir())) == 1
