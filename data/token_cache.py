"""Caches tokenised corpora: one folder for each combination of corpus, tokenizer and limits.

The name of a folder ends in a digest of everything that decides its content, such as sizes and dates of the text files.
So a changed file or option leads to another folder, and without a change no text is read again. The cache may be
deleted at any time.

train.bin and validation.bin hold the tokens of the two splits as plain uint16 or uint32, depending on the size of the
vocabulary. tokens.json holds the tokenizer and the size of each split, and is written last. The corpus is tokenised
again if one of these files is missing or cut short.
"""

import hashlib
import itertools
import json
import logging
import os
import re
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock
from tqdm import tqdm

from data.text import SPLITS, Corpus, Passage
from data.tokenizers import SPLIT_PATTERN, TRAINING_BYTES, Tokenizer, published, train_bpe
from model.mistakes import Mistake, file_errors

FORMAT = "GlassGPT tokens 5"
INDEX = "tokens.json"
DEFAULT_FOLDER = Path(__file__).resolve().parents[1] / ".cache" / "glassgpt"
BATCH_CHARS = 2**19  # characters that a thread encodes at once
BATCHES = 16  # read before they are encoded, in as many threads as the pool has
OTHER_PLACE = ": free some space for the tokens, or set --data.cache_dir to another folder"

_log = logging.getLogger(__name__)


@dataclass
class TokenStore:
    """The tokens of one split, in a memory-mapped file. Raises OSError or ValueError if it is missing or cut short."""

    path: Path
    dtype: str
    num_tokens: int
    num_bytes: int  # of the text in UTF-8
    checksum: int  # CRC-32 of the file; a resumed run compares it to notice that its text has changed

    def __post_init__(self) -> None:
        mapped = np.memmap(self.path, self.dtype, mode="r", shape=self.num_tokens)
        self._tokens = np.asarray(mapped)  # indexing a np.memmap is slower

    def gather(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Returns the windows of `length` tokens that begin at `starts` (B,), all at once, as int64 (B, length)."""
        return self._tokens[starts[:, None] + np.arange(length)].astype(np.int64)

    def read(self, start: int, length: int) -> np.ndarray:
        """Returns tokens `start` to `start + length`, or to the end of the split, as int64."""
        return self._tokens[start : start + length].astype(np.int64)


@dataclass(frozen=True)
class TokenizedCorpus:
    tokenizer: Tokenizer
    train: TokenStore
    validation: TokenStore


@dataclass
class CorpusCache:
    """Opens or creates the cached tokens of one corpus and one tokenizer."""

    corpus: Corpus
    tokenizer: Tokenizer | str  # "bpe" is trained on the training split; a published one is needed for new tokens only
    vocab_size: int  # of "bpe"
    max_tokens: dict[str, int | None]  # for each split; None: no limit
    cache_dir: str | None = None  # None: $GLASSGPT_CACHE, or else DEFAULT_FOLDER

    def __post_init__(self):
        name, recipe = self.tokenizer, [self.tokenizer]
        if isinstance(self.tokenizer, Tokenizer):
            name, recipe = self.tokenizer.name, [self.tokenizer.fingerprint]
        elif name == "bpe":
            recipe += [self.vocab_size, SPLIT_PATTERN, TRAINING_BYTES]
        key = json.dumps([FORMAT, self.corpus.identity, recipe, self.max_tokens], sort_keys=True)
        digest = hashlib.sha256(key.encode()).hexdigest()
        parent = os.path.expanduser(self.cache_dir or os.environ.get("GLASSGPT_CACHE") or DEFAULT_FOLDER)
        self.folder = Path(parent).absolute() / re.sub(r"[^\w.-]+", "_", f"{self.corpus.name}-{name}-{digest[:16]}")
        self.paths = {split: self.folder / f"{split}.bin" for split in SPLITS}

    def open(self) -> TokenizedCorpus | None:
        """Returns the cached corpus, or None if a file of it is missing or cut short."""
        with suppress(OSError, ValueError):
            index = json.loads((self.folder / INDEX).read_bytes())
            splits = {name: TokenStore(**index[name] | {"path": path}) for name, path in self.paths.items()}
            return TokenizedCorpus(Tokenizer.from_dict(index["tokenizer"]), **splits)
        return None

    def prepare(self) -> TokenizedCorpus:
        """Opens the cached corpus, or tokenises it. If several runs need it at once, one tokenises and the others wait.

        Raises Mistake if the text cannot be read or the tokens cannot be written.
        """
        if tokenized := self.open():
            return tokenized
        _log.info("tokenising %s into %s, or waiting for another run that is doing it", self.corpus.name, self.folder)
        with file_errors(self.folder, OTHER_PLACE):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / "lock").acquire()
        with lock:
            return self.open() or self._make()

    def _make(self) -> TokenizedCorpus:
        path, splits = self.folder / INDEX, {}
        try:
            tokenizer = self._tokenizer()
            index = {"tokenizer": tokenizer.to_dict()}
            for split, limit in self.max_tokens.items():
                tokens = token_stream(tokenizer, self.corpus.passages(split), limit)
                splits[split] = write_split(self.paths[split], tokens, tokenizer, limit)
                index[split] = asdict(splits[split])
            with file_errors(self.folder, OTHER_PLACE):
                path.write_text(json.dumps(index, default=str))
        except BaseException:
            for incomplete in (path, *self.paths.values()):
                incomplete.unlink(missing_ok=True)
            raise
        return TokenizedCorpus(tokenizer, **splits)

    def _tokenizer(self) -> Tokenizer:
        if isinstance(self.tokenizer, Tokenizer):
            return self.tokenizer
        if self.tokenizer != "bpe":
            return published(self.tokenizer)
        return train_bpe((passage.text for passage in self.corpus.passages("train")), self.vocab_size)


def write_split(path: Path, stream: Iterable[np.ndarray], tokenizer: Tokenizer, total: int | None = None) -> TokenStore:
    """Writes a stream of tokens to a file. Shows a progress bar, up to `total` tokens if their number is known.

    Raises Mistake if there is no text.
    """
    num_tokens = num_bytes = checksum = 0
    with file_errors(path.parent, OTHER_PLACE):
        path.unlink(missing_ok=True)  # not overwritten: a run may still be reading the old file
        file = path.open("wb")
    with file, tqdm(desc=f"tokenising {path.stem}", total=total, unit=" tokens", unit_scale=True) as bar:
        for tokens in stream:
            with file_errors(path.parent, OTHER_PLACE):  # only here: an OSError of `stream` is a bug
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
            f"the {path.stem} split of this corpus holds no text: choose files with text for both splits (those of "
            "--data.validation_files are not trained on; for tables, choose the right --data.text_column), or change "
            "--data.validation_fraction"
        )
    return TokenStore(path, tokenizer.dtype, num_tokens, num_bytes, checksum)


def token_stream(
    tokenizer: Tokenizer, passages: Iterable[Passage], max_tokens: int | None = None
) -> Iterator[np.ndarray]:
    """Yields the tokens of a split in arrays (N,): end-of-text, document, end-of-text, ..., document, end-of-text.

    Stops after `max_tokens`, even within a document. Several threads encode at once, since tiktoken releases the GIL.
    """
    room = max_tokens or sys.maxsize
    start = Passage("", ends_document=True)
    end = np.array([tokenizer.end_of_text])
    own = threading.local()  # threads that share a tokenizer wait for each other at every piece

    def begin() -> None:
        own.tokenizer = Tokenizer(tokenizer.name, tokenizer.pattern, tokenizer.ranks, tokenizer.special_tokens)

    def encode(batch: list[Passage]) -> np.ndarray:
        pieces = []
        for passage in batch:
            pieces += [own.tokenizer.encode_array(passage.text), end[: int(passage.ends_document)]]
        return np.concatenate(pieces, dtype=tokenizer.dtype, casting="unsafe")

    batches = _batches(itertools.chain([start], passages))
    with ThreadPoolExecutor(os.cpu_count(), initializer=begin) as pool:
        while at_once := [*itertools.islice(batches, BATCHES)]:
            for tokens in pool.map(encode, at_once):
                yield tokens[:room]
                room -= len(tokens)
                if room <= 0:
                    return


def _batches(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    """Yields the passages in lists of about BATCH_CHARS characters."""
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
