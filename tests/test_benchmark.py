"""The benchmarks' command line, with work so small that its figures mean nothing: what it prints and refuses."""

import json
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from scripts import benchmark
from scripts.benchmarks import gpt2, measuring

REPOSITORY = Path(__file__).parent.parent
PROMISED = {"benchmark", "date", "commit", "machine", "versions", "options", "rows", "notes"}
# Answers like nanoGPT's model.py, with our network.
STAND_IN = """
from dataclasses import dataclass
import torch
from model.generation import generate
from model.gpt import GPT as Network
from scripts.benchmarks.gpt2 import gpt2_config


@dataclass
class GPTConfig:
    block_size: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float
    bias: bool


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
    """A folder that can be used like a checkout of nanoGPT."""
    folder = tmp_path_factory.mktemp("nanogpt")
    (folder / "model.py").write_text(STAND_IN)
    return folder


@pytest.fixture(scope="module")
def characters(tmp_path_factory):
    """A text of 3,000 ASCII characters."""
    path = tmp_path_factory.mktemp("characters") / "text.txt"
    path.write_text("".join(random.Random(0).choices("abcdefgh \n", k=3000)))
    return path


@pytest.fixture
def small(monkeypatch):
    """Makes every benchmark a matter of seconds."""
    sizes = {"SIZES": {"cpu": [(1, 2, 16, 2, 8, 65)]}, "WRITER": (1, 2, 16, 24, 65), "NEW_TOKENS": 3, "TEXTS": (1, 2)}
    learning = {"LEARNING": {"cpu": ((1, 2, 16, 2, 8, 65), 8, 12, 0.0)}, "EVALUATIONS": 2, "SECONDS": 0.0}
    for name, value in {**sizes, **learning}.items():
        monkeypatch.setattr(benchmark, name, value)


@pytest.fixture
def measure(small, monkeypatch, capsys, tmp_path):
    """Runs the command line, its contenders in this process unless `apart`; returns its rows and all of the JSON."""
    from train import main as train

    def run(command, seed=0):
        program, *arguments = command(seed, tmp_path)
        assert (train(arguments) if program == "train.py" else gpt2.main(*arguments[1:])) == 0
        return json.loads((tmp_path / "result.json").read_text())

    monkeypatch.setenv("GLASSGPT_CACHE", str(tmp_path / "cache"))
    precision = torch.get_float32_matmul_precision()

    def run_benchmark(name, *arguments, apart=False):
        if not apart:
            monkeypatch.setattr(benchmark, "run", run)
        assert benchmark.main([name, "--rounds=1", *map(str, arguments)]) == 0, capsys.readouterr().err
        printed = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert set(printed) == PROMISED
        assert printed["benchmark"] == name
        assert printed["machine"]["device"] and printed["machine"]["threads"] >= 1
        return printed["rows"], printed

    yield run_benchmark
    torch.set_float32_matmul_precision(precision)


def test_train(measure, nanogpt):
    (ours, theirs), _ = measure("train", "--rounds=2", f"--nanogpt={nanogpt}")
    assert [ours["contender"], theirs["contender"]] == ["glassgpt", "nanogpt"]
    assert ours["times_faster"] == 1 and theirs["times_faster"] > 0
    assert ours["parameters"] == theirs["parameters"]
    assert len(theirs["milliseconds_per_step_of_rounds"]) == 2
    assert ours["tokens_per_second"] == pytest.approx(16_000 / ours["milliseconds_per_step"])


def test_generate(measure, nanogpt):
    rows, printed = measure("generate", f"--nanogpt={nanogpt}")
    assert [row["contender"] for row in rows[:2]] == ["glassgpt", "nanogpt"]
    assert {row["work"] for row in rows} == {"writing 1 x 3 tokens, 1x16", "writing 2 x 3 tokens, 1x16"}
    assert len({row["parameters"] for row in rows}) == 1
    for row in rows:
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["seconds"]) and row["times_faster"] > 0
    if not any("llama" in row["contender"] for row in rows):
        assert any(note.startswith("llama.cpp is left out: pip install") for note in printed["notes"])


def test_time_to_loss(measure, nanogpt, characters):
    (ours, theirs), _ = measure("time_to_loss", f"--data={characters}", f"--nanogpt={nanogpt}", apart=True)
    assert [ours["contender"], theirs["contender"]] == ["glassgpt", "nanogpt"]
    assert ours["validation_tokens"] == theirs["validation_tokens"] == 300
    assert [point["step"] for point in ours["curve"]] == [4, 8]
    assert [point["step"] for point in theirs["curve"]] == [6, 12]
    assert theirs["lowest_loss"] == theirs["target"]
    assert theirs["seconds"] > 0


def test_time_to_loss_without_nanogpt_and_with_options_of_training(measure, characters):
    (ours, theirs), printed = measure("time_to_loss", f"--data={characters}", "--", "--model.gpt.num_layers=2")
    assert theirs["contender"] == "gpt2+adamw" and theirs["steps_to_target"] in (6, 12)
    assert printed["notes"] == ["nanogpt is left out: set --nanogpt to a checkout of it"]
    assert ours["parameters"] > theirs["parameters"]


def test_compiled_networks_take_part_where_asked(small, monkeypatch, nanogpt, capsys):
    measured = []

    def run(command, seed=0):
        job = json.loads(command(seed, Path())[3])
        measured.append(job["contender"])
        return {"milliseconds_per_step": 2.0, "tokens": 1, "parameters": 1, "machine": {"device": "", "threads": 1}}

    monkeypatch.setattr(benchmark, "run", run)
    assert benchmark.main(["train", "--compile", "--rounds=1", f"--nanogpt={nanogpt}"]) == 0
    assert measured == ["glassgpt", "nanogpt", "glassgpt+compile", "nanogpt+compile"]
    capsys.readouterr()


def test_a_text_that_is_too_short_is_not_compared(monkeypatch):
    monkeypatch.setattr(gpt2, "generate", lambda gpt, prompt, max_new_tokens, **_: prompt)
    work = {"size": benchmark.gpt_size(1, 2, 16, 12, 65), "batch_size": 2, "prompt_tokens": 4, "new_tokens": 3}
    with pytest.raises(RuntimeError, match=r"glassgpt wrote \(2, 4\), not 6 tokens after the prompts"):
        gpt2.measure_writing(SimpleNamespace(contender="glassgpt", device="cpu", seed=0, dtype="float32", **work))


def rounds(*seconds, **same):
    return [{"seconds": taken, "parameters": 9, **same} for taken in seconds]


def compared(key, **results):
    rows = benchmark.compare("learning", {name.replace("_", "+"): turns for name, turns in results.items()})
    return {row["contender"]: row[key] for row in rows}


def test_times_are_compared_round_by_round_with_the_faster_of_ours():
    turns = {"glassgpt": rounds(4.0, 2.0, 9.0), "glassgpt_compile": rounds(2.0, 2.0, 3.0)}
    turns["nanogpt"] = rounds(8.0, 5.0, 3.0)
    assert compared("seconds", **turns) == {"glassgpt": 4.0, "glassgpt+compile": 2.0, "nanogpt": 5.0}
    # Of 4 / 2, 2 / 2 and 9 / 3; of 8 / 2, 5 / 2 and 3 / 3.
    assert compared("times_faster", **turns) == {"glassgpt": 2.0, "glassgpt+compile": 1.0, "nanogpt": 2.5}


def test_a_contender_that_never_reached_the_target_has_no_time():
    turns = {"glassgpt": rounds(None, 2.0), "glassgpt_compile": rounds(2.0, 2.0), "nanogpt": rounds(8.0, None)}
    assert compared("seconds", **turns) == {"glassgpt": None, "glassgpt+compile": 2.0, "nanogpt": None}
    assert compared("times_faster", **turns) == {"glassgpt": None, "glassgpt+compile": 1.0, "nanogpt": None}


def test_different_amounts_of_work_are_not_compared():
    turns = {"glassgpt": rounds(1.0, tokens=1), "nanogpt": rounds(1.0, tokens=2)}
    with pytest.raises(RuntimeError, match=r"differ in tokens.*glassgpt 1, nanogpt 2"):
        benchmark.compare("learning", turns, same=("tokens",))


def python(code):
    return lambda seed, folder: ["-c", f"seed, folder = {seed}, {str(folder)!r}\n{code}"]


WORKS = python("open(folder + '/result.json', 'w').write(str(seed))")
DIES = python("import os, signal; print('bad matrix', flush=True); os.kill(os.getpid(), signal.SIGSEGV)")


def test_contenders_take_turns_and_a_peer_that_dies_is_left_out():
    notes = []
    assert benchmark.alternate({"glassgpt": WORKS, "llama.cpp": DIES, "nanogpt": WORKS}, 2, notes) == {
        "glassgpt": [0, 1],
        "nanogpt": [0, 1],
    }
    assert notes == ["llama.cpp is left out: it ended with SIGSEGV: bad matrix"]


def test_nothing_is_compared_where_ours_dies(small, nanogpt, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "call", lambda *_, **work: DIES if work["contender"] == "glassgpt" else WORKS)
    assert benchmark.main(["train", f"--nanogpt={nanogpt}"]) == 1
    assert capsys.readouterr().err.endswith("benchmark.py: it ended with SIGSEGV: bad matrix\n")


def test_without_a_peer_there_is_no_loss_to_reach(small, characters, monkeypatch, capsys):
    run = benchmark.run
    monkeypatch.setattr(benchmark, "call", lambda *_, **work: DIES)
    monkeypatch.setattr(benchmark, "run", lambda command, seed: run(command if command is DIES else WORKS, seed))
    assert benchmark.main(["time_to_loss", f"--data={characters}"]) == 1
    assert "without a peer there is no loss to reach" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("import sys; print('too few'); sys.exit(2)", ValueError, "^too few$"),
        ("print('first'); raise KeyError('lost')", RuntimeError, "exit status 1: KeyError: 'lost'"),
        ("print('no result')", RuntimeError, "exit status 0: no result"),
    ],
)
def test_a_failing_contender_says_why(code, error, message):
    with pytest.raises(error, match=message):
        benchmark.run(python(code))


def test_the_target_is_reached_at_the_first_evaluation_that_shows_it():
    curve = [
        {"step": step, "seconds": step / 2, "loss": loss, "targets": 10}
        for step, loss in [(1, 3.0), (2, 1.9), (3, 2.0), (4, 1.8)]
    ]
    reached = benchmark.reached({"curve": curve, "validation_bytes": 20}, 1.95)
    assert (reached["seconds"], reached["steps_to_target"], reached["lowest_loss"]) == (1.0, 2, 1.8)
    assert reached["bits_per_byte"] == pytest.approx(1.8 * 10 / 20 / 0.693147, rel=1e-5)
    assert benchmark.reached({"curve": curve, "validation_bytes": 20}, 1.7)["seconds"] is None


def test_the_clock_stops_during_evaluation_and_compiling_does_not_count(monkeypatch):
    now = 0.0
    monkeypatch.setattr(measuring, "synchronized_time", lambda device: now)
    curve = measuring.Curve("cpu", steps=12, evaluations=2)

    def evaluate():
        nonlocal now
        now += 50
        return {"loss": 1.0}

    for step in range(1, 13):
        now += 100 if step == 1 else 1
        for _ in range(2):  # two batches a step
            curve.after(step, evaluate)
    assert [(point["step"], point["seconds"]) for point in curve.points] == [(6, 6.0), (12, 12.0)]


class Bigrams(nn.Module):
    """Nats that can be looked up: they depend on no window."""

    def __init__(self):
        super().__init__()
        self.log_probabilities = torch.randn(5, 5).log_softmax(dim=-1)

    def nats(self, tokens, targets):
        scores = self.log_probabilities[tokens].flatten(0, 1)
        return F.nll_loss(scores, targets.flatten(), ignore_index=-1, reduction="sum")


@pytest.mark.parametrize("length", [2, 8, 9, 10, 57])
def test_validation_counts_every_token_once(length):
    model, text = Bigrams(), torch.randint(5, (length,))
    expected = -model.log_probabilities[text[:-1], text[1:]].mean().item()
    batches = gpt2.windows(text, context=4)
    found = measuring.mean_nats(model, ((model.nats(*batch), (batch[1] >= 0).sum()) for batch in batches))
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    assert found["targets"] == length - 1


def test_a_bare_loop_learns():
    size = benchmark.gpt_size(1, 2, 16, 8, 65)
    job = SimpleNamespace(contender="gpt2+adamw", batch_size=2, size=size, device="cpu", seed=0, dropout=0.0)
    learner = gpt2.build_learner(job)
    assert learner.model.config.init == "gpt2"
    text = torch.arange(8).repeat(50)
    before = learner.loss(text[None, :8], text[None, 1:9]).item()
    for step in gpt2.train(learner, text, job, steps=60):
        if step == 60:
            break
    assert learner.loss(text[None, :8], text[None, 1:9]).item() < before - 0.5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "--nanogpt", "nowhere"], "--nanogpt nowhere is not a checkout of nanoGPT"),
        (["train", "--rounds", "0"], "argument --rounds: must be at least 1, not 0"),
        (["train", "--device", "cuda:1"], "argument --device: invalid choice: 'cuda:1'"),
        (["time_to_loss", "--data", "x.txt"], "x.txt: No such file or directory"),
        (["time_to_loss", "--data", "short.txt"], "has 999 characters: at least 1000 are needed"),
        (["time_to_loss", "--data", "umlauts.txt"], "is not all ASCII"),
        (["train", "--speed", "9"], "unrecognized arguments: --speed 9"),
    ],
)
def test_a_mistake_gets_one_sentence(arguments, sentence, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("a" * 999)
    Path("umlauts.txt").write_text("ä" * 1000, encoding="utf-8")
    try:
        status = benchmark.main(arguments)
    except SystemExit as stop:
        status = stop.code
    error = capsys.readouterr().err.removeprefix("nanogpt is left out: set --nanogpt to a checkout of it\n")
    assert status == 2
    assert sentence in error
    assert error.count("\n") == 1
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_needs_a_gpu(capsys):
    assert benchmark.main(["train", "--device=cuda"]) == 2
    assert "PyTorch finds no GPU" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["time_to_loss", "--data", "no.txt"]])
def test_help_and_mistakes_do_not_import_torch(arguments):
    code = "import sys; from scripts import benchmark\n"
    code += "try: benchmark.main(sys.argv[1:])\nfinally: print('imported', {'torch', 'lightning'} & set(sys.modules))"
    command = [sys.executable, "-c", code, *arguments]
    shown = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True).stdout
    assert shown.endswith("imported set()\n")


def test_the_file_runs_by_itself(tmp_path):
    command = [sys.executable, str(REPOSITORY / "scripts" / "benchmark.py"), "--help"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert all(name in shown for name in ("train", "generate", "time_to_loss"))
