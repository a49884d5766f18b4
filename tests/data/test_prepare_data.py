"""scripts/prepare_data.py: the table that it prints, and a sentence for every mistake."""

import os
from pathlib import Path

import pytest

from data.datamodule import TextDataModule
from scripts.prepare_data import main
from tests.command_lines import call, refused

CONFIG = """
seed_everything: 1
model: {gpt: {num_layers: 2}}
data:
  files: FOLDER/*.txt
  tokenizer: bpe
  vocab_size: 300
  context_length: 16
trainer: {max_steps: 10}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLASSGPT_CACHE", str(tmp_path / "cache"))
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text("".join(f"{number * i} bottles of beer\n" for i in range(100)))
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG.replace("FOLDER", str(tmp_path)))
    return path


def test_the_table_is_of_the_tokens_that_training_reads(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    assert main(["--config", str(config)]) == 0
    output = capsys.readouterr().out
    tokenized = TextDataModule(files=str(tmp_path / "*.txt"), vocab_size=300, context_length=16).cache.open()
    rows = {split: cells for split, *cells in (line.replace(",", "").split() for line in output.splitlines())}
    for split, part in (("train", tokenized.train), ("validation", tokenized.validation)):
        assert [*map(int, rows[split][:3])] == [part.num_documents, part.num_tokens, part.num_bytes]
    assert f"in {tokenized.folder}" in output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--config"], "argument --config"),
        (["--data.files", "nothing/*.txt"], "no file matches 'nothing/*.txt'"),
        (["--data.contxt_length", "5"], "no option --data.contxt_length; did you mean --data.context_length?"),
        (["--data.fil", "x"], "there is no option --data.fil"),
        (["--conf", "x"], "there is no option --conf"),
        (["--data.context_length", "1000000"], "context_length 1,000,000 needs at least 1,000,001 tokens"),
        (["--data.files", "FOLDER/binary"], "is not UTF-8 text at byte offset 3"),
    ],
)
def test_a_mistake_gets_one_sentence(config: Path, tmp_path: Path, capfd, arguments: list[str], sentence: str):
    (tmp_path / "binary").write_bytes(b"abc\xff\xfe")
    arguments = [part.replace("FOLDER", str(tmp_path)) for part in arguments]
    status, _, error = call(main, capfd, *([] if "--config" in arguments else ["--config", config]), *arguments)
    (said,) = [line for line in error.splitlines() if line.startswith("prepare_data.py: ")]
    assert status == 2 and sentence in said


@pytest.mark.parametrize("content", ["just text", "a: [", "data: {colour: red}", "data: 3", "data: \udcff"], ids=ascii)
def test_a_file_that_is_not_a_training_config_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture, content: str):
    (tmp_path / "other.yaml").write_bytes(os.fsencode(content))
    error = refused(main, capsys, "--config", tmp_path / "other.yaml")
    assert "other.yaml" in error or "colour" in error


def test_ctrl_c_says_what_the_next_call_does(config: Path, monkeypatch, capsys: pytest.CaptureFixture):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(TextDataModule, "setup", stop)
    assert main(["--config", str(config)]) == 130
    assert "the next call starts again" in capsys.readouterr().err
