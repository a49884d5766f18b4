"""Which run folder and which checkpoint a person means, and the name of a new run's folder."""

import os
from pathlib import Path

import pytest
import torch

from model.runs import folder

pytestmark = pytest.mark.usefixtures("here")


def write(path: str, age: int = 0) -> Path:
    """A file `age` seconds old; a checkpoint is one that torch.save wrote."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".ckpt":
        torch.save({"number": age}, path)
    else:
        path.write_text("model: {}\ndata: {}\ntrainer: {}\n")
    os.utime(path, (1e9 - age, 1e9 - age))
    return path


def test_the_newest_run_and_its_best_checkpoint_are_found():
    for age, name in enumerate(["new/checkpoints/last.ckpt", "new/checkpoints/best.ckpt", "old/checkpoints/best.ckpt"]):
        write(f"runs/{name}", age)
    Path("runs/empty").mkdir()
    assert folder.find_checkpoint() == Path("runs/new/checkpoints/best.ckpt")
    for path in ("runs/old", "runs/old/checkpoints"):
        assert folder.find_checkpoint(Path(path)) == Path("runs/old/checkpoints/best.ckpt")
    assert folder.find_checkpoint(Path("runs/new/checkpoints/last.ckpt")).name == "last.ckpt"
    Path("runs/new/checkpoints/best.ckpt").unlink()
    assert folder.find_checkpoint(Path("runs/new")).name == "last.ckpt"


def test_a_run_is_found_by_anything_in_it_or_as_the_newest(monkeypatch):
    write("runs/new/metrics.csv", age=1)
    write("runs/old/metrics.csv", age=2)
    write("runs/old/attention/probe.json")
    write("runs/without/config.yaml")
    assert folder.find_run(None, folder.METRICS) == Path("runs/new")
    for path in ("runs/old", "runs/old/metrics.csv", "runs/old/attention", "runs/old/attention/probe.json"):
        assert folder.find_run(Path(path), folder.METRICS) == Path("runs/old")
    monkeypatch.chdir("runs/old/attention")
    assert folder.find_run(Path("probe.json"), folder.METRICS) == Path.cwd().parent


def test_files_outside_the_given_folder_are_never_taken():
    for name in ("checkpoints/best.ckpt", "config.yaml", "runs/config.yaml"):
        write(name)
    Path("runs/empty").mkdir()
    for find in (folder.find_checkpoint, folder.resume_point):
        with pytest.raises(FileNotFoundError, match="runs/empty is not a run folder"):
            find(Path("runs/empty"))


def test_a_run_is_resumed_from_its_newest_checkpoint_that_is_not_damaged(caplog):
    with pytest.raises(FileNotFoundError, match="there is no runs/a"):
        folder.resume_point(Path("runs/a"))
    write("runs/a/config.yaml")
    with pytest.raises(FileNotFoundError, match="runs/a has no checkpoint to resume from"):
        folder.resume_point(Path("runs/a"))
    last, previous, best = (write(f"runs/a/checkpoints/{name}.ckpt") for name in ("last", "previous", "best"))
    assert folder.resume_point(Path("runs/a")) == folder.resume_point(last) == (Path("runs/a"), last)
    assert folder.resume_point(best) == (Path("runs/a"), best)
    for checkpoint, expected in ((last, previous), (previous, best)):
        checkpoint.write_bytes(checkpoint.read_bytes()[:-20])
        assert folder.resume_point(Path("runs/a")) == (Path("runs/a"), expected)
        assert f"{checkpoint} is damaged" in caplog.text and f"Resuming from {expected} instead" in caplog.text
    with pytest.raises(ValueError, match=r"last.ckpt is damaged"):
        folder.resume_point(last)
    best.write_bytes(b"")
    with pytest.raises(ValueError, match=r"best.ckpt is damaged"):
        folder.resume_point(Path("runs/a"))
    Path("runs/a/config.yaml").write_text("seed_everything: 1")
    with pytest.raises(ValueError, match=r"config.yaml is damaged: restore the options"):
        folder.resume_point(Path("runs/a"))


def test_kept_checkpoints_are_found_by_their_steps():
    write("runs/a/checkpoints/last.ckpt")
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 5, only of the best and the last: .*'\[5,7\]'"):
        folder.find_kept(Path("runs/a"), [5, 7])
    for step in (100, 20, 3):
        write(str(folder.kept_checkpoint(Path("runs/a"), step)))
    write("runs/a/checkpoints/step_old.ckpt")
    assert folder.kept_steps(Path("runs/a")) == [3, 20, 100]
    found = [path.relative_to(Path.cwd() / "runs/a") for path in folder.find_kept(Path("runs/a"), [100, 3])]
    assert found == [Path("checkpoints/step_00000100.ckpt"), Path("checkpoints/step_00000003.ckpt")]
    with pytest.raises(FileNotFoundError, match="no checkpoint of step 4, only of 3, 20, 100"):
        folder.find_kept(None, [3, 4])


@pytest.mark.skipif(os.name != "posix", reason="links are POSIX")
def test_a_link_out_of_the_newest_run_is_refused():
    write("runs/a/checkpoints/best.ckpt")
    folder.find_checkpoint()
    Path("runs/a/metrics.csv").symlink_to(write("elsewhere.csv").absolute())
    for path in (None, Path("runs/a")):
        with pytest.raises(ValueError, match=r"runs/a/metrics\.csv is a link, or no file"):
            folder.find_checkpoint(path)
