"""Which run folder and which checkpoint a path, a step or nothing means."""

import os
from pathlib import Path

import pytest
import torch

from model.gpt import GPTConfig
from model.runs.run import CONFIG, METRICS, Run
from tests.command_lines import mistake
from tests.gpts import random_gpt, save_checkpoint

pytestmark = pytest.mark.usefixtures("here")


def write(path, age=0):
    """Writes a file that is `age` seconds old: a checkpoint by torch.save, or a small config."""
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
    assert Run.open().checkpoint == Path("runs/new/checkpoints/best.ckpt")
    last = Path("runs/new/checkpoints/last.ckpt")
    assert Run.open(last).checkpoint == last
    last.with_name("best.ckpt").unlink()
    assert Run.open(Path("runs/new")).checkpoint == last


def test_a_run_is_found_by_any_path_in_it_or_as_the_newest_and_nowhere_else(monkeypatch):
    write("runs/new/metrics.csv", age=1)
    write("runs/old/metrics.csv", age=2)
    probe = write("runs/old/attention/probe.json")
    for other in ("runs/without/config.yaml", "metrics.csv", "runs/metrics.csv"):
        write(other)
    assert Run.open(None, METRICS).folder == Path("runs/new")
    write("runs/old/checkpoints/last.ckpt")  # the newest by this file, whichever is asked for
    assert Run.open(None, METRICS).folder == Path("runs/old")
    for path in (probe, probe.parent, Path("runs/old/metrics.csv"), Path("runs/old")):
        assert Run.open(path, METRICS).folder == Path("runs/old")
    with pytest.raises(FileNotFoundError, match="runs/without"):
        Run.open(Path("runs/without"), METRICS)
    monkeypatch.chdir("runs/old/attention")
    assert Run.open(Path("probe.json"), METRICS).folder == Path.cwd().parent


def resume_point(path):
    run = Run.open(path, CONFIG)
    return run.folder, run.resumed


def test_a_run_is_resumed_from_its_last_checkpoint_or_from_the_given_one():
    with mistake("runs/a"):
        resume_point(Path("runs/a"))
    write("runs/a/config.yaml")
    with mistake(r"runs/a .*checkpoint"):
        resume_point(Path("runs/a"))
    best = write("runs/a/checkpoints/best.ckpt")
    assert resume_point(Path("runs/a")) == (Path("runs/a"), best)
    last = write("runs/a/checkpoints/last.ckpt")
    for path in ("runs/a", "runs/a/config.yaml", last):
        assert resume_point(Path(path)) == (Path("runs/a"), last)
    assert resume_point(best) == (Path("runs/a"), best)


def test_a_checkpoints_folder_may_be_a_link():
    """tests/test_hostile_files.py has links that are refused."""
    write("runs/a/config.yaml")
    elsewhere = write("elsewhere/last.ckpt").parent
    Path("runs/a/checkpoints").symlink_to(elsewhere.absolute())
    last = Path("runs/a/checkpoints/last.ckpt")
    assert resume_point(Path("runs/a")) == (Path("runs/a"), last) and Run.open(last).checkpoint == last
    assert Run.open().checkpoint == last


def test_checkpoints_are_found_by_step():
    run, gpt = Path("runs/a"), random_gpt(GPTConfig(vocab_size=257, num_layers=1, num_heads=1, embed_dim=2))
    best, last = (run / "checkpoints" / f"{name}.ckpt" for name in ("best", "last"))
    save_checkpoint(last, gpt, 40)
    with pytest.raises(FileNotFoundError, match=r"runs/a .*step 5, .*40.*--checkpoints\.keep_steps"):
        Run.open(run).at(5)
    for name in ("step_00000100", "step_00000003", "step_old"):
        write(f"runs/a/checkpoints/{name}.ckpt")
    assert [*Run(run).kept] == [3, 100]
    save_checkpoint(best, gpt, 30)
    expected = [Run(run).kept[100], Run(run).kept[3], best, last]
    for path in (run, best):
        assert [Run.open(path).at(step) for step in (100, 3, 30, 40)] == expected
    best.write_bytes(best.read_bytes()[:100])
    assert Run.open(run).at(100) == expected[0]
    with mistake(r"best\.ckpt is damaged"):
        Run.open(run).at(30)
    save_checkpoint(Path("loose.ckpt"), gpt, 6)
    loose = Run.open(Path("loose.ckpt"))
    assert loose.at(6) == loose.checkpoint == Path("loose.ckpt") and not loose.is_run
    with pytest.raises(FileNotFoundError, match=r"loose\.ckpt .*step 5, .*6"):
        loose.at(5)
