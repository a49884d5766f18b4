"""Tests scripts/evaluate.py: its figures on each split, and one sentence for every mistake."""

import json
import math
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from model.checkpoint import load_gpt
from model.exchange.evaluation import text_logprobs
from model.gpt import GPT
from scripts.convert_huggingface import main as convert
from scripts.evaluate import main
from tests.command_lines import call, refused, tells
from tests.small_runs import REPOSITORY, metrics
from tests.watching import before_call

CONTEXT = 16


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> str:
    """A glob of eight texts, some shorter than a window. Their names decide which split each one is in."""
    folder = tmp_path_factory.mktemp("tales")
    for number in range(8):
        (folder / f"{number}.txt").write_text(f"tale {number}\n" * (number // 3 + 1), encoding="utf-8")
    return f"{folder}/*.txt"


@pytest.fixture
def masked(trained, files) -> Path:
    """A run trained on these files, whose attention stays within a document."""
    return trained("--data.files", files, "--data.validation_fraction=0.5", "--data.document_masking=true")


def result(capsys, *arguments) -> dict:
    status, out, err = call(main, capsys, *arguments, "--json")
    assert status == 0, err
    return json.loads(out)


def nats(run_dir: Path, text: str, stride: int) -> torch.Tensor:
    """Nats of each token of one document. tests/model/exchange/test_evaluation.py tests `text_logprobs` by a loop."""
    gpt, _ = load_gpt(run_dir / "checkpoints" / "best.ckpt")
    return -text_logprobs(gpt, torch.tensor([256, *text.encode(), 256]), stride=stride).double()


@pytest.mark.parametrize("stride", [5, CONTEXT])
def test_the_figures_are_those_of_the_held_out_text(run_dir, capsys, tmp_path, stride):
    path = tmp_path / "tale.txt"
    path.write_text("Once upon a time, añ€😀. " * 30, encoding="utf-8")
    options = ("--checkpoint", run_dir, "--data.files", path, "--split", "validation")
    options += ("--data.validation_fraction", 0.2)
    figures = result(capsys, *options, "--stride", stride)
    held_out = path.read_bytes()[int(path.stat().st_size * 0.8) :].decode(errors="ignore")
    each = nats(run_dir, held_out, stride)
    assert figures["nats_per_token"] == pytest.approx(each.mean().item(), abs=1e-5)
    assert figures["perplexity"] == pytest.approx(each.mean().exp().item(), rel=1e-5)
    num_bytes = len(held_out.encode())
    assert (figures["documents"], figures["bytes"], figures["tokens"]) == (1, num_bytes, num_bytes + 1)
    assert figures["bits_per_byte"] == pytest.approx(each[:-1].mean().item() / math.log(2), abs=1e-5)
    if stride == CONTEXT:
        assert figures == result(capsys, *options)


def test_the_default_figure_is_that_of_training(masked, files, capsys, monkeypatch):
    last, counts = ("--checkpoint", masked / "checkpoints" / "last.ckpt"), []
    before_call(monkeypatch.setattr, GPT, "features", lambda gpt, windows, **_: counts.append(len(windows)))
    figures = result(capsys, *last, "--batch_size", 3)
    assert max(counts) == 3 and figures["documents"] > 1
    row = [row for row in metrics(masked) if row["val/loss"]][-1]
    assert figures["nats_per_token"] == pytest.approx(float(row["val/loss"]), rel=1e-5)
    assert figures["bits_per_byte"] == pytest.approx(float(row["val/bits_per_byte"]), rel=1e-5)
    # A named text is read with the model's masking, but without the run's other options.
    named = (*last, "--data.files", files, "--split", "validation")
    assert result(capsys, *named, "--data.validation_fraction", 0.5) == figures
    assert result(capsys, *named)["documents"] < figures["documents"]


def test_the_splits_add_up_and_without_one_all_of_a_persons_own_files_is_in_the_table(run_dir, capsys, files):
    options = ("--checkpoint", run_dir, "--data.files", files)
    parts = {split: result(capsys, *options, "--split", split) for split in ("train", "validation", "all")}
    for name in ("documents", "bytes"):
        assert parts["train"][name] + parts["validation"][name] == parts["all"][name]
    assert parts["all"]["documents"] == 8 and parts["all"]["tokens"] == parts["all"]["bytes"] + 8
    assert result(capsys, *options) == parts["all"]
    status, out, err = call(main, capsys, "--checkpoint", run_dir, f"--data.files={files}")
    table = {line[:16].strip(): line[16:] for line in out.splitlines()}
    assert status == 0 and tells(err, f"{table['text']} all {parts['all']['tokens'] + 1}")
    assert float(table["bits per byte"]) == pytest.approx(parts["all"]["bits_per_byte"], abs=1e-6)
    assert table["split"] == "all"


def test_a_document_that_is_cut_into_the_splits_is_scored_as_one(run_dir, capsys, tmp_path):
    (tmp_path / "tale.txt").write_text("Once upon a time, añ€😀. " * 5, encoding="utf-8")
    options = ("--checkpoint", run_dir, "--data.files", tmp_path / "tale.txt", "--split", "all")
    figures = result(capsys, *options)
    text = (tmp_path / "tale.txt").read_text(encoding="utf-8")
    assert (figures["documents"], figures["tokens"]) == (1, len(text.encode()) + 1)
    assert figures["nats_per_token"] == pytest.approx(nats(run_dir, text, CONTEXT).mean().item(), abs=1e-5)
    limited = result(capsys, *options, "--data.max_tokens", 50)
    assert (limited["documents"], limited["tokens"], limited["bytes"]) == (1, 49, 49)
    assert result(capsys, *options[:-1], "train", "--data.max_tokens", 20)["tokens"] == 20 - 1


def test_a_model_is_masked_outside_its_run_as_in_it(masked, capsys, tmp_path, files):
    pytest.importorskip("transformers")
    loose = shutil.copy(masked / "checkpoints" / "best.ckpt", tmp_path / "loose.ckpt")
    folder, copy, again = tmp_path / "exported", tmp_path / "copy", tmp_path / "again.ckpt"
    conversions = (("export", loose, folder), ("export", folder, copy), ("import", copy, again))
    assert [convert([*map(str, conversion)]) for conversion in conversions] == [0, 0, 0]
    capsys.readouterr()  # drops what the training and the conversions printed
    scores = set()
    for path in (masked, loose, folder, again):
        scores.add(result(capsys, "--data.files", files, "--checkpoint", path)["nats_per_token"])
    plain = result(capsys, "--data.files", files, "--checkpoint", loose, "--data.document_masking", "false")
    assert len(scores) == 1 and plain["nats_per_token"] not in scores


def test_a_run_whose_files_have_changed_is_not_said_to_be_scored_on_its_own_split(masked, capsys, files):
    texts = {path: path.read_text(encoding="utf-8") for path in Path(files).parent.glob("*.txt")}
    for has_changed in (False, True):
        for path, text in texts.items():
            path.write_text(text[::-1] if has_changed else text)
        for split in ("train", "validation"):
            status, _, err = call(main, capsys, "--checkpoint", masked, "--split", split)
            assert status == 0 and ("have changed" in err) == has_changed
    _, _, err = call(main, capsys, "--checkpoint", masked, "--data.files", files)  # a text that the user names
    assert "have changed" not in err
    for path, text in texts.items():
        path.write_text(text)


MISTAKES = {
    "--stride 0": "--stride 0",
    "--stride 17": "--stride 17 16",
    "--batch_size 0": "--batch_size 0",
    "--data.files nothing/*.txt": "'nothing/*.txt'",
    "--data.tokenizer gpt2": "--data.tokenizer",
    "--data.files tests/*.py --data.validation_fraction 0.2": "--data.validation_fraction --split",
}


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_gets_one_sentence(run_dir, capsys, monkeypatch, typed):
    monkeypatch.chdir(REPOSITORY)
    assert tells(refused(main, capsys, "--checkpoint", run_dir, *shlex.split(typed)), MISTAKES[typed])
