"""The attention maps and losses that a run records: on which tokens, in which precision, and the warning of a leak."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data.windows import as_batch
from model.inspection.recording import Recording
from model.inspection.texts import MAX_TOKENS, spread_starts
from model.runs.recorder import Recorder
from scripts.inspect_attention import main as inspect_attention
from tests.attentions import LEAK
from tests.small_runs import column, csv_rows


def test_maps_are_compared_with_the_kernel_that_trains(train, trained):
    options = ["--trainer.precision=bf16-mixed", "--trainer.max_steps=4"]
    options += ["--recording.probe_text=the model reads a text"]
    assert train("--name=run", *options) == 0
    for run, kernel, most in ((trained(), "float32", 1e-5), ("runs/run", "bfloat16", 2e-2)):
        recording = Recording.open(Path(run, "attention"))
        checks = [snapshot.checks for snapshot in recording.snapshots]
        assert {check.precision for check in checks} == {kernel}
        assert all(check.fidelity <= most and check.causality == 0 for check in checks)
    assert bytes(recording.probes["text"].tokens[0].tolist()).decode() == "the mode"  # the user's own text
    for step in recording.steps:
        assert recording.readings(step)["text"].figures["attribution_error"] <= 1e-5
    assert recording.readings(4)["text"].figures["tokens"][str(ord("e"))] == "e"


def started(folder, text, length, context=512, masking=False, **options):
    """The recording of a run that validates on these tokens, where token 0 is the end of a text."""
    tokens = np.array(text)
    split = SimpleNamespace(read=lambda start, length: tokens[start : start + length], num_tokens=len(text))
    tokenizer = SimpleNamespace(label=str, fingerprint="x", vocab_size=50, end_of_text=0)
    tokenizer.decode, tokenizer.encode = str, lambda text: []
    tokenized = SimpleNamespace(validation=split)
    data = SimpleNamespace(tokenizer=tokenizer, tokenized=tokenized, document_masking=masking)
    trainer = SimpleNamespace(
        datamodule=data, default_root_dir=folder, **{"is_global_zero": True, "global_step": 0} | options
    )
    gpt = SimpleNamespace(config=SimpleNamespace(context_length=context, window=None), is_finite=lambda: True)
    monitor = Recorder(probe_tokens=length)
    trainer.lightning_module = SimpleNamespace(gpt=gpt)
    monitor.start(trainer)
    return monitor.recording


@pytest.mark.parametrize("known, drawn", [([0, 7, 8, 9], {7, 8, 9}), ([0, 7], {7})])
def test_random_tokens_are_drawn_from_the_tokens_of_the_validation_text(tmp_path, known, drawn):
    tokens = started(tmp_path, known * 20, 20).probes["repeated"].tokens[0].tolist()
    assert tokens[0] == 0 and set(tokens[1:]) <= drawn
    assert len(set(tokens)) == 1 + len(drawn)


@pytest.mark.parametrize("masking", [False, True])
def test_probe_and_windows_are_pieces_of_the_validation_text_with_its_documents(tmp_path, masking):
    """Where training reads documents apart, they have the document ids that training gives."""
    text = [place % 50 for place in range(3000)]
    recording = started(tmp_path, text, 20, context=300, masking=masking)
    probe, windows = recording.probes["text"], recording.windows["text"]
    assert probe.tokens.tolist() == [text[:20]] and recording.probes["repeated"].length <= 20
    starts = spread_starts(3000, 300)
    assert windows.tokens.tolist() == [text[start : start + 300] for start in starts] and len(starts) == 10
    for texts in (probe, windows):
        batch = as_batch(np.pad(texts.tokens.numpy(), ((0, 0), (0, 1))), end_of_text=0, with_documents=True)
        assert torch.equal(texts.document_ids, batch["document_ids"]) if masking else texts.document_ids is None
    assert started(tmp_path, text, 20, is_global_zero=False) is None
    long = started(tmp_path, 4 * text, 500, context=10_000)
    assert {texts.length for texts in long.windows.values()} == {MAX_TOKENS}


def test_a_leak_is_reported_on_the_terminal_on_the_page_and_with_a_table(train, replace_attend, caplog, capsys):
    replace_attend(LEAK)
    assert train("--name=run", "--trainer.max_steps=4") == 0
    warnings = [record.getMessage() for record in caplog.records if "future" in record.getMessage()]
    assert len(warnings) == 2  # at the first leak, and at the end
    assert re.match(r".*step \d+ layers? 0", warnings[-1])
    assert warnings[-1] in Path("runs/run/report.html").read_text()
    capsys.readouterr()
    assert inspect_attention(["--run", "runs/run", "--output", "maps.csv"]) == 0
    assert warnings[-1].removeprefix("At ") in capsys.readouterr().err
    weights = csv_rows("maps.csv")
    assert any(int(row["key"]) > int(row["query"]) and float(row["weight"]) > 0 for row in weights)


def test_the_best_score_of_each_layer_is_logged_and_losses_without_each_part_where_weights_are_kept(trained):
    """And at the end."""
    run = trained("--checkpoints.keep_steps=[4,8]")
    snapshots = Recording.open(run / "attention").snapshots
    best = {snapshot.step: snapshot.scores["induction"][1].max() for snapshot in snapshots}
    assert column(run, "attention/induction/layer_1") == pytest.approx(best, abs=1e-3)
    assert {snapshot.step for snapshot in snapshots if snapshot.ablation} == {4, 8, 12}
    assert all(snapshot.loss.keys() == {"text", "repeated"} for snapshot in snapshots if snapshot.ablation)
