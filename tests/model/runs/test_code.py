"""code.json: which code a run had, what has changed since, and what a stranger's file may hold."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
import torch

from model.attention import CausalSelfAttention
from model.glass import open_run
from model.gpt import GPT, GPTConfig
from model.runs import code
from model.runs.code import changes_since, code_hash, in_words, own_sources, read_code
from model.runs.results import write_report
from tests.attentions import ALIBI
from tests.command_lines import tells
from tests.gpts import random_gpt, save_checkpoint

SIZES = {"vocab_size": 257, "context_length": 16, "num_layers": 2, "num_heads": 2, "embed_dim": 32}
SOURCE = '"""A module."""\n\n\ndef double(x):\n    """Doubles."""\n    return 2 * x  # twice\n'


def test_only_what_python_runs_changes_the_hash_of_code():
    for equal in ("def double(x): return (2 * x)", "'Another.'\ndef double(x):\n\n    '''More.'''\n    return 2*x"):
        assert code_hash(equal) == code_hash(SOURCE)
    for other in (SOURCE.replace("2 *", "3 *"), SOURCE + "'a'.strip()", "def double("):
        assert code_hash(other) != code_hash(SOURCE)


def call_git(*arguments: str) -> None:
    names = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *names, *arguments], cwd=code.ROOT, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A checkout of two files and one commit, in place of ours."""
    root = tmp_path / "a checkout"
    for name in ("train.py", "model/gpt.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(SOURCE)
    monkeypatch.setattr(code, "ROOT", root)
    monkeypatch.chdir(root)
    call_git("init")
    call_git("add", ".")
    call_git("commit", "-m", "first")
    return root


def entry(with_difference: bool = True) -> dict:
    """The entry of a new run in this checkout."""
    validation = SimpleNamespace(checksum=1, num_bytes=2)
    with TemporaryDirectory() as folder:
        trainer = SimpleNamespace(
            datamodule=SimpleNamespace(tokenized=SimpleNamespace(validation=validation)),
            default_root_dir=folder,
            global_step=0,
            lightning_module=SimpleNamespace(gpt=GPT(GPTConfig(**SIZES))),
            strategy=SimpleNamespace(root_device=torch.device("cpu")),
        )
        code.record_code(trainer, "", with_difference)
        return read_code(Path(folder))[0]


def test_changes_are_counted_in_edited_new_and_removed_files_also_after_a_commit(checkout):
    first = entry()
    assert first["hashes"].keys() == {"train.py", "model/gpt.py"} and not first["changed"]
    (checkout / "train.py").write_text(SOURCE + "# a comment\n")
    assert entry()["changed"] == {"train.py": "changed: +1 -0"} and not changes_since(first)
    (checkout / "model/gpt.py").write_text(SOURCE.replace("2 *", "3 *").replace("# twice", "") + "x = 1\n")
    (checkout / "model/new.py").write_text("a = 1\nb = 2\n")
    expected = {"model/gpt.py": "changed: +2 -1", "model/new.py": "changed: +2 -0"}
    assert changes_since(first) == expected and in_words(expected).startswith("model/gpt.py changed: +2 -1, model/new")
    edited = entry()
    assert edited["changed"] == expected | {"train.py": "changed: +1 -0"}
    assert {"+x = 1", "+++ model/new.py", "+b = 2"} <= {*edited["difference"].splitlines()}
    assert entry(with_difference=False)["difference"] is None
    call_git("add", ".")
    call_git("commit", "-m", "second")
    assert changes_since(first) == expected and not changes_since(edited) and not entry()["changed"]
    (checkout / "model/new.py").unlink()
    call_git("checkout", "HEAD~", "model/gpt.py")
    assert changes_since(edited) == {"model/gpt.py": "changed", "model/new.py": "changed"}


def test_without_git_without_commits_and_inside_another_repository_no_commit_is_told(checkout, monkeypatch):
    first = entry()
    (checkout / "train.py").write_text("a = 1\n")
    with monkeypatch.context() as without_git:
        without_git.setenv("PATH", "")
        assert changes_since(first) == {"train.py": "changed"} and entry()["commit"] is None
    with monkeypatch.context() as installed:  # as a package inside a repository
        installed.setattr(code, "ROOT", checkout / "model")
        assert entry()["commit"] is None
    shutil.rmtree(checkout / ".git")
    call_git("init")
    call_git("add", ".")
    assert changes_since(first) == {"train.py": "changed"} and entry()["commit"] is None


PLAIN = {"step": 0, "commit": None, "hashes": {"train.py": "0" * 16}, "changed": {}, "since": {}}
STRANGE = [
    {"hashes": {"a\x1b[2J.py": "0" * 16}},
    {"changed": {"train.py": "changed\n"}},
    {"since": {"train.py": 2}},
    {"hashes": 3},
    {"commit": "--output=here"},
    {"step": "a"},
]


def test_a_damaged_or_strangers_code_json_is_refused(tmp_path):
    path = tmp_path / "code.json"
    path.write_text(json.dumps([PLAIN]))
    assert read_code(tmp_path) == [PLAIN] and read_code(tmp_path / "none") == []
    for content in (*(json.dumps([PLAIN | strange]) for strange in STRANGE), "3", "[3]", "{", "[" * 10**5):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"code\.json is damaged"):
            read_code(tmp_path)


TYPED = """--data.files='/home/me/my texts/*.txt' --config ~/a/b.yaml --model.init_from runs/a --x='C:\\me\\y'
    --trainer.logger.init_args.api_key=abc --api_key def --data.files '["/a/b.txt","/c/d.txt"]'"""


def test_the_command_line_is_told_without_folders_outside_and_without_secrets():
    told = code.told(shlex.split(TYPED))
    for hidden in ("home", "me", "abc", "def", "~", "/a/", "/c/"):
        assert hidden not in told, told
    assert tells(told, "train.py *.txt b.yaml runs/a d.txt --data.files")


def use_alibi(monkeypatch) -> None:
    monkeypatch.setattr(CausalSelfAttention, "attend", ALIBI)


def test_a_run_records_its_code_and_refuses_other_code_until_it_is_meant(train, finished_run, capsys, monkeypatch):
    (first,) = read_code(finished_run)
    assert first["hashes"] == {name: code_hash(source) for name, source in own_sources().items()}
    assert first["step"] == 0 and "--name=run" in first["command"] and first["versions"].keys() > {"python", "torch"}
    assert str(Path.cwd()) not in json.dumps(first) and str(Path.home()) not in json.dumps(first)
    use_alibi(monkeypatch)
    resume = ["--resume=runs/run", "--trainer.max_steps=18", "--code_difference=false"]
    for refused in (resume, ["--model.init_from=runs/run"]):
        assert train(*refused) == 2 and tells(capsys.readouterr().err, "runs/run --other_code")
        assert read_code(finished_run) == [first]
    assert train(*resume, "--other_code") == 0
    first_again, second = read_code(finished_run)
    assert first_again == first and (second["step"], second["difference"]) == (12, None)
    open_run(finished_run / "checkpoints/last.ckpt", other_code="refuse")  # the other code has trained it since


def test_opening_a_run_names_the_files_that_have_changed(checkout, tmp_path, monkeypatch, caplog):
    run = tmp_path / "run"
    save_checkpoint(run / "checkpoints/best.ckpt", random_gpt(GPTConfig(**SIZES)))
    entries = [PLAIN | entry(), PLAIN | {"step": 7}]  # the checkpoint is of step 7, so the second trained only later
    (run / "code.json").write_text(json.dumps(entries))
    (checkout / "model/gpt.py").write_text(SOURCE + "x = 1\n")
    open_run(run)
    assert not caplog.records
    use_alibi(monkeypatch)
    open_run(run)
    (run / "code.json").write_text("damaged")
    open_run(run)
    first, second = caplog.messages
    assert "model/gpt.py changed: +1 -0" in first and "gpt.py" not in second


def test_the_page_names_the_files_that_changed_and_holds_no_line_of_them(tmp_path):
    change = {"since": {"model/attention.py": "changed: +9 -2"}, "difference": "+secret"}
    (tmp_path / "code.json").write_text(json.dumps([PLAIN | change]))
    write_report(tmp_path, "running")
    page = (tmp_path / "report.html").read_text()
    assert "model/attention.py changed: +9 -2" in page and "+secret" not in page
