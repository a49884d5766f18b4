"""The cache of tokenised corpora: one folder for each combination of corpus, tokenizer and limits.

The folder's name ends in a digest of everything that decides its content, including sizes and dates of the files: a
changed file or option means another folder, and an unchanged one is opened without reading any text. The cache may be
deleted at any time.

train.bin holds the tokens of a split, bare uint16 or uint32 by vocabulary; train.json says what made them and what
they are. Both are written aside and renamed when they are whole and on the disk, the JSON file last: a split without
it does not exist, and a run that was killed leaves nothing that opens.

Each token of the text has one before it in the stream of a split, see `token_stream`.
"""

import base64
import hashlib
import json
import logging
import mmap
import os
import re
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
from filelock import AcquireReturnProxy, FileLock, Timeout
from tqdm import tqdm

from data import tokenizers
from data.corpora import SPLITS, Corpus
from data.mistakes import Mistake
from data.readers import Passage
from data.tokenizers import Tokenizer

FORMAT = "GlassGPT tokens 3"
BATCH_CHARS = 2**19  # what a thread encodes at once
QUEUED_BATCHES = 4  # encoded ahead of the disk
LARGE = 2**25  # tokens; windows of a larger split are mostly not in memory

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenStore:
    """The tokens of one split, memory-mapped; all fields but the path are the content of the split's JSON file.

    `checksum` is the CRC-32 of the token file. `written` is that file's modification time in whole seconds, set by
    the writer: while the file still has this time nobody has changed it, and the checksum need not be computed again.
    """

    path: Path
    fingerprint: str  # of what made the tokens
    dtype: str
    num_tokens: int
    num_bytes: int  # of the text, in UTF-8
    num_documents: int
    written: int
    checksum: int

    def to_json(self) -> bytes:
        """With a checksum of its own."""
        content = asdict(self)
        del content["path"]
        checksum = zlib.crc32(json.dumps(content).encode())
        return json.dumps({"format": FORMAT, "split": content, "checksum": checksum}).encode()

    @classmethod
    def from_json(cls, path: Path, text: bytes) -> "TokenStore":
        """Inverse of `to_json`. Raises ValueError for what it has not written."""
        with suppress(ValueError, TypeError, KeyError):
            store = cls(path, **json.loads(text)["split"])
            if store.to_json() == text:
                return store
        raise ValueError("its JSON file is not what was written")

    @cached_property
    def _tokens(self) -> np.ndarray:
        tokens = np.memmap(self.path, self.dtype, mode="r")
        if len(tokens) > LARGE and hasattr(mmap, "MADV_RANDOM"):
            # Windows of a large split are far apart: reading ahead of each would be wasted.
            tokens.base.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
        return np.asarray(tokens)  # indexing a np.memmap is slower

    def __reduce__(self):
        # Loader processes open the file again: a pickled memory map would carry its whole content.
        return TokenStore, astuple(self)

    def gather(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Windows of `length` tokens from each of `starts` (B,), as int64 (B, length)."""
        return self._tokens[starts[:, None] + np.arange(length)].astype(np.int64)

    def read(self, start: int, length: int) -> np.ndarray:
        """Tokens `start` to `start + length`, or to the end of the split, as int64."""
        return self._tokens[start : start + length].astype(np.int64)


@dataclass(frozen=True)
class TokenizedCorpus:
    folder: Path
    tokenizer: Tokenizer
    train: TokenStore
    validation: TokenStore


@dataclass
class CorpusCache:
    """The tokens of one corpus under one tokenizer."""

    corpus: Corpus
    tokenizer: str | Tokenizer  # a name, see `tokenizers.check_name`, or a tokenizer
    vocab_size: int  # of the bpe tokenizer; the others bring their own
    max_tokens: dict[str, int | None]  # for each split; None means all
    cache_dir: str | Path | None = None  # default: $GLASSGPT_CACHE, or else .cache/glassgpt beside this project

    def __post_init__(self):
        if isinstance(self.tokenizer, Tokenizer):
            self._tokenizer_name, recipe = self.tokenizer.name, [self.tokenizer.fingerprint]
        else:
            self._tokenizer_name, recipe = self.tokenizer, [self.tokenizer]
        if recipe == ["bpe"]:
            recipe += [self.vocab_size, tokenizers.SPLIT_PATTERN, tokenizers.TRAINING_BYTES]
        decisive = json.dumps([FORMAT, self.corpus.identity, recipe, self.max_tokens], sort_keys=True)
        self._digest = hashlib.sha256(decisive.encode()).hexdigest()
        name = re.sub(r"[^\w.-]+", "_", f"{self.corpus.name}-{self._tokenizer_name}")
        beside_project = Path(__file__).resolve().parents[1] / ".cache" / "glassgpt"
        parent = Path(self.cache_dir or os.environ.get("GLASSGPT_CACHE") or beside_project).expanduser().absolute()
        self.folder = parent / f"{name}-{self._digest[:16]}"

    def open(self) -> TokenizedCorpus | None:
        """The tokenised corpus, or None where it is not there or not complete."""
        tokenizer = self._open_tokenizer()
        if tokenizer is None:
            return None
        splits = {split: open_split(self._path(split), self._digest + tokenizer.fingerprint) for split in SPLITS}
        return None if None in splits.values() else TokenizedCorpus(self.folder, tokenizer, **splits)

    def _path(self, split: str) -> Path:
        return self.folder / f"{split}.bin"

    def prepare(self, num_threads: int | None = None) -> TokenizedCorpus:
        """Opens the tokenised corpus, after making what is missing. Of several runs at once, one makes it.

        Raises Mistake where the text cannot be read, or the tokens cannot be written.
        """
        if ready := self.open():
            return ready
        with self._lock():
            tokenizer = self._open_tokenizer() or self._make_tokenizer()
            fingerprint = self._digest + tokenizer.fingerprint
            for split, limit in self.max_tokens.items():
                if open_split(self._path(split), fingerprint, warn=True) is None:
                    threads = num_threads or os.cpu_count() or 1
                    tokens = token_stream(tokenizer, self.corpus.passages(split), limit, threads)
                    write_split(self._path(split), tokens, tokenizer, fingerprint, limit)
        return self.open()

    def _lock(self) -> AcquireReturnProxy:
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / "lock")
            with suppress(Timeout):
                return lock.acquire(timeout=0)
        print(f"waiting for another run that is tokenising {self.corpus.name} into {self.folder}", flush=True)
        return lock.acquire()

    def _make_tokenizer(self) -> Tokenizer:
        path = self.folder / "tokenizer.json"
        if path.exists():
            _log.warning("%s is damaged and is made again", path)
        if isinstance(self.tokenizer, Tokenizer):
            tokenizer = self.tokenizer
        elif self.tokenizer == "bpe":
            print(f"training a bpe tokenizer of {self.vocab_size:,} tokens on {self.corpus.name}", flush=True)
            texts = (passage.text for passage in self.corpus.passages("train"))
            tokenizer = tokenizers.train_bpe(texts, self.vocab_size)
        else:
            tokenizer = tokenizers.published(self.tokenizer)
        state = tokenizer.to_dict()
        state |= {"tokens": base64.b64encode(state["tokens"]).decode(), "fingerprint": tokenizer.fingerprint}
        with new_file(path) as file:
            file.write(json.dumps(state).encode())
        return tokenizer

    def _open_tokenizer(self) -> Tokenizer | None:
        """The tokenizer, or None where it is not there or damaged."""
        try:
            state = json.loads((self.folder / "tokenizer.json").read_bytes())
            tokenizer = Tokenizer.from_dict({**state, "tokens": base64.b64decode(state["tokens"])})
            is_whole = (tokenizer.name, tokenizer.fingerprint) == (self._tokenizer_name, state["fingerprint"])
            return tokenizer if is_whole else None
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
            return None


def open_split(path: Path, fingerprint: str, warn: bool = False) -> TokenStore | None:
    """The split at `path`, or None where it is not there, has another fingerprint, or is damaged: `warn` says so."""
    try:
        text, stat = path.with_suffix(".json").read_bytes(), path.stat()
        store = TokenStore.from_json(path, text)
        size = store.num_tokens * np.dtype(store.dtype).itemsize
        if stat.st_size != size:
            raise ValueError(f"it has {stat.st_size:,} bytes, not {size:,}")
        if stat.st_mtime_ns != store.written * 10**9:
            if zlib.crc32(np.memmap(path, mode="r").data) != store.checksum:
                raise ValueError("its content does not have the checksum that was written")
            with suppress(OSError):  # a cache that cannot be written is checked each time
                os.utime(path, (store.written, store.written))
    except FileNotFoundError:
        return None
    except ValueError as error:
        if warn:
            _log.warning("%s is damaged (%s) and is made again", path, error)
        return None
    return store if store.fingerprint == fingerprint else None


def write_split(
    path: Path, stream: Iterable[np.ndarray], tokenizer: Tokenizer, fingerprint: str, total: int | None = None
) -> None:
    """Writes a stream of tokens in the place of what is at `path`; a bar shows how many there are, of `total`.

    Raises Mistake where there is no text.
    """
    num_tokens = num_bytes = num_ends = checksum = 0
    path.with_suffix(".json").unlink(missing_ok=True)
    with (
        new_file(path) as file,
        tqdm(desc=f"tokenising {path.stem}", total=total, unit=" tokens", unit_scale=True) as bar,
    ):
        for tokens in stream:
            with writing(path.parent):  # and nothing more: an OSError of a corpus is one in its code
                file.write(tokens.data)
            checksum = zlib.crc32(tokens.data, checksum)
            num_tokens += len(tokens)
            num_bytes += tokenizer.num_bytes(tokens)
            num_ends += int(np.count_nonzero(tokens == tokenizer.end_of_text))
            bar.update(len(tokens))
        if num_bytes == 0:
            raise Mistake(
                f"the {path.stem} split of this corpus holds no text: name files, and of tables a --data.text_column, "
                "with text for both splits, or change --data.validation_fraction"
            )
    written = int(time.time())
    os.utime(path, (written, written))
    num_documents = num_ends - int(tokens[-1] == tokenizer.end_of_text)  # each has one before it
    counts = (num_tokens, num_bytes, num_documents)
    with new_file(path.with_suffix(".json")) as file:
        file.write(TokenStore(path, fingerprint, tokenizer.dtype.name, *counts, written, checksum).to_json())


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """A cache that cannot be written is a person's mistake: for a block that only writes."""
    try:
        yield
    except OSError as error:
        raise Mistake(
            f"cannot write tokens into {folder} ({error.strerror or error}): make room, or set --data.cache_dir to "
            "another folder"
        ) from error


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which gets its name when the block has ended and it is on the disk; removed otherwise."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with writing(path.parent):
            file = partial.open("wb")
        with file:
            yield file
            with writing(path.parent):
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def token_stream(
    tokenizer: Tokenizer, passages: Iterable[Passage], max_tokens: int | None = None, num_threads: int = 1
) -> Iterator[np.ndarray]:
    """The stream of a split in arrays (N,): end-of-text, document, end-of-text, ..., end-of-text.

    Stops after `max_tokens`, even within a document.
    """
    room = max_tokens or sys.maxsize
    start = np.array([tokenizer.end_of_text], dtype=tokenizer.dtype)
    for tokens in chain([start], _encoded(tokenizer, passages, num_threads)):
        yield tokens[:room]
        room -= len(tokens)
        if room <= 0:
            return


def _encoded(tokenizer: Tokenizer, passages: Iterable[Passage], num_threads: int) -> Iterator[np.ndarray]:
    """Tokens (N,) of each batch of `passages`, in order. Threads suffice because tiktoken releases the GIL.

    Each thread has its own copy of the tokenizer: in a shared one, the threads wait for each other at every piece,
    which took 15 to 30% more processor time on 2 cores (AMD EPYC).
    """
    own = threading.local()
    end = np.array([tokenizer.end_of_text])

    def start_thread() -> None:
        own.tokenizer = Tokenizer(tokenizer.name, tokenizer.pattern, tokenizer.ranks, tokenizer.special_tokens)

    def encode(batch: list[Passage]) -> np.ndarray:
        pieces = []
        for passage in batch:
            pieces += [own.tokenizer.encode_array(passage.text), end[: int(passage.ends_document)]]
        return np.concatenate(pieces, dtype=tokenizer.dtype, casting="unsafe")

    pending: deque[Future[np.ndarray]] = deque()
    with ThreadPoolExecutor(num_threads, initializer=start_thread) as pool:
        try:
            for batch in _batches(passages):
                pending.append(pool.submit(encode, batch))
                if len(pending) > num_threads + QUEUED_BATCHES:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _batches(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    batch: list[Passage] = []
    chars = 0
    for passage in passages:
        batch.append(passage)
        chars += len(passage.text)
        if chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch
