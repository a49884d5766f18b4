"""The benchmark's command line, with work so small that its figures mean nothing: what it prints, keeps and refuses."""

import importlib
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from model.gpt import GPT
from scripts import benchmark
from scripts.benchmarks import loops, processes, summary, time_to_loss, train, training, workload

REPOSITORY = Path(__file__).parent.parent
NANOGPT = os.environ.get("GLASSGPT_NANOGPT")
needs_nanogpt = pytest.mark.skipif(NANOGPT is None, reason="set GLASSGPT_NANOGPT to a checkout of nanoGPT")

TINY = "1x2x16/2x8/65"
PROMISED = {"benchmark", "date", "commit", "machine", "limits", "versions", "options", "rows", "notes"}


@pytest.fixture(scope="module")
def characters(tmp_path_factory):
    """A text of 3,000 ASCII characters."""
    letters = random.Random(0).choices("abcdefgh \n", k=3000)
    path = tmp_path_factory.mktemp("characters") / "text.txt"
    path.write_text("".join(letters))
    return path


@pytest.fixture
def measure(monkeypatch, capsys, tmp_path):
    """Runs the command line, jobs in this process for speed; returns the JSON that it prints last."""

    def run_here(function, options, cache=None):
        module, name = function.split(":")
        result = getattr(importlib.import_module(f"scripts.benchmarks.{module}"), name)(**options)
        return json.loads(json.dumps(result))

    for module in ("report", "train", "generate", "time_to_loss", "recording_tax"):
        monkeypatch.setattr(f"scripts.benchmarks.{module}.run_job", run_here)

    def run(*arguments):
        results = tmp_path / "results.jsonl"
        name, *others = map(str, arguments)
        given = [name, "--limit_seconds=0.001", f"--results={results}", *others]
        assert benchmark.main(given) == 0, capsys.readouterr().err
        printed = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert json.loads(results.read_text().splitlines()[-1]) == printed
        assert set(printed) >= PROMISED
        assert printed["benchmark"] == name
        assert printed["limits"]["float32_flops"] > 0
        assert printed["limits"]["bytes_per_second"] > 0
        return printed

    return run


@pytest.fixture
def small_data(small_text, tmp_path):
    """Options of train.py for a text that is tokenised at once."""
    data = [f"--data.files={small_text}", "--data.tokenizer=bytes", "--data.vocab_size=null"]
    return [*data, f"--data.cache_dir={tmp_path}"]


def test_a_job_runs_in_a_process_of_its_own():
    limits = processes.run_job("limits:measure", {"device": "cpu", "seconds": 0.001})
    assert limits["machine"]["threads"] >= 1


def test_a_mistake_in_a_process_comes_back_as_its_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"^there is no checkpoint .*last\.ckpt$"):
        processes.run_job("training:same_weights", {"paths": [str(tmp_path / "last.ckpt")]})


def test_a_failure_in_a_process_comes_back_with_what_it_printed():
    with pytest.raises(RuntimeError, match="TypeError"):
        processes.run_job("training:same_weights", {"checkpoints": []})


def test_training_steps(measure):
    printed = measure("train", "--rounds=2", "--seconds=0", f"--sizes={TINY}", "--contenders", "glassgpt")
    (row,) = printed["rows"]
    assert row["tokens_per_step"] == 16
    assert row["times_faster"] == 1
    assert row["tokens_per_second"] == pytest.approx(16_000 / row["milliseconds_per_step"])
    flops = max(printed["limits"]["float32_flops"], printed["limits"]["bfloat16_flops"] or 0)
    assert row["mfu"] == pytest.approx(row["flops_per_token"] * row["tokens_per_second"] / flops)
    assert len(row["milliseconds_of_rounds"]) == 2


def test_training_steps_are_compared_with_the_faster_of_ours():
    def rounds(*seconds):
        same = {"parameters": 9, "tokens_per_step": 16, "flops_per_token": 54, "precision": "float32"}
        return [same | {"seconds": taken, "cold_seconds": taken} for taken in seconds]

    results = {"glassgpt": rounds(4, 2), "glassgpt+compile": rounds(2, 2), "nanogpt": rounds(8, 5)}
    made = train.rows(workload.Size.parse(TINY), results, flops=1.0)
    assert {row["contender"]: row["times_faster"] for row in made} == {
        "glassgpt": 1.5,  # of the rounds 4 / 2 and 2 / 2
        "glassgpt+compile": 1.0,
        "nanogpt": 3.25,
    }
    (ours, *_) = train.rows(workload.Size.parse(TINY), {"nanogpt": rounds(8, 5)}, flops=1.0)
    assert ours["times_faster"] is None


def test_generation(measure):
    work = ["--model=1x2x16", "--context=12", "--prompt_tokens=4", "--batches=1", "--new_tokens", "3", "8"]
    printed = measure("generate", "--rounds=1", *work)
    rows = [row for row in printed["rows"] if row["contender"] == "glassgpt"]
    assert [row["new_tokens"] for row in rows] == [3, 8]
    for row in rows:
        assert row["of_limit"] == pytest.approx(row["tokens_per_second"] / row["limit_tokens_per_second"])


def test_time_to_loss(measure, characters):
    shape = ["--size=1x2x16/2x8", "--steps=6", "--evaluations=3"]
    printed = measure(
        "time_to_loss", "--rounds=1", f"--data={characters}", *shape, "--target=9", "--", "--samples.max_new_tokens=0"
    )
    (row,) = printed["rows"]
    assert row["contender"] == "glassgpt"
    assert row["validation_tokens"] == 300
    assert row["steps_to_target"] == 2  # the first evaluation: no loss is as high as the target
    assert row["tokens_per_step"] == 16
    assert [point["step"] for point in row["curves"][0]] == [2, 4, 6]
    assert 0 < row["seconds"] < row["cold_seconds"]


def test_trainer_tax(measure, small_data):
    printed = measure(
        "trainer_tax",
        "--pairs=2",
        "--stretch=2",
        "--seconds=0",
        "--configs=configs/debug.yaml",
        "--",
        *small_data,
    )
    (row,) = printed["rows"]
    assert len(row["tax_of_pairs"]) == 2
    assert row["trainer_milliseconds"] > 0 < row["bare_milliseconds"]


def test_recording_tax(measure, small_data):
    printed = measure(
        "recording_tax",
        "--rounds=1",
        "--steps=3",
        "--config=configs/debug.yaml",
        "--",
        *small_data,
        "--attention.picture=false",
        "--trainer.limit_val_batches=1",
        "--samples.max_new_tokens=0",
    )
    (row,) = printed["rows"]
    assert row["same_weights"] is True
    assert row["recordings"] == 4  # steps 0, 1, 2 and the validation at the end
    assert 0 < row["recording_seconds"] < row["seconds_with"]


def test_default_run(measure, small_data):
    printed = measure(
        "default_run",
        "--rounds=1",
        "--config=configs/debug.yaml",
        "--learning_rates=0.01",
        "--",
        *small_data,
        "--data.batch_size=2",
        "--trainer.limit_val_batches=1",
    )
    ours, peer = printed["rows"]
    assert ours["contender"] == "glassgpt" and ours["steps"] == 40 and ours["lower_by"] == 0
    assert peer["contender"] == "gpt2+adamw 0.01"
    assert ours["tokens_per_step"] == peer["tokens_per_step"] == 128
    assert ours["validation_tokens"] == peer["validation_tokens"] > 0
    assert peer["lower_by"] == peer["bits_per_byte"] - ours["bits_per_byte"]
    assert peer["parameters"] != ours["parameters"]


def test_the_table_shows_the_newest_of_each_piece_of_work(tmp_path, capsys):
    def rows(size, milliseconds):
        times = {"glassgpt": milliseconds, "glassgpt+compile": milliseconds - 10, "nanogpt": 90, "nanogpt+compile": 80}
        return [
            {
                "size": size,
                "contender": name,
                "milliseconds_per_step": time,
                "times_faster": time / times["glassgpt+compile"],
                "tokens_per_second": 1e6 / time,
                "mfu": 0.25,
            }
            for name, time in times.items()
        ]

    results = tmp_path / "results.jsonl"
    records = [
        {"benchmark": "train", "machine": {"device": device, "threads": 2}, "rows": rows(size, time)}
        for device, size, time in [("A", TINY, 70), ("A", "other", 60), ("A", TINY, 50), ("B", TINY, 90)]
    ]
    results.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert benchmark.main(["table", f"--results={results}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "A, 2 threads:"
    # 80 by 40: the faster of each, in the newest record of that size.
    assert lines[4] == (
        f"| tokens a second in training, GPT-2's architecture {TINY} | 25,000 (25% MFU) compiled "
        "| nanoGPT compiled 12,500 (25%) | **2.00** |"
    )
    assert "other" in lines[5] and "20,000" in lines[5]
    assert lines[7] == "B, 2 threads:"
    assert len(lines) == 12


def test_the_table_leaves_out_who_did_not_reach_the_target(tmp_path):
    def row(contender, seconds):
        faster = dict.fromkeys(("times_faster", "times_faster_cold"), seconds and seconds / 2)
        return {"contender": contender, "seconds": seconds, "target": 1.9, **faster}

    results = tmp_path / "results.jsonl"
    rows = [row("glassgpt", None), row("glassgpt+compile", 2.0), row("nanogpt+compile", 8.0), row("nanogpt", None)]
    record = {"benchmark": "time_to_loss", "machine": {"device": "A", "threads": 2}, "rows": rows}
    results.write_text(json.dumps(record))
    assert "| 2.0 compiled | nanoGPT compiled 8.0 | **4.0**; cold 4.0 |" in summary.markdown(results)
    results.write_text(json.dumps(record | {"rows": rows[:1]}))
    assert summary.markdown(results).endswith("| --- | --- | --- | --- |")


def test_the_readme_shows_the_kept_results():
    table = summary.markdown(REPOSITORY / "scripts" / "benchmarks" / "results.jsonl")
    assert table in (REPOSITORY / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [None, "not JSON", '{"rows": []}', "[]"])
def test_no_table_without_results(tmp_path, capsys, content):
    results = tmp_path / "results.jsonl"
    if content is not None:
        results.write_text(content)
    assert benchmark.main(["table", f"--results={results}"]) == 2
    assert str(results) in capsys.readouterr().err


@needs_nanogpt
def test_both_train_on_the_same_work(measure):
    printed = measure(
        "train",
        "--rounds=1",
        "--seconds=0",
        f"--sizes={TINY}",
        f"--nanogpt={NANOGPT}",
        "--contenders",
        "glassgpt",
        "nanogpt",
    )
    ours, theirs = printed["rows"]
    assert ours["parameters"] == theirs["parameters"]
    assert ours["flops_per_token"] == theirs["flops_per_token"]
    assert theirs["times_faster"] == pytest.approx(theirs["milliseconds_per_step"] / ours["milliseconds_per_step"])


@needs_nanogpt
def test_the_default_target_is_what_nanogpt_reaches(measure, characters):
    shape = ["--size=1x2x16/2x8", "--steps=2", "--peer_steps=4", "--evaluations=2", "--contenders", "nanogpt"]
    printed = measure("time_to_loss", "--rounds=2", f"--data={characters}", f"--nanogpt={NANOGPT}", *shape)
    (row,) = printed["rows"]
    lows = [min(point["loss"] for point in curve) for curve in row["curves"]]
    assert row["target"] == max(lows)
    assert None not in row["seconds_of_seeds"]


@needs_nanogpt
def test_nanogpt_generates(measure):
    work = ["--model=1x2x16", "--context=12", "--prompt_tokens=4", "--batches=1", "--new_tokens=3"]
    printed = measure("generate", "--rounds=1", f"--nanogpt={NANOGPT}", *work, "--contenders", "glassgpt", "nanogpt")
    ours, theirs = printed["rows"]
    assert ours["parameters"] == theirs["parameters"]
    assert ours["limit_tokens_per_second"] == theirs["limit_tokens_per_second"]


class Bigrams(nn.Module):
    """Nats that can be looked up: no window or order can change them."""

    def __init__(self):
        super().__init__()
        self.log_probabilities = torch.randn(5, 5).log_softmax(dim=-1)

    def nats(self, tokens, targets):
        return F.nll_loss(self.log_probabilities[tokens].flatten(0, 1), targets.flatten(), reduction="sum")


@pytest.mark.parametrize("length", [2, 8, 9, 10, 57])
def test_validation_counts_every_token_once(length):
    model, text = Bigrams(), torch.randint(5, (length,))
    expected = -model.log_probabilities[text[:-1], text[1:]].double().mean().item()
    assert training.validation_loss(model.nats, model, text, context=4, tokens_at_once=8) == pytest.approx(expected)


def test_validation_sees_windows_side_by_side():
    torch.manual_seed(0)
    size = workload.Size.parse("1x2x16/2x4/5")
    gpt = GPT(replace(loops.gpt2_config(size), dropout=0.5)).eval()
    text = torch.randint(5, (11,))
    nats = torch.zeros(())
    for start in (0, 4, 8):
        window = text[start : start + 5]
        nats += F.cross_entropy(gpt(window[None, :-1])[0], window[1:], reduction="sum")
    gpt.train()
    loss = training.validation_loss(lambda x, y: gpt.loss(x, y, reduction="sum"), gpt, text, context=4)
    assert loss == pytest.approx(nats.item() / 10, rel=1e-5)
    assert gpt.training


def test_a_rehearsal_leaves_no_trace():
    size = workload.Size.parse(TINY)
    tokens = np.arange(200) % 65

    def after(rehearsed):
        loop = loops.build_loop("glassgpt", tokens, size, {"device": "cpu", "steps": 10, "seed": 3})
        first = loop.batch
        if rehearsed:
            state = torch.get_rng_state()
            loops.rehearse(lambda: (torch.rand(()), loop.step()), loop.model, loop.optimizer, "cpu")
            assert torch.equal(torch.get_rng_state(), state)
            loop.step_number, loop.batch = 0, first
        loop.step()
        return torch.cat([parameter.flatten() for parameter in loop.model.parameters()])

    torch.testing.assert_close(after(True), after(False), rtol=0, atol=0)


def test_a_loop_learns():
    size = workload.Size.parse(TINY)
    text = np.tile(np.arange(8), 50)
    loop = loops.build_loop("glassgpt", text, size, {"device": "cpu", "steps": 60, "seed": 0})
    losses = [loop.step().item() for _ in range(60)]
    assert losses[-1] < losses[0] - 0.5


def test_the_text_is_split_as_nanogpt_splits_it(characters, tmp_path):
    text = time_to_loss.Text(characters, tmp_path)
    content = characters.read_text()
    assert (tmp_path / "train.txt").read_text() == content[:2700]
    assert (tmp_path / "validation.txt").read_text() == content[2700:]
    alphabet = sorted(set(content))
    assert text.vocab == len(alphabet)
    ids = np.fromfile(text.validation, dtype=np.int64)
    assert "".join(alphabet[id] for id in ids) == content[2699:]  # one character of context for the first
    assert bytes(np.fromfile(text.validation_bytes, dtype=np.int64).tolist()).decode() == content[2699:]


def test_the_target_counts_as_reached_at_the_first_evaluation_that_shows_it():
    curve = [
        {"step": step, "seconds": step / 2, "loss": loss} for step, loss in [(1, 3.0), (2, 1.9), (3, 2.0), (4, 1.8)]
    ]
    assert time_to_loss.reached(curve, 1.95, warm_up_seconds=5.0) == {
        "steps_to_target": 2,
        "seconds": 1.0,
        "cold_seconds": 6.0,
    }
    assert set(time_to_loss.reached(curve, 1.7, warm_up_seconds=5.0).values()) == {None}


def test_contenders_take_turns_and_the_slow_are_not_asked_again():
    order = []

    def job(name, seconds):
        return lambda turn: order.append((turn.number, name)) or {"seconds": seconds}

    results = processes.alternate({"a": job("a", 1.0), "b": job("b", 9.0)}, rounds=2, patience=5.0)
    assert order == [(0, "a"), (0, "b"), (1, "a")]
    assert processes.times_faster(results["a"], results["b"]) == 9.0
    assert processes.median(results["a"], "seconds") == 1.0


def test_different_amounts_of_work_are_not_compared():
    rows = [{"contender": "a", "parameters": 1}, {"contender": "b", "parameters": 2}]
    with pytest.raises(RuntimeError, match=r"differ in parameters.*a 1, b 2"):
        workload.check(rows, "parameters")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    {
        "size": (["train", "--sizes", "4x4"], "'4x4' is no size: write LAYERSxHEADSxWIDTH"),
        "heads": (["train", "--sizes", "1x3x16/2x8/65"], "width 16 is no multiple of the 3 heads"),
        "contender": (["train", "--contenders", "llama"], "unknown contender 'llama'"),
        "checkout": (["train", "--nanogpt", "nowhere"], "--nanogpt nowhere is no checkout of nanoGPT"),
        "rounds": (["train", "--rounds", "0"], "argument --rounds: must be at least 1, not 0"),
        "seconds": (["train", "--seconds", "nan"], "argument --seconds: must be at least 0, not nan"),
        "evaluations": (["time_to_loss", "--data", "x", "--evaluations", "some"], "invalid int value: 'some'"),
        "device": (["train", "--device", "tpu"], "--device must be cpu or cuda, not tpu"),
        "one of several": (["train", "--device", "cuda:1"], "CUDA_VISIBLE_DEVICES=1"),
        "nobody": (["train", "--contenders", "nanogpt"], "nobody is left to measure: nanogpt is left out"),
        "model": (["generate", "--model", "large"], "--model large is no size: write LAYERSxHEADSxWIDTH"),
        "no peer": (["time_to_loss", "--data", "x.txt"], "set --target, or --nanogpt"),
        "no data": (["time_to_loss", "--data", "x.txt", "--target", "2"], "there is no file x.txt to train on"),
        "context": (["generate", "--context", "20"], "--context 20 is too short"),
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


def test_the_file_runs_as_it_stands(tmp_path):
    command = [sys.executable, str(REPOSITORY / "scripts" / "benchmark.py"), "--help"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert all(name in shown for name in benchmark.BENCHMARKS)
