"""Fixtures for all tests: runs that take a second, and what makes the suite faster."""

import functools
import gc
import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import settings

from model.runs import code
from tests.programs import REPOSITORY

# Fixtures import what imports torch: xdist's first process, for which all others wait, needs none of it.
os.environ["OMP_WAIT_POLICY"] = "passive"  # for that import: torch's idle threads leave their core to other processes

# transformers copies the source of an exported folder to here. It reads the variable when it is imported.
MODULES = TemporaryDirectory()
os.environ["HF_MODULES_CACHE"] = MODULES.name
gc.disable()  # during imports, which leave next to nothing to collect

settings.register_profile("unhurried", deadline=None)  # no test asserts a duration
settings.load_profile("unhurried")


def pytest_collection_modifyitems(items):
    """Puts slow tests first, so that no process of xdist ends long after the others."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish():
    """Excludes everything imported from garbage collection, which saves seconds: imported modules stay anyway."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def no_power_cut():
    """Replaces os.fsync, so that this process never waits for the disk. A closed file still raises."""
    with patch.object(os, "fsync", os.fstat):
        yield


@pytest.fixture(scope="session", autouse=True)
def repository_is_read_once():
    """Remembers the hashes and the committed text of our own code, which took each run as long as its training."""
    git = code.git
    remembered = functools.cache(git)

    def read(*arguments):
        return remembered(*arguments) if code.ROOT == REPOSITORY else git(*arguments)

    with patch.multiple(code, git=read, code_hash=functools.cache(code.code_hash)):
        yield


@pytest.fixture(autouse=True)
def process_as_before(tmp_path_factory):
    """Restores what a program changes in its own process: no test may find the modules of another one's user."""
    import torch

    threads, modules = torch.get_num_threads(), {*sys.modules}
    with patch.dict(os.environ), patch.object(sys, "path", [*sys.path]):
        yield
    torch.set_num_threads(threads)
    for name in sys.modules.keys() - modules:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(tmp_path_factory.getbasetemp())):
            del sys.modules[name]


@pytest.fixture(scope="session")
def small_text(tmp_path_factory):
    from tests import small_runs

    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(small_runs.small_text())
    return path


@pytest.fixture(scope="session")
def small_options(small_text, tmp_path_factory):
    from tests import small_runs

    return small_runs.small_options(small_text, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory):
    """A run folder with a small random model. No test may change it."""
    from tests import gpts

    return gpts.save_run(tmp_path_factory.mktemp("runs") / "first")


@pytest.fixture
def cache(tmp_path_factory, monkeypatch):
    """A cache of tokens for all processes of xdist: the first test that needs Python's library tokenises it."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if folder.name.startswith("popen-") else folder
    monkeypatch.setenv("GLASSGPT_CACHE", str(folder / "cache"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder, which is the working folder of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def replace_attend(monkeypatch):
    """Puts a function in place of the `attend` of every layer."""
    from model.attention import CausalSelfAttention

    return functools.partial(monkeypatch.setattr, CausalSelfAttention, "attend")


@pytest.fixture(scope="session")
def parser():
    """The parser of train.py."""
    from train import build_parser

    return build_parser()


@pytest.fixture
def train(small_options, here):
    """Runs train.py in an empty folder with `small_options` and the given options; returns the exit status.

    With --resume `small_options` are left out: the run has its own config.
    """
    from train import main

    def run(*options):
        own_config = any(option.partition("=")[0] == "--resume" for option in options)
        return main([*([] if own_config else small_options), *map(str, options)])

    return run


@pytest.fixture
def no_pages(monkeypatch):
    """Writes no pages, for tests that look at weights and figures only."""
    monkeypatch.setattr("model.runs.end_of_step.write_report", lambda *_: None)


@pytest.fixture(scope="session")
def trained(small_options, tmp_path_factory):
    """Trains with `small_options` and the given options, once a session for equal options; returns the run's folder.

    No test may change this folder; `finished_run` is a copy. It has no page.
    """
    from train import main

    @functools.cache
    def run(*options):
        folder = tmp_path_factory.mktemp("trained")
        with pytest.MonkeyPatch.context() as here:
            here.chdir(folder)
            here.setattr("model.runs.end_of_step.write_report", lambda *_: None)
            assert main([*small_options, "--name=run", *options]) == 0
        return folder / "runs/run"

    return run


@pytest.fixture
def finished_run(trained, here):
    """runs/run in the working folder: a copy of a finished run with `small_options`."""
    shutil.copytree(trained(), "runs/run")
    return Path("runs/run")
