"""Shared by the tests that train: a run that takes a second. And what makes all of them faster."""

import functools
import gc
import os
import shutil
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import settings

from tests import gpts, small_runs

LIMIT = 600  # seconds
# Where transformers copies the source of an exported folder; it reads this when it is imported.
MODULES = TemporaryDirectory()
os.environ["HF_MODULES_CACHE"] = MODULES.name
gc.disable()  # until everything is imported, which leaves next to nothing to collect

settings.register_profile("unhurried", deadline=None)  # no test asserts a duration
settings.load_profile("unhurried")


def pytest_collection_finish():
    """What was imported stays, so the collector need not look at it again and again: seconds of a suite."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def no_power_cut():
    """Nothing waits for the disk in the process of the tests. A file that is not open is still an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(autouse=True)
def limit(request):
    """A test that hangs fails: a process may not end, and Playwright waits for ever for a promise or a stuck page."""

    def fail(*_):
        raise TimeoutError(f"the test hangs: it has taken {LIMIT} seconds")

    if not request.path.name.startswith("test_") or sys.platform == "win32":  # of make learn, stress or faults
        yield
        return
    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def small_text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(small_runs.small_text())
    return path


@pytest.fixture(scope="session")
def small_options(small_text, tmp_path_factory) -> list[str]:
    return small_runs.small_options(small_text, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory) -> Path:
    """No test may change it."""
    return gpts.save_run(tmp_path_factory.mktemp("runs") / "first")


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The working folder, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def own_threads():
    """PyTorch's number of threads, as a test sets it, ends with the test."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def train(small_options, here):
    """Runs the training command in an empty folder, with `small_options` before the test's own; gives its exit status.

    A run that --resume finds gets no other options before.
    """
    from train import main

    def run(*options: str) -> int:
        own_config = any(option.startswith("--resume") for option in options)
        return main([*([] if own_config else small_options), *map(str, options)])

    return run


@pytest.fixture
def no_pages(monkeypatch) -> None:
    """For tests of many runs of which they look at the weights and figures alone."""
    monkeypatch.setattr("train.finish", lambda *_: "")


@pytest.fixture(scope="session")
def trained(small_options, tmp_path_factory):
    """Trains with `small_options` and the given ones, once a session for the same, and gives the run's folder.

    No test may change this folder; `finished_run` is a copy.
    """
    from model.runs.results import finish
    from train import main

    @functools.cache
    def run(*options: str) -> Path:
        folder = tmp_path_factory.mktemp("trained")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setattr("train.finish", finish)  # with pages, whatever test is the first that asks
            assert main([*small_options, "--name=run", *options]) == 0
        return folder / "runs" / "run"

    return run


@pytest.fixture
def finished_run(trained, here) -> Path:
    """runs/run in the working folder: a finished run with `small_options`, for tests that need not train one."""
    shutil.copytree(trained(), "runs/run")
    return Path("runs/run")
