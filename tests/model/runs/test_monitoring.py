"""The attention maps that a run records: on which tokens, in which precision, and after a resume."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from model.attention import CausalSelfAttention
from model.inspection.probes import MAX_PROBE_TOKENS
from model.inspection.recording import Recording
from model.runs.monitoring import AttentionMonitor
from scripts.inspect_attention import main as inspect_attention
from tests.attentions import LEAK
from tests.small_runs import csv_rows


def test_maps_are_compared_with_the_kernel_that_trains(train, trained):
    options = ["--trainer.precision=bf16-mixed", "--trainer.max_steps=4"]
    options += ["--attention.probe_text=the model reads a text"]
    assert train("--name=run", *options) == 0
    for run, kernel, most in ((trained(), "float32", 1e-5), ("runs/run", "bfloat16", 2e-2)):
        recording = Recording.open(Path(run, "attention"))
        checks = [snapshot.checks for snapshot in recording.snapshots]
        assert {one.precision for one in checks} == {kernel}
        assert all(one.fidelity <= most and one.causality == 0 for one in checks)
    assert bytes(recording.probes["text"].tokens).decode() == "the mode"  # the person's own text
    for step in recording.steps:
        assert recording.details(step)["probes"]["text"]["attribution_error"] <= 1e-5
    assert recording.details(4)["tokens"][str(ord("e"))] == "e"


def test_a_resumed_run_removes_later_maps(train):
    assert train("--name=run", "--trainer.max_steps=8", "--checkpoints.keep_steps=[6]") == 0
    start = "runs/run/checkpoints/step_00000006.ckpt"
    assert train(f"--resume={start}", "--trainer.val_check_interval=7", "--trainer.max_steps=7") == 0
    folder = Path("runs/run/attention")
    assert Recording.open(folder).steps == [0, 1, 2, 4, 6, 7]
    assert len(list(folder.glob("step_*.npz"))) == 6


def started(folder: Path, encode, length: int, is_global_zero: bool = True, context: int = 512) -> AttentionMonitor:
    """A recording of a text whose tokens `encode` gives for a number of characters."""
    tokenizer = SimpleNamespace(encode=encode, label=str, fingerprint="x", vocab_size=50, end_of_text=0)
    data = SimpleNamespace(tokenizer=tokenizer, validation_text=lambda size: size)
    trainer = SimpleNamespace(is_global_zero=is_global_zero, datamodule=data, default_root_dir=folder)
    gpt = SimpleNamespace(config=SimpleNamespace(context_length=context, window=None))
    recording = AttentionMonitor(probe_tokens=length)
    recording.start(trainer, SimpleNamespace(gpt=gpt))
    return recording


@pytest.mark.parametrize(
    ("known", "drawn"), [([0, 7, 8, 9], {7, 8, 9}), ([0, 7], set(range(1, 50))), ([], set(range(1, 50)))]
)
def test_random_tokens_are_drawn_from_those_of_the_validation_text(tmp_path, known, drawn):
    """From all tokens if the text has fewer than two."""
    recording = started(tmp_path, lambda size: [7, 8] * 10 if size == 16 * 20 else known, 20)
    tokens = recording.recording.probes["repeated"].tokens
    assert tokens[0] == 0 and set(tokens[1:]) <= drawn
    assert len(set(tokens)) == 1 + min(9, len(drawn))


@pytest.mark.parametrize("length", [8, 20, 300])
def test_the_text_probe_is_the_beginning_of_the_text(tmp_path, length):
    def encode(size: int) -> list[int]:
        return list(range(1, min(size, 1000) + 1))

    recording = started(tmp_path, encode, length)
    probes = recording.recording.probes
    assert probes["text"].tokens == list(range(1, length + 1))
    assert len(probes["repeated"].tokens) <= length
    assert recording.recording.folder == tmp_path / "attention"
    elsewhere = started(tmp_path, encode, length, is_global_zero=False)
    assert elsewhere.recording is None


def test_a_context_that_is_longer_than_a_probe_may_be_is_measured_on_its_beginning(tmp_path):
    recording = started(tmp_path, lambda size: [place % 50 for place in range(size)], 20, context=10_000).recording
    assert {kind.length for kind in recording.windows.values()} == {MAX_PROBE_TOKENS}


def test_powers_of_two_and_every_so_many_steps_are_recorded():
    steps = range(1, 40)
    assert [s for s in steps if AttentionMonitor(early_steps=8).is_due(s)] == [1, 2, 4, 8]
    assert [s for s in steps if AttentionMonitor(early_steps=4, every_n_steps=15).is_due(s)] == [1, 2, 4, 15, 30]


def test_a_leak_is_told_on_the_terminal_in_the_report_on_the_page_and_with_a_table(train, monkeypatch, caplog, capsys):
    monkeypatch.setattr(CausalSelfAttention, "attend", LEAK)
    assert train("--name=run") == 0
    told = [record.getMessage() for record in caplog.records if "into the future" in record.getMessage()]
    assert len(told) == 2  # when first seen, and at the end
    sentence = r"At step \d+ layers? 0.* into the future: changing token \d+ moves .*; the loss means nothing."
    assert re.fullmatch(sentence, told[-1])
    assert told[-1] in Path("runs/run/report.html").read_text()
    capsys.readouterr()
    assert inspect_attention(["--run", "runs/run", "--output", "maps.csv"]) == 0
    assert told[-1].removeprefix("At ") in capsys.readouterr().err
    weights = csv_rows("maps.csv")
    assert any(int(row["key"]) > int(row["query"]) and float(row["weight"]) > 0 for row in weights)
    assert inspect_attention(["--run", "runs/run", "--output", "maps.html"]) == 0
    assert told[-1] in Path("maps.html").read_text()


def test_losses_without_each_part_are_measured_where_weights_are_kept_and_at_the_end(train):
    options = ["--trainer.max_steps=6", "--attention.early_steps=2", "--checkpoints.keep_steps=[3]"]
    assert train("--name=run", *options) == 0
    snapshots = Recording.open(Path("runs/run/attention")).snapshots
    measured = {one.step: one.ablation is not None for one in snapshots}
    assert measured == {0: False, 1: False, 2: False, 3: True, 4: False, 6: True}
    for one in (one for one in snapshots if one.ablation):
        errors = [change.error for kind in one.ablation.values() for change in kind.values()]
        assert one.ablation.keys() == one.loss.keys() == {"text", "repeated"} and all(error >= 0 for error in errors)
