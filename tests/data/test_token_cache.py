"""The token cache: made once by one of several runs, also after a kill; made again when its text or options change."""

from __future__ import annotations

import errno
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from data.corpora import CorpusOptions
from data.corpora.files import FileCorpus, file_corpus
from data.token_cache import CorpusCache, TokenizedCorpus
from data.token_files import new_file

LIMITS = {"train": None, "validation": None}


def write_corpus(folder: Path, num_files: int = 40) -> None:
    folder.mkdir(exist_ok=True)
    random.seed(0)
    words = ["".join(random.choices("abcdefgh", k=5)) for _ in range(500)]
    for number in range(num_files):
        (folder / f"{number:03d}.txt").write_text(" ".join(random.choices(words, k=2000)))


def cache_of(folder: Path, cache_dir: Path, tokenizer: str = "bpe", vocab_size: int = 300, **options) -> CorpusCache:
    corpus = file_corpus(CorpusOptions(files=str(folder / "*.txt"), **options))
    return CorpusCache(corpus, tokenizer, vocab_size, max_tokens=LIMITS, cache_dir=cache_dir)


def tokens_of(tokenized: TokenizedCorpus) -> list[np.ndarray]:
    return [tokens.read(0, tokens.num_tokens) for tokens in (tokenized.train, tokenized.validation)]


def same(one: TokenizedCorpus, other: TokenizedCorpus) -> bool:
    pairs = zip(tokens_of(one), tokens_of(other), strict=True)
    return one.tokenizer.fingerprint == other.tokenizer.fingerprint and all(np.array_equal(*pair) for pair in pairs)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_corpus(tmp_path / "texts")
    return tmp_path / "texts"


def test_tokens_are_the_text(folder: Path, tmp_path: Path):
    cache = cache_of(folder, tmp_path / "cache")
    tokenized = cache.prepare()
    for split, tokens in (("train", tokenized.train), ("validation", tokenized.validation)):
        text = "".join(passage.text for passage in cache.corpus.passages(split))
        ids = tokens.read(0, tokens.num_tokens)
        assert tokenized.tokenizer.decode(ids[ids != tokenized.tokenizer.end_of_text]) == text
        assert tokens.num_bytes == len(text.encode())
    assert tokenized.folder.is_relative_to(tmp_path / "cache")


def test_second_run_reads_no_text(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = cache_of(folder, tmp_path / "cache").prepare()
    monkeypatch.setattr(FileCorpus, "passages", None)
    assert same(cache_of(folder, tmp_path / "cache").prepare(), first)


def test_tokenizer_is_trained_on_the_training_split_alone(folder: Path, tmp_path: Path):
    first = cache_of(folder, tmp_path / "cache").prepare()
    corpus = file_corpus(CorpusOptions(files=str(folder / "*.txt")))
    for file in corpus.files["validation"]:
        file.path.write_text("zzzz yyyy zzzz yyyy " * 10_000)
    second = cache_of(folder, tmp_path / "cache").prepare()
    assert second.folder != first.folder
    assert second.tokenizer.fingerprint == first.tokenizer.fingerprint


@pytest.mark.parametrize("change", ["file", "tokenizer", "vocab_size", "validation_fraction"])
def test_a_change_is_noticed(folder: Path, tmp_path: Path, change: str):
    first = cache_of(folder, tmp_path / "cache").prepare()
    options = {}
    if change == "file":
        (folder / "000.txt").write_text("something else entirely " * 500)
    else:
        options[change] = {"tokenizer": "bytes", "vocab_size": 310, "validation_fraction": 0.4}[change]
    second = cache_of(folder, tmp_path / "cache", **options).prepare()
    assert not same(first, second)
    assert same(second, cache_of(folder, tmp_path / "elsewhere", **options).prepare())


def test_damaged_tokenizer_is_made_again(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    first = cache_of(folder, tmp_path / "cache").prepare()
    path = first.folder / "tokenizer.json"
    whole = path.read_text()
    for damaged in ("{", "", json.dumps(json.loads(whole) | {"pattern": "."}), whole.replace("tokens", "token")):
        path.write_text(damaged)
        assert same(cache_of(folder, tmp_path / "cache").prepare(), first)
        assert caplog.messages == [f"{path} is damaged and is made again"]
        caplog.clear()
    path.unlink()
    assert same(cache_of(folder, tmp_path / "cache").prepare(), first)


def test_environment_names_the_cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GLASSGPT_CACHE", str(tmp_path / "named"))
    assert cache_of(folder, None).folder.parent == tmp_path / "named"
    monkeypatch.delenv("GLASSGPT_CACHE")
    assert cache_of(folder, None).folder.parent == Path(__file__).parents[2] / ".cache" / "glassgpt"


def test_a_cache_that_cannot_be_made_says_what_to_set(folder: Path, tmp_path: Path):
    (tmp_path / "occupied").write_text("a file")
    with pytest.raises(OSError, match=r"cannot write tokens \(.*\): .*set --data.cache_dir"):
        cache_of(folder, tmp_path / "occupied").prepare()


def test_a_file_that_cannot_be_written_is_not_left_and_the_reason_is_named(tmp_path: Path, monkeypatch):
    path = tmp_path / "tokens"
    with pytest.raises(KeyError), new_file(path) as file:
        file.write(b"half")
        raise KeyError
    assert not path.exists()

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match=r"cannot write tokens \(No space left on device\)"), new_file(path):
        pass


def test_a_run_that_waits_for_another_ones_tokens_says_so(folder: Path, tmp_path: Path, capsys):
    cache = cache_of(folder, tmp_path / "cache")
    cache.folder.mkdir(parents=True)
    locked = threading.Event()

    def tokenise():
        with FileLock(cache.folder / "lock"):
            locked.set()
            time.sleep(0.2)

    threading.Thread(target=tokenise).start()
    locked.wait()
    cache.prepare()
    waiting = f"waiting for another run that is tokenising {cache.corpus.name} into {cache.folder}"
    assert waiting in capsys.readouterr().out


def test_a_damaged_split_is_made_again_and_the_other_one_stays(folder: Path, tmp_path: Path, caplog):
    first = cache_of(folder, tmp_path / "cache").prepare()
    expected, train = tokens_of(first), first.folder / "train.bin"
    written = train.stat().st_ino
    (first.folder / "validation.bin").write_bytes(b"damaged")
    second = cache_of(folder, tmp_path / "cache").prepare()
    assert all(np.array_equal(*pair) for pair in zip(tokens_of(second), expected, strict=True))
    assert len(caplog.messages) == 1 and "validation.bin is damaged (it has 7 bytes, not" in caplog.messages[0]
    assert train.stat().st_ino == written


# A run that tokenises slowly, so that it can be killed in the middle.
RUN = """
import sys, time
from data import token_cache, token_files
from data.corpora import CorpusOptions
from data.corpora.files import FileCorpus, file_corpus

token_files.BATCH_CHARS = 2000
pause = float(sys.argv[3])
read = FileCorpus.passages

def slowly(self, split):
    for passage in read(self, split):
        time.sleep(pause)
        yield passage

FileCorpus.passages = slowly
corpus = file_corpus(CorpusOptions(files=sys.argv[1] + "/*.txt"))
made = token_cache.CorpusCache(
    corpus, "bpe", 300, max_tokens={"train": None, "validation": None}, cache_dir=sys.argv[2]
)
print(made.prepare(num_threads=2).train.num_tokens)
"""


def start_run(folder: Path, cache_dir: Path, pause: float) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder), str(cache_dir), str(pause)], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_two_runs_on_a_cold_cache_make_it_once(folder: Path, tmp_path: Path):
    expected = cache_of(folder, tmp_path / "expected").prepare()
    runs = [start_run(folder, tmp_path / "cache", pause=0.02) for _ in range(2)]
    outputs = [run.communicate(timeout=120)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert [output.splitlines()[-1] for output in outputs] == [str(expected.train.num_tokens)] * 2
    assert sum("training a bpe tokenizer" in output for output in outputs) == 1
    assert sum("waiting for another run" in output for output in outputs) == 1
    assert same(cache_of(folder, tmp_path / "cache").open(), expected)


@pytest.mark.slow
def test_a_killed_run_leaves_no_file_that_opens_and_the_next_one_starts_again(folder: Path, tmp_path: Path):
    expected = cache_of(folder, tmp_path / "expected").prepare()
    run = start_run(folder, tmp_path / "cache", pause=0.05)
    wait_for(lambda: any(path.stat().st_size for path in tmp_path.glob("cache/*/train.bin.partial")), run)
    run.kill()
    run.communicate()
    assert not list(tmp_path.glob("cache/*/train.*n"))  # neither train.bin nor train.json
    assert cache_of(folder, tmp_path / "cache").open() is None
    assert same(cache_of(folder, tmp_path / "cache").prepare(), expected)
    assert not list(tmp_path.glob("cache/*/*.partial"))


def wait_for(condition: Callable[[], bool], run: subprocess.Popen) -> None:
    give_up = time.monotonic() + 120
    while not condition():
        assert run.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < give_up
        time.sleep(0.005)
