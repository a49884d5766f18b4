"""Token files: they hold the stream of the text, notice damage, and exist only when they are whole."""

from __future__ import annotations

import errno
import io
import os
import pickle
import re
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from data import token_files, tokenizers
from data.readers import Passage
from data.sampler import WindowSampler
from data.token_files import TokenStore

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
    monkeypatch.setattr(token_files, "BATCH_CHARS", 500)


def write(folder: Path, documents: list[str] = DOCUMENTS, fingerprint: str = "abc", **options) -> TokenStore:
    folder.mkdir(exist_ok=True)
    token_files.write_split(folder, "train", passages_of(documents), TOKENIZER, fingerprint=fingerprint, **options)
    return token_files.open_split(folder, "train", fingerprint)


def tokens_of(tokens: TokenStore) -> list[int]:
    return tokens.read(0, tokens.num_tokens).tolist()


@pytest.mark.parametrize("num_threads", [1, 2])
def test_the_stream_is_the_text(tmp_path: Path, num_threads: int):
    tokens = write(tmp_path, num_threads=num_threads)
    assert tokens_of(tokens) == stream_of(DOCUMENTS)
    assert tokens.num_tokens == len(stream_of(DOCUMENTS))
    assert tokens.num_documents == len(DOCUMENTS)
    assert tokens.num_bytes == sum(len(document.encode()) for document in DOCUMENTS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.bin", "train.json"]
    assert np.fromfile(tmp_path / "train.bin", dtype=np.uint16).tolist() == stream_of(DOCUMENTS)


@given(data=st.data(), length=st.integers(1, 2500))
def test_gather_is_slicing(tmp_path_factory, data, length: int):
    folder = tmp_path_factory.getbasetemp() / "gather"
    tokens = token_files.open_split(folder, "train", "abc") or write(folder)
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
    tokens = token_files.open_split(folder, "train", "abc") or write(folder)
    assert tokens.read(start, length).tolist() == stream_of(DOCUMENTS)[start : start + length]


def test_large_vocabularies_take_four_bytes(tmp_path: Path):
    wide = tokenizers.Tokenizer.from_dict(TOKENIZER.to_dict() | {"special_tokens": {tokenizers.END_OF_TEXT: 100_000}})
    token_files.write_split(tmp_path, "train", [Passage("ab", ends_document=True)], wide, fingerprint="wide")
    assert tokens_of(token_files.open_split(tmp_path, "train", "wide")) == [100_000, ord("a"), ord("b"), 100_000]


@pytest.mark.parametrize("max_tokens", [2, 100, 3001, 7000])
def test_max_tokens_cuts_exactly_and_counts_the_bytes_left(tmp_path: Path, max_tokens: int):
    tokens = write(tmp_path, max_tokens=max_tokens)
    expected = stream_of(DOCUMENTS)[:max_tokens]
    assert tokens_of(tokens) == expected
    assert tokens.num_bytes == sum(token != END for token in expected)
    assert tokens.num_documents == expected[:-1].count(END)


def test_max_tokens_may_end_anywhere_in_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(token_files, "BATCH_CHARS", 1)
    for max_tokens in range(2, 60):
        tokens = write(tmp_path / str(max_tokens), max_tokens=max_tokens)
        assert tokens_of(tokens) == stream_of(DOCUMENTS)[:max_tokens]


def test_a_split_with_another_fingerprint_is_replaced(tmp_path: Path):
    write(tmp_path)
    assert token_files.open_split(tmp_path, "train", "other") is None
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
    damage(tmp_path / "train.bin")
    assert token_files.open_split(tmp_path, "train", "abc") is None
    assert not caplog.messages
    assert token_files.open_split(tmp_path, "train", "abc", warn=True) is None
    (said,) = caplog.messages
    assert re.search(r"train.bin is damaged \(.*\) and is made again$", said)
    assert tokens_of(write(tmp_path)) == stream_of(DOCUMENTS)


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_of_a_json_file_is_noticed(tmp_path: Path, bit: int):
    write(tmp_path)
    path = tmp_path / "train.json"
    content = path.read_bytes()
    for offset in range(len(content)):
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 1 << bit]) + content[offset + 1 :])
        assert token_files.open_split(tmp_path, "train", "abc") is None, offset
    path.write_bytes(content)
    assert token_files.open_split(tmp_path, "train", "abc") is not None


@pytest.mark.parametrize("missing", ["train.json", "train.bin"])
def test_a_split_without_one_of_its_files_is_not_there(tmp_path: Path, caplog: pytest.LogCaptureFixture, missing: str):
    write(tmp_path)
    (tmp_path / missing).unlink()
    assert token_files.open_split(tmp_path, "train", "abc", warn=True) is None
    assert not caplog.messages


def test_the_bar_ends_at_the_tokens_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bars = []

    class Bar(tqdm):
        def __init__(self, *args, **options):
            super().__init__(*args, **options, file=io.StringIO())
            bars.append(self)

    monkeypatch.setattr(token_files, "tqdm", Bar)
    tokens = [write(tmp_path, max_tokens=limit) for limit in (7000, None)]
    assert [(bar.n, bar.total) for bar in bars] == [(7000, 7000), (tokens[1].num_tokens, None)]
    assert "tokenising train" in bars[0].fp.getvalue()


def test_no_bar_is_drawn_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(token_files.os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        try:
            write(tmp_path)
        except OSError:
            assert capfd.readouterr().err.endswith("\n")  # the bar is closed before the error is reported
            raise
    assert not capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_copied_cache_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Any other is opened without reading its tokens, of which there may be terabytes."""
    write(tmp_path)
    crc32 = zlib.crc32
    with monkeypatch.context() as patch:
        patch.setattr(zlib, "crc32", lambda content: 0 if len(content) > 1000 else crc32(content))
        assert token_files.open_split(tmp_path, "train", "abc")
    path = tmp_path / "train.bin"
    os.utime(path)
    assert tokens_of(token_files.open_split(tmp_path, "train", "abc")) == stream_of(DOCUMENTS)
    assert path.stat().st_mtime_ns % 10**9 == 0


@pytest.mark.parametrize(
    "error", [ValueError("part.txt is not UTF-8 text at byte offset 7"), ConnectionError("no hub")]
)
def test_a_source_that_fails_is_what_is_reported_and_nothing_is_left(tmp_path: Path, error: Exception):
    def failing():
        yield from passages_of(DOCUMENTS)[:200]
        raise error

    with pytest.raises(type(error)) as caught:
        token_files.write_split(tmp_path, "train", failing(), TOKENIZER, fingerprint="abc")
    assert caught.value is error
    assert not list(tmp_path.iterdir())


def test_text_that_cannot_be_encoded_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bad = passages_of(DOCUMENTS)[50].text
    encode = tokenizers.Tokenizer.encode_array

    def failing(self, text: str):
        if text == bad:
            raise MemoryError
        return encode(self, text)

    monkeypatch.setattr(tokenizers.Tokenizer, "encode_array", failing)
    with pytest.raises(MemoryError):
        write(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="numbers of files are POSIX")
def test_tokens_are_whole_on_the_disk_before_their_json_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    flushed = []
    monkeypatch.setattr(
        token_files.os, "fsync", lambda file: flushed.append((os.fstat(file).st_ino, os.fstat(file).st_size))
    )
    write(tmp_path)
    paths = [tmp_path / "train.bin", tmp_path / "train.json"]
    assert flushed == [(path.stat().st_ino, path.stat().st_size) for path in paths]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    message = r"cannot write tokens \(denied\): make room"
    with pytest.raises(PermissionError, match=message) as caught, token_files.explained(tmp_path):
        raise PermissionError(errno.EACCES, "denied", "some file")
    assert (caught.value.errno, caught.value.filename) == (errno.EACCES, str(tmp_path))


def test_no_text_is_a_mistake(tmp_path: Path):
    with pytest.raises(ValueError, match=r"the train split of this corpus holds no text"):
        write(tmp_path, [])
    assert not list(tmp_path.iterdir())


FULL_DISK = """
import resource, sys
from pathlib import Path
from data import token_files, tokenizers
from data.readers import Passage

resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # as a full disk, but for this process alone
passages = [Passage("some text\\n" * 200, True)] * 500
try:
    token_files.write_split(Path(sys.argv[1]), "train", passages, tokenizers.byte_level(), fingerprint="abc")
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are POSIX")
def test_a_full_disk_is_reported_and_leaves_nothing_half_written(tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "cannot write tokens (File too large): make room, or set --data.cache_dir" in done.stdout
    assert not list(tmp_path.iterdir())


def sparse_corpus(folder: Path, num_tokens: int) -> TokenStore:
    """Tokens that are a hole in the file: they take no space on the disk, and read as zeros."""
    path = folder / "train.bin"
    path.touch()
    os.truncate(path, 2 * num_tokens)
    written = 10**9
    os.utime(path, (written, written))
    content = token_files.SplitContent("abc", "uint16", num_tokens, num_tokens, 1, written, checksum=0)
    path.with_suffix(".json").write_text(content.to_json())
    return token_files.open_split(folder, "train", "abc")


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
    tokens = write(tmp_path, ["text " * 100_000])
    pickled = pickle.dumps(tokens)
    assert len(pickled) < 2000
    assert tokens_of(pickle.loads(pickled)) == tokens_of(tokens)
