"""The benchmarks' command line, with work so small that its figures mean nothing: what it prints, keeps and refuses."""

import json
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from model.runs.recording import AttentionRecording
from scripts import benchmark
from scripts.benchmarks import contenders, gpt2, measuring, results

REPOSITORY = Path(__file__).parent.parent
ALONE = ("--contenders", "glassgpt", "--target", "2")
PROMISED = {"benchmark", "date", "commit", "machine", "versions", "options", "rows", "notes"}
TINY = "1x2x16/2x8/65"
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
        self.network = Network(gpt2_config(size, config.bias))

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
def measure(monkeypatch, capsys, tmp_path):
    """Runs the command line, its contenders in this process unless `apart`; returns the JSON that it prints last."""
    from train import main as train

    def run(command, seed=0):
        arguments = command(seed, tmp_path)
        run_contender = (
            partial(train, arguments[1:]) if arguments[0] == "train.py" else partial(contenders.main, *arguments[2:])
        )
        assert run_contender() == 0
        return json.loads((tmp_path / "result.json").read_text())

    monkeypatch.setenv("GLASSGPT_CACHE", str(tmp_path / "cache"))
    precision = torch.get_float32_matmul_precision()

    def benchmark_run(name, *arguments, apart=False):
        if not apart:
            monkeypatch.setattr(contenders, "run", run)
        kept = tmp_path / "results.jsonl"
        given = [name, "--rounds=1", f"--results={kept}", *map(str, arguments)]
        assert benchmark.main(given) == 0, capsys.readouterr().err
        printed = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert json.loads(kept.read_text().splitlines()[-1]) == printed
        assert set(printed) == PROMISED
        assert printed["benchmark"] == name
        assert printed["machine"]["device"] and printed["machine"]["threads"] >= 1
        for row in printed["rows"]:
            assert row["contender"] and row["times_faster"] > 0
            assert row["seconds" if "seconds" in row else "milliseconds_per_step"] > 0
        return {row["contender"]: row for row in printed["rows"]}, printed

    yield benchmark_run
    torch.set_float32_matmul_precision(precision)


def test_train(measure, nanogpt):
    rows, _ = measure("train", "--rounds=2", "--seconds=0", f"--sizes={TINY}", f"--nanogpt={nanogpt}")
    ours, theirs = rows["glassgpt"], rows["nanogpt"]
    assert ours["times_faster"] == 1
    assert ours["parameters"] == theirs["parameters"]
    assert len(theirs["milliseconds_per_step_of_rounds"]) == 2
    assert ours["tokens_per_second"] == pytest.approx(16_000 / ours["milliseconds_per_step"])


def test_generate(measure, nanogpt):
    work = ["--model=1x2x16", "--context=24", "--batches=2", "--new_tokens=3"]
    rows, _ = measure("generate", f"--nanogpt={nanogpt}", *work, "--contenders", "glassgpt", "nanogpt")
    ours, theirs = rows["glassgpt"], rows["nanogpt"]
    assert ours["parameters"] == theirs["parameters"]
    assert ours["tokens"] == theirs["tokens"] == 6
    assert ours["tokens_per_second"] == pytest.approx(6 / ours["seconds"])


def test_llama_cpp_writes_one_text_in_float32(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(contenders, "find_spec", lambda name: name)  # as if it were installed
    for work in (["--batches=2"], ["--batches=1", "--dtype=bfloat16"]):
        assert benchmark.main(["generate", "--contenders", "llama.cpp", "llama.cpp+q8_0", "--model=1x2x16", *work]) == 2
        assert "llama.cpp writes one text at a time, on a processor, in float32" in capsys.readouterr().err


def small_job(text, **work):
    batch_size, size = contenders.parse_size(text)
    return SimpleNamespace(contender="glassgpt", batch_size=batch_size, size=size, device="cpu", seed=0, **work)


def test_a_text_that_is_too_short_is_not_compared(monkeypatch):
    monkeypatch.setattr(gpt2, "generate", lambda gpt, prompt, max_new_tokens, **_: prompt)
    job = small_job("1x2x16/2x12/65", prompt_tokens=4, new_tokens=3, dtype="float32")
    with pytest.raises(RuntimeError, match=r"glassgpt wrote \(2, 4\), not 6 tokens after the prompts"):
        gpt2.measure_writing(job)


def test_time_to_loss_against_nanogpt(measure, nanogpt, characters):
    shape = ["--size=1x2x16/2x8", "--steps=8", "--peer_steps=12", "--evaluations=2", "--target=9"]
    rows, _ = measure("time_to_loss", f"--data={characters}", f"--nanogpt={nanogpt}", *shape, apart=True)
    ours, theirs = rows["glassgpt"], rows["nanogpt"]
    assert ours["validation_tokens"] == theirs["validation_tokens"] == 300
    assert [point["step"] for point in ours["curve"]] == [4, 8]
    assert [point["step"] for point in theirs["curve"]] == [6, 12]
    assert theirs["steps_to_target"] == 6  # the first evaluation: no loss is as high as the target


def test_time_to_loss_against_gpt2_on_the_text_of_a_config(measure, small_text):
    data = [f"--data.files={REPOSITORY / small_text}", "--data.tokenizer=bytes", "--data.vocab_size=null"]
    work = ["--config=configs/debug.yaml", "--steps=4", "--peer_steps=4", "--target=9", "--", *data]
    rows, _ = measure("time_to_loss", *work)
    ours, theirs = rows["glassgpt"], rows["gpt2+adamw"]
    assert ours["validation_tokens"] == theirs["validation_tokens"] > 0
    assert ours["parameters"] != theirs["parameters"]
    assert ours["bits_per_byte"] > 0


def test_overhead(measure, small_text):
    data = [f"--data.files={small_text}", "--data.tokenizer=bytes", "--data.vocab_size=null", "--data.batch_size=2"]
    quick = ["--attention.picture=false", "--trainer.limit_val_batches=1", "--samples.max_new_tokens=0"]
    record = AttentionRecording.record
    work = ["--config=configs/debug.yaml", "--seconds=0", "--stretch=2", "--steps=3", "--", *data, *quick]
    rows, printed = measure("overhead", *work)
    assert list(rows) == ["trainer", "bare loop", "with maps", "without maps"]
    assert {row["work"] for row in printed["rows"]} == {"training step, debug", "3 steps, debug"}
    assert len(rows["trainer"]["milliseconds_per_step_of_rounds"]) == 3
    assert rows["trainer"]["tokens"] == 128
    assert rows["with maps"]["recordings"] == 4  # steps 0, 1, 2 and the validation at the end
    assert 0 < rows["without maps"]["seconds"] < rows["with maps"]["seconds"]
    assert AttentionRecording.record is record


def rounds(*seconds, **same):
    return [{"seconds": taken, "parameters": 9, **same} for taken in seconds]


def test_times_are_compared_round_by_round_with_the_faster_of_ours():
    compared = contenders.compare(
        "learning",
        {
            "glassgpt": rounds(4.0, 2.0, 9.0),
            "glassgpt+compile": rounds(2.0, 2.0, 3.0),
            "nanogpt": rounds(8.0, 5.0, 3.0),
        },
    )
    assert {row["contender"]: row["seconds"] for row in compared} == {
        "glassgpt": 4.0,
        "glassgpt+compile": 2.0,
        "nanogpt": 5.0,
    }
    # Of 4 / 2, 2 / 2 and 9 / 3; of 8 / 2, 5 / 2 and 3 / 3.
    assert {row["contender"]: row["times_faster"] for row in compared} == {
        "glassgpt": 2.0,
        "glassgpt+compile": 1.0,
        "nanogpt": 2.5,
    }


def test_a_contender_that_never_reached_the_target_has_no_time():
    ours, compiled, theirs = contenders.compare(
        "learning", {"glassgpt": rounds(None, 2.0), "glassgpt+compile": rounds(2.0, 2.0), "nanogpt": rounds(8.0, None)}
    )
    assert ours["seconds"] is None and ours["times_faster"] is None
    assert theirs["times_faster"] is None
    assert compiled["times_faster"] == 1


def test_without_a_contender_of_ours_there_is_no_ratio():
    (row,) = contenders.compare("learning", {"nanogpt": rounds(8.0)})
    assert row["times_faster"] is None


def test_different_amounts_of_work_are_not_compared():
    with pytest.raises(RuntimeError, match=r"differ in tokens.*glassgpt 1, nanogpt 2"):
        contenders.compare(
            "learning", {"glassgpt": rounds(1.0, tokens=1), "nanogpt": rounds(1.0, tokens=2)}, same=("tokens",)
        )


def test_contenders_take_turns(monkeypatch):
    order = []
    monkeypatch.setattr(contenders, "run", lambda command, seed: order.append((seed, command)) or {})
    contenders.alternate({"a": "A", "b": "B"}, rounds=2)
    assert order == [(0, "A"), (0, "B"), (1, "A"), (1, "B")]


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("import sys; print('too few'); sys.exit(2)", ValueError, "^too few$"),
        ("print('first'); raise KeyError('lost')", RuntimeError, r"(?s)first.*KeyError: 'lost'"),
        ("print('no result')", RuntimeError, "no result"),
    ],
)
def test_a_failing_contender_says_why(code, error, message):
    with pytest.raises(error, match=message):
        contenders.run(lambda seed, folder: ["-c", code])


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
    torch.manual_seed(0)
    job = small_job(TINY)
    learner = gpt2.build_learner(job)
    assert learner.model.config.init == "gpt2"
    text = torch.arange(8).repeat(50)
    before = learner.loss(text[None, :8], text[None, 1:9]).item()
    for step in gpt2.train(learner, text, job, steps=60):
        if step == 60:
            break
    assert learner.loss(text[None, :8], text[None, 1:9]).item() < before - 0.5


def record(device, commit, work, milliseconds):
    row = {"work": work, "contender": "glassgpt", "milliseconds_per_step": milliseconds, "times_faster": 1.0}
    return {"benchmark": "train", "commit": commit, "machine": {"device": device, "threads": 2}, "rows": [row]}


def test_the_table_shows_the_newest_figures_of_each_machine_and_commit(tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    lines = []
    first = [("A", "a" * 40, "x", 70.0), ("A", "a" * 40, "y", 60.0), ("B", "b" * 40, "x", 50.0)]
    for values in [*first, ("A", "c" * 40, "x", 40.0)]:
        lines.append(record(*values))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert benchmark.main(["table", f"--results={path}"]) == 0
    shown = capsys.readouterr().out
    headings = [line for line in shown.splitlines() if line.endswith(":")]
    assert headings == [
        "A, 2 threads, commit ccccccc:",
        "A, 2 threads, commit aaaaaaa:",
        "B, 2 threads, commit bbbbbbb:",
    ]
    assert "70.00" not in shown
    assert "| train     | x    | glassgpt  | 40.00     | 1.00 times     |" in shown


def test_the_readme_shows_the_kept_results():
    folder = REPOSITORY / "scripts" / "benchmarks"
    assert results.markdown(folder / "results.jsonl") in (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [None, "not JSON", '{"rows": []}', "[]"])
def test_no_table_without_results(tmp_path, capsys, content):
    path = tmp_path / "results.jsonl"
    if content is not None:
        path.write_text(content)
    assert benchmark.main(["table", f"--results={path}"]) == 2
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    {
        "size": (
            ["train", "--sizes", "4x4", "--contenders", "glassgpt"],
            "'4x4' is not a size: write LAYERSxHEADSxWIDTH",
        ),
        "heads": (["train", "--sizes", "1x3x16/2x8/65"], "width 16 is not a multiple of the 3 heads"),
        "contender": (["train", "--contenders", "llama"], "argument --contenders: invalid choice: 'llama'"),
        "checkout": (["train", "--nanogpt", "nowhere"], "--nanogpt nowhere is not a checkout of nanoGPT"),
        "rounds": (["train", "--rounds", "0"], "argument --rounds: must be at least 1, not 0"),
        "seconds": (["train", "--seconds", "nan"], "argument --seconds: must be at least 0, not nan"),
        "evaluations": (["time_to_loss", "--evaluations", "some"], "invalid int value: 'some'"),
        "steps": (["time_to_loss", "--steps", "3"], "argument --steps: must be at least 4, not 3"),
        "device": (["train", "--device", "tpu"], "argument --device: invalid choice: 'tpu'"),
        "one of several": (["train", "--device", "cuda:1"], "argument --device: invalid choice: 'cuda:1'"),
        "none left": (["train", "--contenders", "nanogpt"], "no contender is left to measure: nanogpt is left out"),
        "model": (["generate", "--model", "large"], "is not a size: write LAYERSxHEADSxWIDTH"),
        "no peer": (["time_to_loss", "--data", "x.txt"], "set --target"),
        "no data": (["time_to_loss", "--data", "x.txt", "--target", "2"], "x.txt: No such file or directory"),
        "context": (["generate", "--context", "20"], "--context 20 is too short"),
        "steps of no peer": (["time_to_loss", *ALONE, "--peer_steps", "9"], "--peer_steps is for a peer that takes no"),
        "rate of no peer": (
            ["time_to_loss", *ALONE, "--peer_learning_rate", "0.1"],
            "--peer_learning_rate is for a peer that takes no part",
        ),
        "option": (["train", "--speed", "9"], "unrecognized arguments: --speed 9"),
    }.values(),
)
def test_a_mistake_gets_one_sentence(arguments, sentence, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    try:
        status = benchmark.main(arguments)
    except SystemExit as stop:
        status = stop.code
    error = capsys.readouterr().err
    assert status == 2
    assert sentence in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_needs_a_gpu(capsys):
    assert benchmark.main(["train", "--device=cuda"]) == 2
    assert "PyTorch finds no GPU" in capsys.readouterr().err


def test_a_text_must_be_ascii_and_long_enough(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("ä" * 1000, encoding="utf-8")
    with pytest.raises(ValueError, match="is not all ASCII"):
        benchmark.count_characters(path)
    path.write_text("a" * 999)
    with pytest.raises(ValueError, match="has 999 characters"):
        benchmark.count_characters(path)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["generate", "--context", "20"], ["time_to_loss", "--data", "no.txt"]]
)
def test_help_and_mistakes_do_not_import_torch(arguments):
    code = "import sys; from scripts import benchmark\n"
    code += "try: benchmark.main(sys.argv[1:])\nfinally: print('imported', {'torch', 'lightning'} & set(sys.modules))"
    command = [sys.executable, "-c", code, *arguments]
    shown = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True).stdout
    assert shown.endswith("imported set()\n")


def test_the_file_runs_by_itself(tmp_path):
    command = [sys.executable, str(REPOSITORY / "scripts" / "benchmark.py"), "--help"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert all(name in shown for name in ("train", "generate", "time_to_loss", "overhead", "table"))
