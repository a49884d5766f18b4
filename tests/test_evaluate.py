"""scripts/evaluate.py: its figures are those of each split, and mistakes get a sentence."""

import json
import math
import shutil

import pytest
import torch

from model.checkpoint import load_gpt
from model.losses import text_logprobs
from scripts.convert_huggingface import main as convert
from scripts.evaluate import main
from tests.command_lines import call, check_mistakes
from tests.gpts import change_checkpoint
from tests.programs import REPOSITORY
from tests.small_runs import column

CONTEXT = 16


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A pattern for eight texts, some shorter than a window, which are split by their names."""
    folder = tmp_path_factory.mktemp("tales")
    for number in range(8):
        (folder / f"{number}.txt").write_text(f"tale {number}\n" * (number // 3 + 1), encoding="utf-8")
    return f"{folder}/*.txt"


@pytest.fixture
def masked(trained, files):
    """A run on these files that attends within documents only."""
    quiet = ("--recording.enabled=false", "--samples.max_new_tokens=0")
    return trained("--data.files", files, "--data.validation_fraction=0.5", "--data.document_masking=true", *quiet)


def result(capsys, *arguments):
    status, out, err = call(main, capsys, *arguments, "--json")
    assert status == 0, err
    return json.loads(out, parse_constant=pytest.fail)  # Infinity and NaN are no JSON


@pytest.mark.parametrize("share, stride", [(0.2, 5), (None, CONTEXT)])
def test_the_figures_are_those_of_the_validation_split_or_of_the_whole_text(run_dir, capsys, tmp_path, share, stride):
    """A document that is cut into two splits is scored whole. tests/model/test_losses.py has the plain loop."""
    path = tmp_path / "tale.txt"
    path.write_text("Once upon a time, añ€😀. " * 30, encoding="utf-8")
    options = ("--checkpoint", run_dir, "--data.files", path)
    validation = ("--data.validation_fraction", share) if share else ()
    found = result(capsys, *options, *validation, "--stride", stride)
    text = path.read_bytes()[int(path.stat().st_size * (1 - (share or 1))) :].decode(errors="ignore")
    gpt, _ = load_gpt(run_dir)
    each = -text_logprobs(gpt, torch.tensor([256, *text.encode(), 256]), stride=stride).double()
    assert found["nats_per_token"] == pytest.approx(each.mean().item(), abs=1e-5)
    assert found["perplexity"] == pytest.approx(each.mean().exp().item(), rel=1e-5)
    assert (found["documents"], found["bytes"], found["tokens"]) == (1, len(text.encode()), len(each))
    assert found["bits_per_byte"] == pytest.approx(each[:-1].mean().item() / math.log(2), abs=1e-5)
    if share is None:
        assert found == result(capsys, *options)  # the default stride and split
        assert result(capsys, *options, "--data.max_tokens", 50)["tokens"] == 50 - 1


def test_without_options_the_figures_are_those_of_training(masked, files, capsys):
    last = ("--checkpoint", masked / "checkpoints/last.ckpt")
    found = result(capsys, *last)
    assert found["documents"] > 1
    for figure, name in (("nats_per_token", "val/loss"), ("bits_per_byte", "val/bits_per_byte")):
        assert found[figure] == pytest.approx(column(masked, name)[12], rel=1e-5)
    # A text that the user names is read with the model's masking, and with no other option of the run.
    named = (*last, "--data.files", files)
    assert result(capsys, *named, "--data.validation_fraction", 0.5) == found
    assert result(capsys, *named, "--split", "validation")["documents"] < found["documents"]


def test_several_models_get_a_line_each_with_path_and_step_apart(run_dir, masked, capsys, files):
    both = [str(run_dir / "checkpoints/best.ckpt"), str(masked / "checkpoints/last.ckpt")]
    status, out, _ = call(main, capsys, "--checkpoint", *both, f"--data.files={files}", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [(line["checkpoint"], line["step"]) for line in lines] == [*zip(both, (7, 12), strict=True)]
    assert lines[1] == result(capsys, "--data.files", files, "--checkpoint", both[1])


def test_figures_that_are_not_finite_are_null_in_json(run_dir, capsys, files, tmp_path):
    path = shutil.copy(run_dir / "checkpoints/best.ckpt", tmp_path / "diverged.ckpt")
    weights = {name: torch.nan * weight for name, weight in torch.load(path)["state_dict"].items()}
    change_checkpoint(path, state_dict=weights)
    found = result(capsys, "--checkpoint", path, "--data.files", files)
    assert [found[name] for name in ("perplexity", "nats_per_token", "bits_per_byte")] == [None] * 3


def test_the_splits_add_up_to_all_of_the_users_files_which_is_the_default(run_dir, capsys, files):
    options = ("--checkpoint", run_dir, "--data.files", files)
    parts = {split: result(capsys, *options, "--split", split) for split in ("train", "validation", "all")}
    for name in ("documents", "bytes"):
        assert parts["train"][name] + parts["validation"][name] == parts["all"][name]
    assert parts["all"]["documents"] == 8 and parts["all"]["tokens"] == parts["all"]["bytes"] + 8
    assert result(capsys, *options) == parts["all"]


def test_documents_are_masked_as_in_training_for_a_run_a_checkpoint_and_an_exported_folder(
    masked, capsys, tmp_path, files
):
    pytest.importorskip("transformers")
    loose = shutil.copy(masked / "checkpoints/best.ckpt", tmp_path / "loose.ckpt")
    folder, again = tmp_path / "exported", tmp_path / "again.ckpt"
    for conversion in (("export", loose, folder), ("import", folder, again)):
        assert call(convert, capsys, *conversion)[0] == 0

    def score(path):
        return result(capsys, "--data.files", files, "--checkpoint", path)["nats_per_token"]

    assert score(masked) == score(loose) == score(folder) == score(again)
    change_checkpoint(loose, document_masking=False)
    assert score(loose) != score(masked)


MISTAKES = {
    "--stride 0": "--stride 0",
    "--stride 17": "--stride 17 16",
    "--data.files nothing/*.txt": "'nothing/*.txt'",
    "--data.tokenizer gpt2": "--data.tokenizer",
}


def test_every_mistake_gets_one_sentence(run_dir, capsys, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    check_mistakes(main, capsys, MISTAKES, "--checkpoint", run_dir)
