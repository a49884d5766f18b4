"""Tokenizers: text <-> token ids, always through a `tiktoken.Encoding`.

Four kinds: a published encoding by name ("gpt2", "o200k_base", ...), "bytes" (one token a byte), "letters" (one token a
lowercase letter), and "bpe", a byte-pair encoding trained on the training split. V is the vocabulary size; ids run from
0 to V - 1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import tiktoken
import tiktoken.registry

from data.tokenizer_files import END_OF_TEXT, huggingface_files, read_huggingface_files

# As GPT-4's pattern, words keep the space or punctuation mark before them. Unlike GPT-4's, the end of a line and the
# indentation of the next are one piece: in code, what follows a newline is mostly the depth of the next line.
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

LETTERS = "[a-z]"  # what no piece matches is no part of the tokens

# Merges change little with more text than this; the limit bounds the memory for the table of distinct pieces.
TRAINING_BYTES = 128 * 2**20


class Tokenizer:
    """A `tiktoken.Encoding` with an end-of-text token, which can be stored as plain data.

    A special token's name inside a text ("<|endoftext|>") is encoded as ordinary text, never as the special token.

    Args:
        pattern: regular expression that splits text into pieces; tokens never cross a piece.
        ranks: id of each token's bytes, in order of the merges.
        special_tokens: id of each special token.

    Raises ValueError where end-of-text is missing.
    """

    def __init__(self, name: str, pattern: str, ranks: dict[bytes, int], special_tokens: dict[str, int]):
        if END_OF_TEXT not in special_tokens:
            raise ValueError(f"encoding {name!r} has no {END_OF_TEXT} token to separate documents with")
        self.name, self.pattern, self.ranks, self.special_tokens = name, pattern, ranks, special_tokens
        self.encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special_tokens)
        self.vocab_size = self.encoding.n_vocab
        self.end_of_text = special_tokens[END_OF_TEXT]
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 2**16 else np.uint32)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without end-of-text. Raises ValueError where the pattern cannot split it."""
        return self.encode_array(text).tolist()

    def encode_array(self, text: str) -> np.ndarray:
        """`encode` as a uint32 array (N,), without a Python integer per token."""
        try:
            return self.encoding.encode_to_numpy(text, disallowed_special=())
        except UnicodeEncodeError:  # half a pair of surrogates becomes U+FFFD, as in tiktoken's own `encode_ordinary`
            return self.encode_array(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
        except BaseException as error:  # of a pattern that backtracks without end
            if not isinstance(error, ValueError) and type(error).__name__ != "PanicException":  # which is not public
                raise
            raise ValueError(f"the tokenizer's pattern cannot split this text: {error}") from error

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; bytes that are not UTF-8 (a character cut in two) and unused ids become U+FFFD."""
        ids = list(ids)
        try:
            content = self.encoding.decode_bytes(ids)
        except KeyError:
            content = b"".join(map(self.token_bytes, ids))
        return content.decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """UTF-8 bytes of one token; of U+FFFD for an unused id, which there is where a vocabulary was rounded up."""
        try:
            return self.encoding.decode_single_token_bytes(token)
        except KeyError:
            return "\N{REPLACEMENT CHARACTER}".encode()

    def label(self, token: int) -> str:
        """One token for people to read; part of a character is escaped, such as \\xe2, and an unused id is a number."""
        try:
            return self.encoding.decode_single_token_bytes(token).decode("utf-8", errors="backslashreplace")
        except KeyError:
            return f"<{token}>"

    def num_bytes(self, tokens: np.ndarray) -> int:
        """UTF-8 bytes of the text of `tokens` (N,), without end-of-text."""
        return int(self._lengths[tokens].sum())

    @cached_property
    def _lengths(self) -> np.ndarray:
        """UTF-8 bytes of each token (V,); 0 for special ones and unused ids."""
        lengths = np.zeros(self.vocab_size, dtype=np.int64)
        lengths[list(self.ranks.values())] = [len(token) for token in self.ranks]
        return lengths

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest; equal for two tokenizers exactly when they encode every text alike."""
        digest = hashlib.sha256()
        for part in (self.pattern, json.dumps(self.special_tokens, sort_keys=True)):
            digest.update(part.encode() + b"\0")
        for token, rank in sorted(self.ranks.items(), key=lambda item: item[1]):
            digest.update(rank.to_bytes(4, "little") + len(token).to_bytes(4, "little") + token)
        return digest.hexdigest()

    def to_dict(self) -> dict:
        """Everything needed to build the tokenizer again, offline, as str, int and bytes.

        The tokens are one bytes object, in order of id, each after its length (2 bytes, little-endian); a hundred
        thousand separate objects would make every checkpoint slow to read. Length 0 is an unused id.
        """
        by_id = {rank: token for token, rank in self.ranks.items()}
        tokens = (by_id.get(rank, b"") for rank in range(max(by_id) + 1))
        return {
            "name": self.name,
            "pattern": self.pattern,
            "tokens": b"".join(len(token).to_bytes(2, "little") + token for token in tokens),
            "special_tokens": dict(self.special_tokens),
        }

    def huggingface_files(self) -> dict[str, dict]:
        """Files with which Hugging Face's AutoTokenizer encodes as this tokenizer does: name -> content, for JSON."""
        return huggingface_files(self.pattern, self.ranks, self.special_tokens)

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a folder that Hugging Face's AutoTokenizer reads.

        Raises:
            FileNotFoundError: if it has none.
            ValueError: if it is damaged, or is no byte-level encoding that merges in the order of its ids.
        """
        try:
            return cls.from_dict(cls(*read_huggingface_files(folder)).to_dict())  # which checks the ids
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"the tokenizer in {folder} cannot be read: {reason}") from error

    @classmethod
    def from_dict(cls, state: dict) -> Tokenizer:
        """Inverse of `to_dict`. Raises ValueError where `state` is not what `to_dict` returns."""
        try:
            ranks = _unpacked(state["tokens"])
            needed = ascii_lowercase.encode() if state["pattern"] == LETTERS else range(256)
            _check_ids(ranks, state["special_tokens"], needed)
            return cls(state["name"], state["pattern"], ranks, state["special_tokens"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__} "
            raise ValueError(f"not a stored tokenizer: {kind}{error}") from error


def check_name(name: str) -> None:
    """Raises ValueError for a name that is neither one of this project's nor a published encoding."""
    known = ["bpe", "bytes", "letters", *tiktoken.list_encoding_names()]
    if name not in known:
        raise ValueError(f"unknown tokenizer {name!r}: write one of {', '.join(known)}")


def recipe(name: str, vocab_size: int) -> list[str | int]:
    """Plain data that, with the training text, determines the tokenizer."""
    return [name, vocab_size, SPLIT_PATTERN, TRAINING_BYTES] if name == "bpe" else [name]


def published(name: str) -> Tokenizer:
    """The tokenizer "bytes" or "letters", or a published encoding, from TIKTOKEN_CACHE_DIR or else downloaded once.

    "letters" has one token a lowercase letter, and end-of-text: V = 27. All other characters are left out.

    Raises ValueError for an unknown name and ConnectionError where the download fails.
    """
    if name == "bytes":
        return byte_level()
    if name == "letters":
        ranks = {bytes([value]): number for number, value in enumerate(ascii_lowercase.encode())}
        return Tokenizer("letters", LETTERS, ranks, {END_OF_TEXT: len(ranks)})
    check_name(name)
    try:
        arguments = tiktoken.registry.ENCODING_CONSTRUCTORS[name]()
    except OSError as error:  # every exception of `requests` is one
        raise ConnectionError(
            f"cannot download the encoding {name!r}: on a machine without network, set TIKTOKEN_CACHE_DIR to a folder "
            f"where another machine has stored it, or write --data.tokenizer bpe"
        ) from error
    return Tokenizer(name, arguments["pat_str"], arguments["mergeable_ranks"], arguments["special_tokens"])


def byte_level() -> Tokenizer:
    """One token a byte, and end-of-text: V = 257."""
    return Tokenizer("bytes", r"[\s\S]", {bytes([value]): value for value in range(256)}, {END_OF_TEXT: 256})


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-pair encoding (Sennrich et al. 2016, over bytes as in GPT-2) of V = `vocab_size`, end-of-text included.

    Reads `texts` up to TRAINING_BYTES. Raises ValueError where V is less than the bytes need, or more than the
    merges that `texts` give.
    """
    import rustbpe

    if vocab_size < 257:
        raise ValueError(f"vocab_size {vocab_size} is too small for bpe: 256 bytes and end-of-text need at least 257")

    def first_bytes() -> Iterator[str]:
        left = TRAINING_BYTES
        for text in texts:
            yield text
            left -= len(text.encode())
            if left <= 0:
                return

    trainer = rustbpe.Tokenizer()
    trainer.train_from_iterator(first_bytes(), vocab_size - 1, pattern=SPLIT_PATTERN)
    ranks = {bytes(token): rank for token, rank in trainer.get_mergeable_ranks()}
    if len(ranks) < vocab_size - 1:
        raise ValueError(
            f"vocab_size {vocab_size} is too large for this text, which fills only {len(ranks) + 1}: "
            f"write --data.vocab_size {len(ranks) + 1} or less"
        )
    if max(map(len, ranks)) >= 2**16:  # which `to_dict` cannot write
        raise ValueError("this text repeats something thousands of times without a break: lower --data.vocab_size")
    return Tokenizer("bpe", SPLIT_PATTERN, ranks, {END_OF_TEXT: vocab_size - 1})


def _unpacked(tokens: bytes) -> dict[bytes, int]:
    """The ids of tokens that `to_dict` has packed. Raises ValueError where the last one is cut."""
    ranks: dict[bytes, int] = {}
    start = rank = 0
    while start < len(tokens):
        length = int.from_bytes(tokens[start : start + 2], "little")
        start += 2 + length
        if length:
            ranks[tokens[start - length : start]] = rank
        rank += 1
    if start != len(tokens):
        raise ValueError("its tokens are cut short")
    return ranks


def _check_ids(ranks: dict[bytes, int], special_tokens: dict[str, int], needed: Iterable[int]) -> None:
    """Raises ValueError for ids that tiktoken accepts at first and panics over when it encodes or decodes."""
    missing = [value for value in needed if bytes([value]) not in ranks]
    if missing:
        raise ValueError(f"it has no token for the byte 0x{missing[0]:02x}")
    taken = set(ranks.values())
    for name, token in special_tokens.items():
        if not isinstance(token, int) or not 0 <= token < 2**32 or token in taken:
            raise ValueError(f"its {name} cannot have the id {token!r}")
