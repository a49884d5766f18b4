"""Tokenizers: text <-> token ids, always through a `tiktoken.Encoding`.

Three kinds: a published encoding by name ("gpt2", "o200k_base", ...), "bytes" (one token a byte), and "bpe",
a byte-pair encoding trained on the training split. V is the vocabulary size; ids run from 0 to V - 1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
import tiktoken

END_OF_TEXT = "<|endoftext|>"

# Words keep the space or punctuation mark before them, as in GPT-4's pattern. Unlike it, the end of a line and the
# indentation of the next are one piece: in code, what follows a newline is mostly how deep the next line stands.
SPLIT_PATTERN = "|".join(
    [
        r"'(?i:[sdmt]|ll|ve|re)",
        r"[^\r\n\p{L}\p{N}]?+\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]++(?:[\r\n]+[ \t]*)?",
        r"\s*[\r\n]+[ \t]*",
        r"\s+(?!\S)",
        r"\s+",
    ]
)

# Merges settle long before this; the cap keeps the table of distinct pieces within memory on large corpora.
TRAINING_BYTES = 128 * 2**20


class Tokenizer:
    """A `tiktoken.Encoding` with an end-of-text token, which can be stored as plain data.

    Text is always plain text: a special token's name inside it ("<|endoftext|>") is spelled out, never obeyed.
    """

    def __init__(self, encoding: tiktoken.Encoding):
        if END_OF_TEXT not in encoding.special_tokens_set:
            raise ValueError(f"encoding {encoding.name!r} has no {END_OF_TEXT} token to separate documents with")
        self.encoding = encoding
        self.name = encoding.name
        self.vocab_size = encoding.n_vocab
        self.end_of_text = encoding.encode_single_token(END_OF_TEXT)
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 2**16 else np.uint32)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without end-of-text."""
        return self.encoding.encode_ordinary(text)

    def encode_array(self, text: str) -> np.ndarray:
        """`encode` as a uint32 array (N,), without a Python integer per token."""
        return self.encoding.encode_to_numpy(text, disallowed_special=())

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; bytes that are not UTF-8 (a character cut in two), and ids without text, become U+FFFD."""
        pieces = []
        for token in ids:
            try:
                pieces.append(self.token_bytes(token))
            except KeyError:  # where the vocabulary was rounded up
                pieces.append("\N{REPLACEMENT CHARACTER}".encode())
        return b"".join(pieces).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """UTF-8 bytes that one token stands for. Raises KeyError for an id that no text has."""
        return self.encoding.decode_single_token_bytes(token)

    def label(self, token: int) -> str:
        """How one token reads; bytes that are only part of a character are spelled out, such as \\xe2."""
        try:
            return self.token_bytes(token).decode("utf-8", errors="backslashreplace")
        except KeyError:  # where the vocabulary was rounded up
            return f"<{token}>"

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest that is equal for two tokenizers exactly when they turn every text into the same ids."""
        digest = hashlib.sha256()
        for part in (self.encoding._pat_str, json.dumps(self.encoding._special_tokens, sort_keys=True)):
            digest.update(part.encode() + b"\0")
        for token, rank in sorted(self.encoding._mergeable_ranks.items(), key=lambda item: item[1]):
            digest.update(rank.to_bytes(4, "little") + len(token).to_bytes(4, "little") + token)
        return digest.hexdigest()

    def to_dict(self) -> dict:
        """Everything needed to build the tokenizer again, offline, as str, int and bytes.

        The merge table is one bytes object, each token behind its length (2 bytes, little-endian), in order of id:
        a hundred thousand separate objects would make every checkpoint slow to read. Length 0 is an unused id.
        """
        by_id = {rank: token for token, rank in self.encoding._mergeable_ranks.items()}
        tokens = (by_id.get(rank, b"") for rank in range(max(by_id) + 1))
        return {
            "name": self.name,
            "pattern": self.encoding._pat_str,
            "tokens": b"".join(len(token).to_bytes(2, "little") + token for token in tokens),
            "special_tokens": dict(self.encoding._special_tokens),
        }

    @classmethod
    def from_dict(cls, state: dict) -> Tokenizer:
        """Inverse of `to_dict`. Raises ValueError where `state` is not what `to_dict` returns."""
        try:
            packed = state["tokens"]
            ranks: dict[bytes, int] = {}
            start = rank = 0
            while start < len(packed):
                stop = start + 2 + int.from_bytes(packed[start : start + 2], "little")
                if stop > start + 2:
                    ranks[packed[start + 2 : stop]] = rank
                start, rank = stop, rank + 1
            _check_ids(ranks, state["special_tokens"])
            if start != len(packed):
                raise ValueError("its tokens are cut short")
            encoding = tiktoken.Encoding(
                name=state["name"],
                pat_str=state["pattern"],
                mergeable_ranks=ranks,
                special_tokens=state["special_tokens"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a stored tokenizer: {type(error).__name__} {error}") from error
        except ValueError as error:
            raise ValueError(f"not a stored tokenizer: {error}") from error
        return cls(encoding)


def by_name(name: str) -> Tokenizer:
    """The "bytes" tokenizer, or a published one; raises as `published` does."""
    return byte_level() if name == "bytes" else published(name)


def check_name(name: str) -> None:
    """Raises ValueError for a name that is neither bpe, bytes nor a published encoding."""
    known = tiktoken.list_encoding_names()
    if name not in ("bpe", "bytes", *known):
        raise ValueError(f"unknown tokenizer {name!r}: write one of bpe, bytes, {', '.join(known)}")


def recipe(name: str, vocab_size: int) -> list[str | int]:
    """Plain data that decides which tokenizer comes out of a given text."""
    return [name, vocab_size, SPLIT_PATTERN, TRAINING_BYTES] if name == "bpe" else [name]


def published(name: str) -> Tokenizer:
    """The published tiktoken encoding `name`; read from TIKTOKEN_CACHE_DIR, or else downloaded once.

    Raises ValueError for an unknown name and ConnectionError where the download fails.
    """
    check_name(name)
    try:
        return Tokenizer(tiktoken.get_encoding(name))
    except OSError as error:  # every exception of `requests` is one
        raise ConnectionError(
            f"cannot download the encoding {name!r}: on a machine without network, set TIKTOKEN_CACHE_DIR to a folder "
            f"where another machine has stored it, or write --data.tokenizer bpe"
        ) from error


def byte_level() -> Tokenizer:
    """One token a byte, and end-of-text: V = 257."""
    ranks = {bytes([value]): value for value in range(256)}
    return Tokenizer(
        tiktoken.Encoding(name="bytes", pat_str=r"[\s\S]", mergeable_ranks=ranks, special_tokens={END_OF_TEXT: 256})
    )


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-pair encoding (Sennrich et al. 2016, over bytes as in GPT-2) of V = `vocab_size`, end-of-text included.

    Reads `texts` up to TRAINING_BYTES. Raises ValueError where V is too small to hold all bytes, or larger than
    the merges that `texts` can fill.
    """
    import rustbpe

    if vocab_size < 257:
        raise ValueError(f"vocab_size {vocab_size} is too small for bpe: 256 bytes and end-of-text need at least 257")
    trainer = rustbpe.Tokenizer()
    trainer.train_from_iterator(_first_bytes(texts, TRAINING_BYTES), vocab_size - 1, pattern=SPLIT_PATTERN)
    ranks = {bytes(token): rank for token, rank in trainer.get_mergeable_ranks()}
    if len(ranks) < vocab_size - 1:
        raise ValueError(
            f"vocab_size {vocab_size} is too large for this text, which fills only {len(ranks) + 1}: "
            f"write --data.vocab_size {len(ranks) + 1} or less"
        )
    return Tokenizer(
        tiktoken.Encoding(
            name="bpe", pat_str=SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: vocab_size - 1}
        )
    )


def _check_ids(ranks: dict[bytes, int], special_tokens: dict[str, int]) -> None:
    """Raises ValueError for what tiktoken takes, and then panics over when it reads or writes a text."""
    missing = [value for value in range(256) if bytes([value]) not in ranks]
    if missing:
        raise ValueError(f"it has no token for the byte 0x{missing[0]:02x}")
    taken = set(ranks.values())
    for name, token in special_tokens.items():
        if not isinstance(token, int) or not 0 <= token < 2**32 or token in taken:
            raise ValueError(f"its {name} cannot have the id {token!r}")


def _first_bytes(texts: Iterable[str], limit: int) -> Iterator[str]:
    for text in texts:
        yield text
        limit -= len(text.encode())
        if limit <= 0:
            return
