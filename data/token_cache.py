"""The cache of tokenised corpora: one folder for each combination of corpus, tokenizer and limits.

The folder's name ends in a digest of everything that decides its content, including sizes and dates of the files: a
changed file or option means another folder, and an unchanged one is opened without reading any text. The cache may be
deleted at any time.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from data import token_files, tokenizers
from data.corpora import SPLITS, Corpus
from data.token_files import TokenStore
from data.tokenizers import Tokenizer

_log = logging.getLogger(__name__)


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
    tokenizer_name: str
    vocab_size: int  # of the bpe tokenizer; the others bring their own
    max_tokens: dict[str, int | None]  # for each split; None means all
    cache_dir: str | Path | None = None  # default: $GLASSGPT_CACHE, or else .cache/glassgpt beside this project
    given: Tokenizer | None = None  # in place of the one of that name

    def __post_init__(self):
        by_name = tokenizers.recipe(self.tokenizer_name, self.vocab_size)
        recipe = [self.given.fingerprint] if self.given else by_name
        parts = [token_files.FORMAT, self.corpus.identity, recipe, self.max_tokens]
        self._digest = _digest(json.dumps(parts, sort_keys=True))
        name = re.sub(r"[^\w.-]+", "_", f"{self.corpus.name}-{self.tokenizer_name}")
        beside_project = Path(__file__).resolve().parents[1] / ".cache" / "glassgpt"
        parent = Path(self.cache_dir or os.environ.get("GLASSGPT_CACHE") or beside_project).expanduser().absolute()
        self.folder = parent / f"{name}-{self._digest[:16]}"

    def open(self) -> TokenizedCorpus | None:
        """The tokenised corpus, or None where it is not there or not complete."""
        tokenizer = self._open_tokenizer()
        if tokenizer is None:
            return None
        fingerprint = self._fingerprint(tokenizer)
        splits = {split: token_files.open_split(self.folder, split, fingerprint) for split in SPLITS}
        return None if None in splits.values() else TokenizedCorpus(self.folder, tokenizer, **splits)

    def prepare(self, num_threads: int | None = None) -> TokenizedCorpus:
        """Opens the tokenised corpus, after making what is missing. Of several runs at once, one makes it.

        Raises ValueError, FileNotFoundError or OSError where the text cannot be read or the tokens not be written.
        """
        if ready := self.open():
            return ready
        with self._lock():
            tokenizer = self._open_tokenizer() or self._make_tokenizer()
            fingerprint = self._fingerprint(tokenizer)
            for split in SPLITS:
                if token_files.open_split(self.folder, split, fingerprint, warn=True):
                    continue
                token_files.write_split(
                    self.folder,
                    split,
                    self.corpus.passages(split),
                    tokenizer,
                    fingerprint=fingerprint,
                    max_tokens=self.max_tokens[split],
                    num_threads=num_threads or os.cpu_count() or 1,
                )
        return self.open()

    @contextmanager
    def _lock(self) -> Iterator[None]:
        lock = FileLock(self.folder / "lock")
        with token_files.explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                print(f"waiting for another run that is tokenising {self.corpus.name} into {self.folder}", flush=True)
                lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _fingerprint(self, tokenizer: Tokenizer) -> str:
        return _digest(self._digest + tokenizer.fingerprint)

    def _make_tokenizer(self) -> Tokenizer:
        path = self.folder / "tokenizer.json"
        if path.exists():
            _log.warning("%s is damaged and is made again", path)
        if self.given is not None:
            tokenizer = self.given
        elif self.tokenizer_name == "bpe":
            print(f"training a bpe tokenizer of {self.vocab_size:,} tokens on {self.corpus.name}", flush=True)
            texts = (passage.text for passage in self.corpus.passages("train"))
            tokenizer = tokenizers.train_bpe(texts, self.vocab_size)
        elif self.tokenizer_name == "bytes":
            tokenizer = tokenizers.byte_level()
        else:
            tokenizer = tokenizers.published(self.tokenizer_name)
        state = tokenizer.to_dict()
        state = {**state, "tokens": base64.b64encode(state["tokens"]).decode(), "fingerprint": tokenizer.fingerprint}
        token_files.write_file(path, json.dumps(state))
        return tokenizer

    def _open_tokenizer(self) -> Tokenizer | None:
        """The tokenizer, or None where it is not there or damaged."""
        try:
            state = json.loads((self.folder / "tokenizer.json").read_bytes())
            tokenizer = Tokenizer.from_dict({**state, "tokens": base64.b64decode(state["tokens"])})
            is_whole = (tokenizer.name, tokenizer.fingerprint) == (self.tokenizer_name, state["fingerprint"])
            return tokenizer if is_whole else None
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
            return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
