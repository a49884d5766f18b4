"""The token cache holds the whole text or nothing, is made by one of several runs, and is made again when stale."""

import os
import random
import shutil
import signal
import threading
import time
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from data import corpora, token_cache, tokenizers
from data.corpora import CorpusOptions
from data.corpora.files import FileCorpus
from data.text import Passage
from data.token_cache import CorpusCache, token_stream, write_split
from tests import programs
from tests.command_lines import mistake
from tests.watching import before_call

TOKENIZER = tokenizers.byte_level()
END = TOKENIZER.end_of_text
DOCUMENTS = [f"document {number} é\n" * (1 + number % 7) for number in range(300)]


def passages_of(documents):
    """Cuts every third document into two passages."""
    passages = []
    for number, text in enumerate(documents):
        if number % 3 == 0:
            passages.append(Passage(text[:5], ends_document=False))
            text = text[5:]
        passages.append(Passage(text, ends_document=True))
    return passages


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(token_cache, "BATCH_CHARS", 500)


def write(documents=DOCUMENTS, **options):
    return write_split(Path("train.bin"), token_stream(TOKENIZER, passages_of(documents), **options), TOKENIZER)


def stream(tokens):
    return tokens.read(0, tokens.num_tokens).tolist()


def cache_of(cache_dir="cache", tokenizer="bpe", vocab_size=300, **options):
    corpus = corpora.build(CorpusOptions(files="*.txt", **options))
    return CorpusCache(corpus, tokenizer, vocab_size, {"train": None, "validation": None}, cache_dir)


@pytest.mark.parametrize("batch_chars, limits", [(1, range(2, 60)), (500, (100, 3001, 7000, None))])
def test_the_token_stream_is_the_text_cut_at_max_tokens(here, monkeypatch, batch_chars, limits):
    monkeypatch.setattr(token_cache, "BATCH_CHARS", batch_chars)
    whole = [END, *chain.from_iterable((*document.encode(), END) for document in DOCUMENTS)]
    for limit in limits:
        tokens = write(max_tokens=limit)
        assert stream(tokens) == np.fromfile("train.bin", dtype=np.uint16).tolist() == whole[:limit]
        assert tokens.num_bytes == sum(token != END for token in whole[:limit])


def test_tokens_of_large_vocabularies_are_stored_in_four_bytes(here):
    wide = tokenizers.Tokenizer.from_dict(TOKENIZER.to_dict() | {"special_tokens": {tokenizers.END_OF_TEXT: 100_000}})
    tokens = write_split(Path("train.bin"), token_stream(wide, [Passage("ab", ends_document=True)]), wide)
    assert stream(tokens) == [100_000, ord("a"), ord("b"), 100_000]


def test_an_empty_split_is_named(here):
    with mistake("train"):
        write([])


def content(tokenized):
    return tokenized.tokenizer.fingerprint, stream(tokenized.train), stream(tokenized.validation)


@pytest.fixture
def texts(here):
    """Writes 40 texts of random words into the working folder."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=5)) for _ in range(500)]
    for number in range(40):
        Path(f"{number:03d}.txt").write_text(" ".join(draw.choices(words, k=2000)))


def test_an_error_while_the_corpus_is_read_is_passed_on_and_leaves_no_tokens(texts, monkeypatch):
    def failing(self, split):
        yield from passages_of(DOCUMENTS)[:200]
        raise OSError("none")

    cache = cache_of(tokenizer=TOKENIZER)
    monkeypatch.setattr(FileCorpus, "passages", failing)
    with pytest.raises(OSError, match="none"):
        cache.prepare()
    assert not list(cache.folder.glob("train*"))


def test_tokens_are_flushed_to_disk_before_the_index_is_written(texts, monkeypatch):
    flushed = []
    monkeypatch.setattr(token_cache.os, "fsync", lambda file: flushed.append(os.fstat(file)))
    cache = cache_of()
    cache.prepare()
    written = [path.stat() for path in cache.paths.values()]
    assert [(file.st_ino, file.st_size) for file in flushed] == [(file.st_ino, file.st_size) for file in written]


def test_cached_tokens_are_the_text_and_the_cache_or_a_copy_is_used_without_reading_it(texts, monkeypatch):
    cache = cache_of()
    tokenized = cache.prepare()
    end = tokenized.tokenizer.end_of_text
    for split, tokens in (("train", tokenized.train), ("validation", tokenized.validation)):
        text = "".join(passage.text for passage in cache.corpus.passages(split))
        assert tokenized.tokenizer.decode(token for token in stream(tokens) if token != end) == text
    monkeypatch.setattr(FileCorpus, "passages", None)
    shutil.copytree("cache", "copy")
    for name in ("cache", "copy"):
        assert content(cache_of(name).prepare()) == content(tokenized)


def test_the_tokenizer_is_trained_on_the_training_split_only(texts):
    cache = cache_of()
    first = cache.prepare().tokenizer.fingerprint
    for path in cache.corpus.files["validation"]:
        path.write_text("zzzz yyyy zzzz yyyy " * 10_000)
    assert cache_of().prepare().tokenizer.fingerprint == first


FIRST = Path("000.txt")
CHANGES = {
    "a file of the same size": lambda: FIRST.write_text(FIRST.read_text()[::-1]),
    "the name of a file": lambda: FIRST.rename("000a.txt"),  # keeps its place and its split
}
OPTIONS = {"tokenizer": TOKENIZER, "vocab_size": 310, "validation_fraction": 0.4}


@pytest.mark.parametrize("change", [*CHANGES, *OPTIONS])
def test_tokens_are_made_again_after_a_change_of_files_or_options(texts, change):
    cache = cache_of()
    cache.prepare()
    options = {name: value for name, value in OPTIONS.items() if name == change}
    CHANGES.get(change, bool)()
    assert cache_of(**options).folder != cache.folder
    assert content(cache_of(**options).prepare()) == content(cache_of("elsewhere", **options).prepare())


@pytest.mark.parametrize("name", ["validation.bin", "train.bin", "tokens.json"])
def test_missing_or_truncated_tokens_are_made_again(texts, name):
    cache = cache_of()
    first, path = content(cache.prepare()), cache.folder / name
    for damage in (path.unlink, lambda: os.truncate(path, 100)):
        damage()
        assert cache.open() is None
        assert content(cache.prepare()) == first


def test_a_variable_names_the_cache_folder_and_a_folder_that_cannot_be_made_is_named(texts, here, monkeypatch):
    monkeypatch.setenv("GLASSGPT_CACHE", "named")
    assert cache_of(None).folder.parent == here / "named"
    monkeypatch.delenv("GLASSGPT_CACHE")
    assert cache_of(None).folder.parent == Path(__file__).parents[2] / ".cache" / "glassgpt"
    Path("occupied").touch()
    with mistake(r"occupied.*--data.cache_dir"):
        cache_of("occupied").prepare()


def tokenise():
    """A run that stops reading once there are tokens on the disk, until there is a file `go`."""
    read = FileCorpus.passages

    def passages(self, split):
        for passage in read(self, split):
            while not Path("go").exists() and any(path.stat().st_size for path in Path("cache").glob("*/train.bin")):
                time.sleep(0.005)
            yield passage

    token_cache.BATCH_CHARS, FileCorpus.passages = 2000, passages
    cache_of().prepare()


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_run_waits_for_another_that_makes_the_cache_and_makes_it_only_if_that_is_killed(
    texts, monkeypatch, is_killed
):
    expected, cache, made = content(cache_of("elsewhere").prepare()), cache_of(), []
    run = programs.start("-c", programs.calling(tokenise))
    while not any(path.stat().st_size for path in cache.folder.glob("train.bin")):
        assert run.poll() is None
        time.sleep(0.005)
    assert cache.open() is None
    before_call(monkeypatch.setattr, CorpusCache, "_make", lambda *_: made.append(True))
    threading.Timer(0.5, run.kill if is_killed else Path("go").touch).start()
    assert content(cache.prepare()) == expected
    assert made == [True] * is_killed
    programs.end(run, -signal.SIGKILL if is_killed else 0)
