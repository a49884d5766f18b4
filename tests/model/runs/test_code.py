"""code.json: which code a run had, what has changed since, and what a stranger's file may hold."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from model.checkpoint import read_checkpoint
from model.glass import open_run
from model.gpt import GPTConfig
from model.runs import code
from model.runs.code import changed_files, code_hash, current_code, read_code
from model.runs.results import write_report
from tests.attentions import ALIBI
from tests.command_lines import mistake, tells
from tests.gpts import SIZES, change_checkpoint, random_gpt, save_checkpoint

PYTHON = Path(json.__file__).parents[1].name  # the folder of Python's own modules
SOURCE = "def double(x):\n    return 2 * x  # twice\n"


def test_only_what_python_runs_changes_the_hash_of_code():
    assert code_hash(SOURCE) == "9e05c50e51be35ca"  # on every version of Python
    assert code_hash("', '") != code_hash("''")
    assert code_hash("def double(x): return (2*x)") == code_hash(SOURCE)
    for other in (SOURCE.replace("2 *", "3 *"), SOURCE + "'a'.strip()", "def double("):
        assert code_hash(other) != code_hash(SOURCE)


def commit():
    names = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init"], ["add", "."], [*names, "commit", "-m", "some"]):
        subprocess.run(["git", *command], cwd=code.ROOT, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of two files and one commit, in place of ours."""
    root = tmp_path / "a checkout"
    for name in ("train.py", "model/gpt.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(SOURCE)
    monkeypatch.setattr(code, "ROOT", root)
    monkeypatch.chdir(root)
    commit()
    return root


def test_changes_are_counted_in_edited_and_new_files_and_told_once(checkout):
    first = current_code()
    assert first["hashes"].keys() == {"train.py", "model/gpt.py"} and not changed_files([], first)
    (checkout / "train.py").write_text(SOURCE + "# a comment\n")
    commented = current_code()
    assert changed_files([], commented) == "train.py changed: +1 -0" and not changed_files([first], commented)
    (checkout / "model/gpt.py").write_text(SOURCE.replace("2 *", "3 *") + "x = 1\n")
    (checkout / "model/new.py").write_text("a = 1\nb = 2\n")
    edited = current_code()
    assert changed_files([], edited) == (
        "model/gpt.py changed: +2 -1, model/new.py changed: +2 -0, train.py changed: +1 -0"
    )
    assert changed_files([first], edited) == "model/gpt.py changed: +2 -1"
    assert {"+x = 1", "+++ model/new.py", "+b = 2", "+# a comment"} <= {*edited["difference"].splitlines()}
    commit()
    committed = current_code()
    assert changed_files([first], committed) == "model/gpt.py changed"
    assert not changed_files([edited], committed) and not changed_files([], committed)


def test_without_git_without_a_repository_and_inside_another_repository_no_commit_is_told(checkout, monkeypatch):
    first = current_code()
    (checkout / "train.py").write_text("a = 1\n")
    with monkeypatch.context() as without_git:
        without_git.setenv("PATH", "")
        unknown = current_code()
    with monkeypatch.context() as installed:  # as a package inside a repository
        installed.setattr(code, "ROOT", checkout / "model")
        assert current_code()["commit"] is None
    shutil.rmtree(checkout / ".git")
    assert (
        current_code() == unknown
        and unknown["commit"] is None
        and changed_files([first], unknown) == "train.py changed"
    )


PLAIN = {"step": 0, "hashes": {"train.py": "0" * 16}, "changed": {}, "since": ""}
STRANGE = [{"hashes": "a"}, {"hashes": None}, {"step": "a"}]


def test_a_damaged_or_strangers_code_json_is_refused(tmp_path):
    assert read_code(tmp_path) == []
    for content in (*(json.dumps([PLAIN | strange]) for strange in STRANGE), "3", "[" * 10**5):
        (tmp_path / "code.json").write_text(content)
        with mistake(r"code\.json is damaged"):
            read_code(tmp_path)


TYPED = """--data.files='/home/me/my texts/*.txt' --config ~/a/b.yaml --model.init_from runs/a --x='C:\\me\\y'
    --trainer.logger.init_args.api_key=abc --api_key def --x 'monkey one'
    --x hf://def@b/c --data.files '["/a/b.txt","/c/d.txt"]'"""


def test_the_command_line_is_told_without_folders_outside_and_without_secrets():
    told = code.shown_command(shlex.split(TYPED))
    for hidden in ("home", "me", "abc", "def", "~", "/a/", "/c/"):
        assert hidden not in told, told
    assert tells(told, "train.py --data.files=...*.txt b.yaml runs/a 'monkey one' d.txt")
    assert code.shown_command(["--name=\udcff"]).encode()  # a byte that is no text, as Python reads it


def test_a_run_records_its_code_and_refuses_other_code_until_it_is_meant(train, finished_run, capsys, replace_attend):
    (first,) = read_code(finished_run)
    assert first["hashes"] == current_code()["hashes"]
    assert first["step"] == 0 and "--name=run" in first["command"] and first["versions"].keys() > {"python", "torch"}
    assert str(Path.cwd()) not in json.dumps(first) and str(Path.home()) not in json.dumps(first)
    replace_attend(ALIBI)
    resume = ["--resume=runs/run", "--trainer.max_steps=18", "--code_difference=false"]
    for refused in (resume, ["--model.init_from=runs/run"]):
        assert train(*refused) == 2 and tells(capsys.readouterr().err, "runs/run --other_code")
        assert read_code(finished_run) == [first]
    assert train(*resume, "--other_code") == 0
    first_again, second = read_code(finished_run)
    assert first_again == first and second["step"] == 12 and "difference" not in second
    assert second["options"] != first["options"]  # another max_steps
    open_run(finished_run / "checkpoints/last.ckpt", other_code="refuse")  # the other code has trained it since


def test_opening_a_run_names_the_files_that_have_changed(checkout, tmp_path, monkeypatch, replace_attend, caplog):
    run = tmp_path / "run"
    save_checkpoint(run / "checkpoints/best.ckpt", random_gpt(GPTConfig(**SIZES | {"vocab_size": 257})))
    here, there, target = tmp_path / "here", tmp_path / "there", tmp_path / "target"
    (target / "a.dist-info").mkdir(parents=True)
    own = [
        here / "mine.py",
        here / "pkg/part.py",
        there / "theirs.py",
        checkout / "x.py",
        checkout / "model/new/part.py",
    ]
    others = [target / "installed.py", here / f"{PYTHON}/ast.py", checkout / "model/runs/run.py"]
    others += [tmp_path / "far.py", tmp_path / "here-lib/far_too.py"]
    for path in [*own, *others, checkout / "train.py"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SOURCE)
        name = ".".join(path.with_suffix("").parts[-1 - (path.parent.name == "pkg") :])
        as_typed = str(here / os.path.relpath(path, here))
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__file__=as_typed, __name__=name))
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", f"{there}:../target")
    names = {"mine.py", "model/gpt.py", "pkg/part.py", "train.py", "theirs.py", "model/new/part.py", "x.py"}
    assert current_code()["hashes"].keys() == names
    entries = [PLAIN | current_code(), PLAIN | {"step": 7}]  # the checkpoint is of step 7, so the second came later
    monkeypatch.delitem(sys.modules, "mine")
    (run / "code.json").write_text(json.dumps(entries))
    (checkout / "model/gpt.py").write_text(SOURCE + "x = 1\n")
    open_run(run)
    assert not caplog.records
    replace_attend(ALIBI)
    open_run(run)
    path = run / "checkpoints/best.ckpt"
    trained = read_checkpoint(path)
    weights, config = trained["state_dict"], trained["gpt_config"]
    for changes in (
        {"state_dict": weights | {"gpt.blocks.0.attention.sink": torch.zeros(2)}},
        {"gpt_config": config | {"sink": True}},
        {"gpt_config": config | {"activation": "sink"}},
    ):
        change_checkpoint(path, **{"state_dict": weights} | changes)
        with mistake(r"sink.*; model/gpt\.py changed: \+1 -0$"):
            open_run(run, other_code="accept")
    change_checkpoint(path, state_dict=weights, gpt_config=config)
    commit()
    (run / "code.json").unlink()
    open_run(run)
    first, second = caplog.messages
    assert first.endswith(": model/gpt.py changed: +1 -0") and "gpt.py" not in second


def test_the_page_names_the_files_that_changed_and_holds_no_line_of_them(tmp_path):
    change = {"since": "model/attention.py changed: +9 -2", "difference": "+secret"}
    (tmp_path / "code.json").write_text(json.dumps([PLAIN | change]))
    write_report(tmp_path, "running")
    page = (tmp_path / "report.html").read_text()
    assert change["since"] in page and "+secret" not in page
