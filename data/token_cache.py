"""The cache of tokenised corpora: one folder for each combination of corpus, tokenizer and limits.

The folder's name ends in a digest of everything that decides its content, including sizes and dates of the files: a
changed file or option means another folder, and an unchanged one is opened without reading any text. The cache may be
deleted at any time.

train.bin and validation.bin hold the tokens of the splits, bare uint16 or uint32 by vocabulary. tokens.json holds the
tokenizer, and the size of each split. It is written last: a folder without it, or with a split that has another size or
is newer than it, counts as empty and is made again.
"""

import base64
import hashlib
import itertools
import json
import logging
import mmap
import os
import re
import sys
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import platformdirs
from filelock import FileLock
from tqdm import tqdm

from data import tokenizers
from data.text import SPLITS, Corpus, Passage
from data.tokenizers import Tokenizer
from model.mistakes import Mistake, file_errors

FORMAT = "GlassGPT tokens 4"
INDEX = "tokens.json"
BATCH_CHARS = 2**19  # what a thread encodes at once
OTHER_PLACE = ": make room for the tokens, or set --data.cache_dir to another folder"
LARGE = 2**25  # tokens; windows of a larger split are mostly not in memory

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenStore:
    """The tokens of one split, memory-mapped."""

    path: Path
    dtype: str
    num_tokens: int
    num_bytes: int  # of the text, in UTF-8
    checksum: int  # CRC-32 of the file, by which a resumed run knows its text again

    def is_whole(self, index: Path) -> bool:
        """Whether the file has its size and is no newer than the index. Raises OSError where there is none."""
        stat, size = self.path.stat(), self.num_tokens * np.dtype(self.dtype).itemsize
        return stat.st_size == size and stat.st_mtime_ns <= index.stat().st_mtime_ns

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
        """Windows of `length` tokens from each of `starts` (B,), as int64 (B, length): faster than one by one."""
        return self._tokens[starts[:, None] + np.arange(length)].astype(np.int64)

    def read(self, start: int, length: int) -> np.ndarray:
        """Tokens `start` to `start + length`, or to the end of the split, as int64."""
        return self._tokens[start : start + length].astype(np.int64)


@dataclass(frozen=True)
class TokenizedCorpus:
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
    cache_dir: str | Path | None = None  # default: see `default_cache_dir`

    def __post_init__(self):
        name, recipe = self.tokenizer, [self.tokenizer]
        if isinstance(self.tokenizer, Tokenizer):
            name, recipe = self.tokenizer.name, [self.tokenizer.fingerprint]
        elif name == "bpe":
            recipe += [self.vocab_size, tokenizers.SPLIT_PATTERN, tokenizers.TRAINING_BYTES]
        decisive = json.dumps([FORMAT, self.corpus.identity, recipe, self.max_tokens], sort_keys=True)
        digest = hashlib.sha256(decisive.encode()).hexdigest()
        parent = Path(self.cache_dir or default_cache_dir()).expanduser().absolute()
        self.folder = parent / re.sub(r"[^\w.-]+", "_", f"{self.corpus.name}-{name}-{digest[:16]}")
        self.paths = {split: self.folder / f"{split}.bin" for split in SPLITS}

    def open(self) -> TokenizedCorpus | None:
        """The tokenised corpus, or None where it is not there, not complete, or was changed."""
        with suppress(OSError, ValueError):  # missing, or cut short
            path = self.folder / INDEX
            index = json.loads(path.read_bytes())
            state = index["tokenizer"] | {"tokens": base64.b64decode(index["tokenizer"]["tokens"])}
            splits = {name: TokenStore(**index[name] | {"path": bare}) for name, bare in self.paths.items()}
            if all(split.is_whole(path) for split in splits.values()):
                return TokenizedCorpus(Tokenizer.from_dict(state), **splits)
        return None

    def prepare(self, num_threads: int | None = None) -> TokenizedCorpus:
        """Opens the tokenised corpus, after making it where it is missing. Of several runs at once, one makes it.

        Raises Mistake where the text cannot be read, or the tokens cannot be written.
        """
        if ready := self.open():
            return ready
        words = f"tokenising {self.corpus.name} into {self.folder}, or waiting for another run that does"
        print(words, file=sys.stderr)
        with file_errors(self.folder, OTHER_PLACE):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / "lock").acquire()
        with lock:
            return self.open() or self._make(num_threads or os.cpu_count() or 1)

    def _make(self, num_threads: int) -> TokenizedCorpus:
        path, splits = self.folder / INDEX, {}
        if path.exists():
            _log.warning("%s has changed since it was written: its tokens are made again", self.folder)
        try:
            tokenizer = self._make_tokenizer()
            state = tokenizer.to_dict()
            index = {"tokenizer": state | {"tokens": base64.b64encode(state["tokens"]).decode()}}
            for split, limit in self.max_tokens.items():
                tokens = token_stream(tokenizer, self.corpus.passages(split), limit, num_threads)
                splits[split] = write_split(self.paths[split], tokens, tokenizer, limit)
                index[split] = asdict(splits[split])
            with file_errors(self.folder, OTHER_PLACE):
                path.write_text(json.dumps(index, default=str))
        except BaseException:
            for left in (path, *self.paths.values()):
                left.unlink(missing_ok=True)
            raise
        return TokenizedCorpus(tokenizer, **splits)

    def _make_tokenizer(self) -> Tokenizer:
        if isinstance(self.tokenizer, Tokenizer):
            return self.tokenizer
        if self.tokenizer != "bpe":
            return tokenizers.published(self.tokenizer)
        print(f"training a bpe tokenizer of {self.vocab_size:,} tokens on {self.corpus.name}", flush=True)
        return tokenizers.train_bpe((passage.text for passage in self.corpus.passages("train")), self.vocab_size)


def default_cache_dir() -> Path:
    """$GLASSGPT_CACHE, or else .cache in a checkout of this project, or the user's cache where it is installed."""
    project = Path(__file__).resolve().parents[1]
    is_checkout = (project / "pyproject.toml").is_file()
    place = project / ".cache" / "glassgpt" if is_checkout else platformdirs.user_cache_path("glassgpt")
    return Path(os.environ.get("GLASSGPT_CACHE") or place)


def write_split(path: Path, stream: Iterable[np.ndarray], tokenizer: Tokenizer, total: int | None = None) -> TokenStore:
    """Writes a stream of tokens onto the disk; a bar shows how many there are, of `total`.

    Raises Mistake where there is no text.
    """
    num_tokens = num_bytes = checksum = 0
    with file_errors(path.parent, OTHER_PLACE):
        path.unlink(missing_ok=True)  # another run may read the old one, and keeps it
        file = path.open("wb")
    with file, tqdm(desc=f"tokenising {path.stem}", total=total, unit=" tokens", unit_scale=True) as bar:
        for tokens in stream:
            with file_errors(path.parent, OTHER_PLACE):  # and nothing more: an OSError of a corpus is one in its code
                file.write(tokens.data)
            checksum = zlib.crc32(tokens.data, checksum)
            num_tokens += len(tokens)
            num_bytes += tokenizer.num_bytes(tokens)
            bar.update(len(tokens))
        with file_errors(path.parent, OTHER_PLACE):
            file.flush()
            os.fsync(file.fileno())
    if num_bytes == 0:
        raise Mistake(
            f"the {path.stem} split of this corpus holds no text: name files, and of tables a --data.text_column, with "
            "text for both splits, or change --data.validation_fraction"
        )
    return TokenStore(path, tokenizer.dtype.name, num_tokens, num_bytes, checksum)


def token_stream(
    tokenizer: Tokenizer, passages: Iterable[Passage], max_tokens: int | None = None, num_threads: int = 1
) -> Iterator[np.ndarray]:
    """The stream of a split in arrays (N,): end-of-text, document, end-of-text, ..., end-of-text.

    Stops after `max_tokens`, even within a document.
    """
    room = max_tokens or sys.maxsize
    start = Passage("", ends_document=True)
    for tokens in _encoded(tokenizer, itertools.chain([start], passages), num_threads):
        yield tokens[:room]
        room -= len(tokens)
        if room <= 0:
            return


def _encoded(tokenizer: Tokenizer, passages: Iterable[Passage], num_threads: int) -> Iterator[np.ndarray]:
    """Tokens (N,) of each batch of `passages`, in order. Threads suffice because tiktoken releases the GIL.

    They take turns with copies of the tokenizer: in a shared one, the threads wait for each other at every piece, which
    took 15 to 30% more processor time on 2 cores (AMD EPYC).
    """
    same = tokenizer.name, tokenizer.pattern, tokenizer.ranks, tokenizer.special_tokens
    copies = itertools.cycle(Tokenizer(*same) for _ in range(num_threads))  # each is made when its first turn comes
    end = np.array([tokenizer.end_of_text])

    def encode(copy: Tokenizer, batch: list[Passage]) -> np.ndarray:
        pieces = []
        for passage in batch:
            pieces += [copy.encode_array(passage.text), end[: int(passage.ends_document)]]
        return np.concatenate(pieces, dtype=tokenizer.dtype, casting="unsafe")

    pending: deque[Future[np.ndarray]] = deque()
    with ThreadPoolExecutor(num_threads) as pool:
        for batch in _batches(passages):
            pending.append(pool.submit(encode, next(copies), batch))
            if len(pending) > 2 * num_threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


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
