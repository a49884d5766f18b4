"""Token files: they hold the stream of the text, notice damage, and are continued after an interruption."""

from __future__ import annotations

import errno
import io
import os
import pickle
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from data import store, tokenizers, writing
from data.readers import Passage
from data.sampler import WindowSampler
from data.store import TokenStore

TOKENIZER = tokenizers.byte_level()
END = TOKENIZER.end_of_text
DOCUMENTS = [f"document {number} é\n" * (1 + number % 7) for number in range(300)]


def stream_of(documents: list[str]) -> list[int]:
    tokens = [END]
    for document in documents:
        tokens += [*document.encode(), END]
    return tokens


def passages_of(documents: list[str]) -> list[Passage]:
    """Every third document in two passages."""
    passages = []
    for number, text in enumerate(documents):
        if number % 3 == 0:
            passages.append(Passage(text[:5], ends_document=False))
            text = text[5:]
        passages.append(Passage(text, ends_document=True))
    return passages


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "BATCH_CHARS", 500)


def write(
    folder: Path, documents: list[str] = DOCUMENTS, fingerprint: str = "abc", shard_tokens: int = 3000, **options
) -> TokenStore:
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "SHARD_TOKENS", shard_tokens)
        writing.write_split(folder, "train", passages_of(documents), TOKENIZER, fingerprint=fingerprint, **options)
    return store.open_split(folder, "train", fingerprint)


def tokens_of(tokens: TokenStore) -> list[int]:
    return tokens.read(0, tokens.num_tokens).tolist()


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("shard_tokens", [1, 3000, 10**9])
def test_the_stream_is_the_text(tmp_path: Path, num_threads: int, shard_tokens: int):
    tokens = write(tmp_path, num_threads=num_threads, shard_tokens=shard_tokens)
    assert tokens_of(tokens) == stream_of(DOCUMENTS)
    assert tokens.num_tokens == len(stream_of(DOCUMENTS))
    assert tokens.num_documents == len(DOCUMENTS)
    assert tokens.num_bytes == sum(len(document.encode()) for document in DOCUMENTS)
    shards = sorted(tmp_path.glob("train-*.npy"))
    assert (len(shards) > 1) == (shard_tokens < 10**9)
    assert sorted(tmp_path.iterdir()) == sorted([*shards, *(path.with_suffix(".json") for path in shards)])
    assert np.concatenate([np.load(path) for path in shards]).tolist() == stream_of(DOCUMENTS)


@given(data=st.data(), shard_tokens=st.sampled_from([600, 3000, 10**9]), length=st.integers(1, 2500))
def test_gather_is_slicing(tmp_path_factory, data, shard_tokens: int, length: int):
    folder = tmp_path_factory.getbasetemp() / f"gather-{shard_tokens}"
    tokens = store.open_split(folder, "train", "abc") or write(folder, shard_tokens=shard_tokens)
    stream = np.array(stream_of(DOCUMENTS))
    starts = data.draw(st.lists(st.integers(0, len(stream) - length), max_size=10))
    windows = tokens.gather(np.array(starts, dtype=np.int64), length)
    assert windows.dtype == np.int64
    assert windows.shape == (len(starts), length)
    for window, start in zip(windows, starts, strict=True):
        assert np.array_equal(window, stream[start : start + length])


@given(start=st.integers(0, 20_000), length=st.integers(0, 20_000))
def test_read_stops_at_the_end(tmp_path_factory, start: int, length: int):
    folder = tmp_path_factory.getbasetemp() / "read"
    tokens = store.open_split(folder, "train", "abc") or write(folder)
    assert tokens.read(start, length).tolist() == stream_of(DOCUMENTS)[start : start + length]


def test_large_vocabularies_take_four_bytes(tmp_path: Path):
    wide = tokenizers.Tokenizer.from_dict(TOKENIZER.to_dict() | {"special_tokens": {tokenizers.END_OF_TEXT: 100_000}})
    writing.write_split(tmp_path, "train", [Passage("ab", ends_document=True)], wide, fingerprint="wide")
    assert tokens_of(store.open_split(tmp_path, "train", "wide")) == [100_000, ord("a"), ord("b"), 100_000]


@pytest.mark.parametrize("max_tokens", [2, 100, 3001, 7000])
@pytest.mark.parametrize("shard_tokens", [2000, 10**9])
def test_max_tokens_cuts_exactly_and_counts_the_bytes_left(tmp_path: Path, max_tokens: int, shard_tokens: int):
    tokens = write(tmp_path, max_tokens=max_tokens, shard_tokens=shard_tokens)
    expected = stream_of(DOCUMENTS)[:max_tokens]
    assert tokens_of(tokens) == expected
    assert tokens.num_bytes == sum(token != END for token in expected)
    assert tokens.num_documents == expected[:-1].count(END)


def test_max_tokens_may_end_anywhere_in_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writing, "BATCH_CHARS", 1)
    for max_tokens in range(2, 60):
        tokens = write(tmp_path / str(max_tokens), max_tokens=max_tokens)
        assert tokens_of(tokens) == stream_of(DOCUMENTS)[:max_tokens]


def test_a_second_write_touches_nothing(tmp_path: Path):
    write(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}

    def no_text():
        raise AssertionError("the text was read again")
        yield

    writing.write_split(tmp_path, "train", no_text(), TOKENIZER, fingerprint="abc")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_shards_with_another_fingerprint_are_replaced(tmp_path: Path):
    write(tmp_path)
    assert store.open_split(tmp_path, "train", "other") is None
    assert tokens_of(write(tmp_path, DOCUMENTS[:10], fingerprint="other")) == stream_of(DOCUMENTS[:10])


def flip_a_bit(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def truncate(path: Path, size: int) -> None:
    """As a crash of the machine may do it, without a change of the modification time."""
    changed = path.stat().st_mtime_ns
    with path.open("r+b") as file:
        file.truncate(size)
    os.utime(path, ns=(changed, changed))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: flip_a_bit(path, 40),
        lambda path: flip_a_bit(path, 999),
        lambda path: flip_a_bit(path, -1),
        lambda path: truncate(path, path.stat().st_size - 2),
        lambda path: truncate(path, 100),
        lambda path: truncate(path, 0),
        lambda path: path.write_bytes(os.urandom(9000)),
        lambda path: flip_a_bit(path.with_suffix(".json"), 120),
        lambda path: truncate(path.with_suffix(".json"), 100),
        lambda path: truncate(path.with_suffix(".json"), 0),
        lambda path: path.with_suffix(".json").write_text("[]"),
    ],
)
def test_damage_is_noticed_and_repaired(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage):
    write(tmp_path)
    first, second = tmp_path / "train-00000.npy", tmp_path / "train-00001.npy"
    kept = first.stat().st_mtime_ns
    damage(second)
    assert store.open_split(tmp_path, "train", "abc") is None
    tokens = write(tmp_path)
    (said,) = caplog.messages
    assert re.search(r"train-00001.npy is damaged \(.*\) and is made again$", said)
    assert tokens_of(tokens) == stream_of(DOCUMENTS)
    assert first.stat().st_mtime_ns == kept


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_of_a_json_file_is_noticed(tmp_path: Path, bit: int):
    write(tmp_path, shard_tokens=10**9)
    path = tmp_path / "train-00000.json"
    content = path.read_bytes()
    for offset in range(len(content)):
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 1 << bit]) + content[offset + 1 :])
        assert store.open_split(tmp_path, "train", "abc") is None, offset
    path.write_bytes(content)
    assert store.open_split(tmp_path, "train", "abc") is not None


@pytest.mark.parametrize("missing", [".json", ".npy"])
def test_a_shard_without_one_of_its_files_is_unfinished(tmp_path: Path, caplog: pytest.LogCaptureFixture, missing: str):
    write(tmp_path)
    (tmp_path / "train-00001.npy").with_suffix(missing).unlink()
    assert store.open_split(tmp_path, "train", "abc") is None
    assert tokens_of(write(tmp_path)) == stream_of(DOCUMENTS)
    assert not caplog.messages


def test_the_bar_ends_at_the_tokens_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also where a run continues after shards that another one has written, and where it stops at max_tokens."""
    bars = []

    class Bar(tqdm):
        def __init__(self, *args, **options):
            super().__init__(*args, **options, file=io.StringIO())
            bars.append(self)

    monkeypatch.setattr(writing, "tqdm", Bar)
    tokens = write(tmp_path, max_tokens=7000)
    sorted(tmp_path.glob("*.json"))[-1].unlink()
    write(tmp_path, max_tokens=7000)
    assert [(bar.n, bar.total) for bar in bars] == [(tokens.num_tokens, 7000)] * 2
    assert bars[0].initial == 1 and bars[1].initial > 3000
    assert "tokenising train" in bars[0].fp.getvalue()


def test_no_bar_is_drawn_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture):
    def write_nothing(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writing, "_write_shard", write_nothing)
    with pytest.raises(OSError, match="No space left"):
        try:
            write(tmp_path)
        except OSError:
            assert capfd.readouterr().err.endswith("\n")  # the bar is closed before the error is reported
            raise
    assert not capfd.readouterr().err


def test_a_copied_cache_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Any other is opened without reading its tokens, of which there may be terabytes."""
    write(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(store, "file_checksum", None)
        assert store.open_split(tmp_path, "train", "abc")
    path = tmp_path / "train-00000.npy"
    os.utime(path)
    assert tokens_of(store.open_split(tmp_path, "train", "abc")) == stream_of(DOCUMENTS)
    assert path.stat().st_mtime_ns % 10**9 == 0


def test_failing_source_keeps_what_is_finished_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(writing, "SHARD_TOKENS", 3000)

    def failing():
        yield from passages_of(DOCUMENTS)[:200]
        raise ValueError("part.txt is not UTF-8 text at byte offset 7")

    with pytest.raises(ValueError, match=r"part.txt is not UTF-8"):
        writing.write_split(tmp_path, "train", failing(), TOKENIZER, fingerprint="abc")
    assert {path.stem for path in tmp_path.glob("*.npy")} == {path.stem for path in tmp_path.glob("*.json")}
    assert store.open_split(tmp_path, "train", "abc") is None
    kept = (tmp_path / "train-00000.npy").stat().st_mtime_ns
    assert tokens_of(write(tmp_path)) == stream_of(DOCUMENTS)
    assert (tmp_path / "train-00000.npy").stat().st_mtime_ns == kept


def test_a_batch_that_cannot_be_encoded_leaves_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writing, "SHARD_TOKENS", 50)
    monkeypatch.setattr(writing, "BATCH_CHARS", 1)
    encode, bad = writing._encode, passages_of(DOCUMENTS)[5]

    def failing(own, batch):
        if batch == [bad]:
            raise MemoryError
        return encode(own, batch)

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(writing, "_encode", failing)
        writing.write_split(tmp_path, "train", passages_of(DOCUMENTS), TOKENIZER, fingerprint="abc")
    assert tokens_of(write(tmp_path)) == stream_of(DOCUMENTS)


@pytest.mark.skipif(sys.platform == "win32", reason="numbers of files are POSIX")
def test_tokens_are_whole_on_the_disk_before_their_json_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    flushed = []
    monkeypatch.setattr(
        writing.os, "fsync", lambda file: flushed.append((os.fstat(file).st_ino, os.fstat(file).st_size))
    )
    write(tmp_path)
    paths = [path.with_suffix(suffix) for path in sorted(tmp_path.glob("*.npy")) for suffix in (".npy", ".json")]
    assert flushed == [(path.stat().st_ino, path.stat().st_size) for path in paths]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    message = r"cannot write tokens \(denied\): make room"
    with pytest.raises(PermissionError, match=message) as caught, writing.explained(tmp_path):
        raise PermissionError(errno.EACCES, "denied", "some file")
    assert (caught.value.errno, caught.value.filename) == (errno.EACCES, str(tmp_path))


def test_no_text_is_a_mistake(tmp_path: Path):
    with pytest.raises(ValueError, match=r"the train split of this corpus holds no text"):
        write(tmp_path, [])
    assert not list(tmp_path.iterdir())


FULL_DISK = """
import resource, sys
from pathlib import Path
from data import tokenizers, writing
from data.readers import Passage

resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # as a full disk, but for this process alone
passages = [Passage("some text\\n" * 200, True)] * 500
try:
    writing.write_split(Path(sys.argv[1]), "train", passages, tokenizers.byte_level(), fingerprint="abc")
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are POSIX")
def test_a_full_disk_is_reported_and_leaves_nothing_half_written(tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "cannot write tokens (File too large): make room, or set --data.cache_dir" in done.stdout
    assert not list(tmp_path.iterdir())


def sparse_corpus(folder: Path, num_tokens: int) -> TokenStore:
    """A shard whose tokens are a hole in the file: they take no space on the disk, and read as zeros."""
    path = folder / "train-00000.npy"
    np.lib.format.open_memmap(path, mode="w+", dtype=np.uint16, shape=(num_tokens,))
    size, written = path.stat().st_size, 10**9
    os.utime(path, (written, written))
    shard = store.Shard("abc", num_tokens, num_tokens, 1, 1, True, size, written, checksum=0)
    path.with_suffix(".json").write_text(store.shard_json(shard))
    return store.open_split(folder, "train", "abc")


@pytest.mark.skipif(sys.platform == "win32", reason="NTFS fills the holes of a file")
def test_ten_billion_tokens_take_no_more_memory_than_a_million(tmp_path: Path):
    def first_batches(num_tokens: int) -> tuple[int, int]:
        """The last token that five steps read, and the peak of memory."""
        folder = tmp_path / str(num_tokens)
        folder.mkdir()
        tracemalloc.start()
        tokens = sparse_corpus(folder, num_tokens)
        starts = WindowSampler(tokens.num_tokens, 1024, 64, seed=1).starts(np.arange(5))
        assert all(tokens.gather(row, 1025).shape == (64, 1025) for row in starts)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return int(starts.max()) + 1025, peak

    first_batches(10**5)  # whatever is set up once
    _, small = first_batches(10**6)
    last, large = first_batches(10**10)
    assert 9.9 * 10**9 < last <= 10**10
    assert large < 1.2 * small


def test_pickled_store_carries_no_tokens(tmp_path: Path):
    tokens = write(tmp_path, ["text " * 100_000], shard_tokens=10**9)
    pickled = pickle.dumps(tokens)
    assert len(pickled) < 2000
    assert tokens_of(pickle.loads(pickled)) == tokens_of(tokens)
