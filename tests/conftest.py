"""Shared by the tests that train: a run that takes a second."""

import csv
import functools
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("unhurried", deadline=None)  # no test asserts a duration
settings.load_profile("unhurried")

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def small_text(tmp_path_factory) -> Path:
    """A file of 6 kB that has something to learn: words from a short list."""
    draw = random.Random(0)
    words = ["the", "model", "reads", "a", "text", "and", "learns", "which", "word", "comes", "next"]
    text = "\n".join(" ".join(draw.choices(words, k=8)) for _ in range(150))
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(text)
    return path


@pytest.fixture(scope="session")
def small_options(small_text, tmp_path_factory) -> list[str]:
    """Options that make configs/debug.yaml a run of 12 steps on that text, validated and saved at every fourth."""
    options = {
        "config": REPOSITORY / "configs" / "debug.yaml",
        "data.corpus": "files",
        "data.files": small_text,
        "data.tokenizer": "bytes",
        "data.vocab_size": "null",
        "data.batch_size": 4,
        "model.gpt.context_length": 16,
        "model.gpt.embed_dim": 32,
        "data.num_processes": 1,
        "data.cache_dir": tmp_path_factory.mktemp("cache"),
        "trainer.max_steps": 12,
        "trainer.val_check_interval": 4,
        "trainer.limit_val_batches": 1.0,
        "trainer.log_every_n_steps": 2,
        "attention.picture": "false",
        "attention.probe_tokens": 8,
    }
    return [f"--{name}={value}" for name, value in options.items()]


@pytest.fixture
def train(small_options, tmp_path, monkeypatch):
    """Runs the training command in an empty folder, with `small_options` before the test's own; gives its exit status.

    The first option may be a subcommand; a run that --resume or validate finds gets no other options before.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GLASSGPT_DEBUG", raising=False)
    from train import main

    def run(*options: str) -> int:
        own_config = options[:1] == ("validate",) or any(option.startswith("--resume") for option in options)
        return main([*([] if own_config else small_options), *map(str, options)])

    return run


@pytest.fixture(scope="session")
def trained(small_options, tmp_path_factory):
    """Trains with `small_options` and the given ones, once a session for the same, and gives the run's folder.

    No test may change this folder; `finished_run` is a copy.
    """
    from train import main

    @functools.cache
    def run(*options: str) -> Path:
        folder = tmp_path_factory.mktemp("trained")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            assert main([*small_options, "--name=run", *options]) == 0
        return folder / "runs" / "run"

    return run


@pytest.fixture
def finished_run(trained, tmp_path, monkeypatch) -> Path:
    """runs/run in the working folder: a finished run with `small_options`, for tests that need not train one."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained(), "runs/run")
    return Path("runs/run")


@pytest.fixture
def metrics():
    """Rows of a run's metrics.csv, without the columns that depend on how fast the machine is."""

    def read(run_dir: str | Path) -> list[dict[str, str]]:
        with Path(run_dir, "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        return [{k: v for k, v in row.items() if k not in ("tokens_per_second", "mfu")} for row in rows]

    return read
