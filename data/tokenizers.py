"""Tokenizers: text <-> token ids, always through a `tiktoken.Encoding`.

There are three kinds: a published encoding by its name ("gpt2", "o200k_base", ...), "bytes" (one token per byte), and
"bpe", a byte-pair encoding trained on the training split. V is the vocabulary size; ids run from 0 to V - 1.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
import tiktoken.registry

from model.mistakes import Missing, Mistake, parsing

END_OF_TEXT = "<|endoftext|>"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"  # file names that Hugging Face's libraries use
STORED = "glassgpt"  # the entry of TOKENIZER_CONFIG, kept by Hugging Face's libraries, from which `from_folder` reads

# GPT-2's pattern as tiktoken writes it, and the `Tokenizer.fingerprint` of the published encoding "gpt2".
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
GPT2_FINGERPRINT = "648dedb86513872cc826279d044c6ddfd43cd7fd4430662e21e2a73c0e7c55d8"
# As in GPT-4's pattern, a word keeps the space or punctuation mark before it. Unlike in GPT-4's, a line break and the
# indentation after it are one piece: in code, most line breaks are followed by some indentation.
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

# The tokenizer "bytes": its pattern, which makes a piece of each character, and the ids of its tokens.
BYTES_PATTERN = r"[\s\S]"
BYTES = {bytes([value]): value for value in range(256)}

# More text than this hardly changes the merges; the limit bounds the memory of the table of distinct pieces.
TRAINING_BYTES = 128 * 2**20


class Tokenizer:
    """A `tiktoken.Encoding` that has an end-of-text token and can be stored as plain data.

    If a text contains the name of a special token ("<|endoftext|>"), the name is encoded as ordinary text.

    Args:
        pattern: regular expression that splits text into pieces; a token never spans two pieces.
        ranks: id of each token, by its bytes; a lower id is merged earlier.
        special_tokens: id of each special token, by its name.

    Raises ValueError if a byte has no token or two tokens have the same id. Errors of tiktoken, for example about a
    wrong pattern, pass through.
    """

    def __init__(self, name: str, pattern: str, ranks: dict[bytes, int], special_tokens: dict[str, int]):
        self.name, self.pattern, self.ranks, self.special_tokens = name, pattern, ranks, special_tokens
        # Either of these two faults would make tiktoken panic, and its panic is not an Exception.
        if not BYTES.keys() <= ranks.keys():
            raise ValueError("some byte has no token")
        ids = [*ranks.values(), *special_tokens.values()]
        if len(set(ids)) < len(ids):
            raise ValueError("two of its tokens have the same id")
        self.encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special_tokens)
        self.vocab_size = self.encoding.n_vocab
        self.end_of_text = special_tokens[END_OF_TEXT]
        self.dtype = "uint16" if self.vocab_size <= 2**16 else "uint32"

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of `text`, without end-of-text. A lone surrogate becomes U+FFFD."""
        return self.encoding.encode_ordinary(text)

    def encode_array(self, text: str) -> np.ndarray:
        """Like `encode`, but returns an array (N,), without an int for each token. Raises on a lone surrogate."""
        if self.pattern == BYTES_PATTERN and self.ranks == BYTES:
            return np.frombuffer(text.encode(), np.uint8)  # the ids of tiktoken, in a hundredth of its time
        return self.encoding.encode_to_numpy(text, disallowed_special=())

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids`; invalid UTF-8 (part of a character) and unused ids become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token: int, unused: str = "\N{REPLACEMENT CHARACTER}") -> bytes:
        """Returns the UTF-8 bytes of a token; for an unused id, as in a rounded-up vocabulary, those of `unused`."""
        try:
            return self.encoding.decode_single_token_bytes(token)
        except KeyError:
            return unused.encode()

    def label(self, token: int) -> str:
        """Returns a token for display. Part of a character is escaped, such as \\xe2, and an unused id becomes <id>."""
        return self.token_bytes(token, unused=f"<{token}>").decode("utf-8", errors="backslashreplace")

    def num_bytes(self, tokens: np.ndarray) -> int:
        """Returns the length of the text of `tokens` (N,), in UTF-8 bytes. An end-of-text counts 0."""
        return int(self.lengths[tokens].sum())

    @cached_property
    def lengths(self) -> np.ndarray:
        """Length of each token (V,) in UTF-8 bytes; 0 for special tokens and unused ids."""
        lengths = np.zeros(self.vocab_size, dtype=np.int64)
        lengths[list(self.ranks.values())] = [len(token) for token in self.ranks]
        return lengths

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of pattern, tokens and special tokens. Tokenizers with equal digests encode every text alike."""
        digest = hashlib.sha256()
        for part in (self.pattern, json.dumps(self.special_tokens, sort_keys=True)):
            digest.update(part.encode() + b"\0")
        for token, rank in sorted(self.ranks.items(), key=lambda item: item[1]):
            digest.update(rank.to_bytes(4, "little") + len(token).to_bytes(4, "little") + token)
        return digest.hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Returns all that `from_dict` needs to build the tokenizer again, offline, as plain data that JSON can hold.

        "tokens" has a line for each id, which holds its bytes in base64; the line of an unused id is empty. A hundred
        thousand separate objects would make every checkpoint slow to read.
        """
        by_id = {rank: token for token, rank in self.ranks.items()}
        tokens = (by_id.get(rank, b"") for rank in range(max(by_id) + 1))
        return {
            "name": self.name,
            "pattern": self.pattern,
            "tokens": "\n".join(base64.b64encode(token).decode() for token in tokens),
            "special_tokens": dict(self.special_tokens),
        }

    def huggingface_files(self, max_length: int | None = None) -> dict[str, dict]:
        """Returns files, as name -> content, with which Hugging Face's AutoTokenizer encodes any text like this one.

        It, too, encodes the name of a special token inside a text as ordinary text, unless split_special_tokens=False.

        Args:
            max_length: number of tokens that the model can read at once; other programs truncate texts to this length.
                None: no limit.
        """
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        # In Hugging Face's syntax, {1,3}+ is repeated instead of possessive. An atomic group, (?>...), is equivalent.
        their_pattern = re.sub(r"(\\p\{\w+\}\{[\d,]+\})\+", r"(?>\1)", self.pattern)
        split = {"type": "Split", "pattern": {"Regex": their_pattern}, "behavior": "Isolated", "invert": False}
        bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        content = {
            "version": "1.0",
            "added_tokens": [
                {"id": token, "content": name, "special": True, **flags} for name, token in self.special_tokens.items()
            ],
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytewise]},
            "decoder": bytewise,
            "model": {
                "type": "BPE",
                "ignore_merges": True,  # as in tiktoken, a piece that is itself a token needs no merges
                "vocab": {bytes_to_unicode(token): rank for token, rank in self.ranks.items()},
                # Instead of ranks: every pair of tokens that forms a token, in the order in which tiktoken merges.
                "merges": [
                    [bytes_to_unicode(token[:cut]), bytes_to_unicode(token[cut:])]
                    for token in sorted(self.ranks, key=self.ranks.__getitem__)
                    for cut in range(1, len(token))
                    if token[:cut] in self.ranks and token[cut:] in self.ranks
                ],
            },
        }
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END_OF_TEXT,
            "eos_token": END_OF_TEXT,
            "split_special_tokens": True,
            "clean_up_tokenization_spaces": False,
            "model_max_length": max_length,
            STORED: self.to_dict(),
        }
        return {TOKENIZER: content, TOKENIZER_CONFIG: config}

    @classmethod
    def from_folder(cls, folder: Path, otherwise: str | None = None) -> Tokenizer:
        """Reads the tokenizer in a Hugging Face folder: GPT-2's, or one that this project has exported.

        If the folder has none, returns the published encoding `otherwise`.

        Raises Missing if there is none, and Mistake for any other tokenizer, since a `Tokenizer` cannot do everything
        that a tokenizer.json may ask for, and if tokens have been added to an exported one.
        """
        path = folder / TOKENIZER
        if not path.is_file():
            if otherwise is not None:
                return published(otherwise)
            raise Missing(
                f"{folder} has no {TOKENIZER}: convert the folder to a checkpoint with scripts/convert_huggingface.py "
                "import, and choose the tokenizer with its --tokenizer; train.py also takes --data.tokenizer gpt2"
            )
        foreign = (
            "neither GPT-2's tokenizer nor one that this project has exported; if it encodes text like a published "
            "encoding, remove the file and name that encoding"
        )
        config, stored = folder / TOKENIZER_CONFIG, None
        with parsing(path, f", or {foreign}"):
            content = json.loads(path.read_bytes())
            special = {token["content"]: token["id"] for token in content["added_tokens"]}
            vocab = content["model"]["vocab"].items()
            ranks = {token.translate(_TO_BYTE).encode("latin-1"): rank for token, rank in vocab if token not in special}
            if config.is_file():
                stored = json.loads(config.read_bytes()).get(STORED)
            tokenizer = cls.from_dict(stored) if stored else cls("gpt2", GPT2_PATTERN, ranks, special)
        is_known = stored or tokenizer.fingerprint == GPT2_FINGERPRINT
        if not is_known or (tokenizer.ranks, tokenizer.special_tokens) != (ranks, special):
            raise Mistake(f"{path} is {foreign}")
        return tokenizer

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Tokenizer:
        """Builds the tokenizer that `to_dict` stored. Raises Mistake if `state` does not come from there."""
        with parsing("the stored tokenizer"):
            lines = enumerate(state["tokens"].split("\n"))
            ranks = {base64.b64decode(line): rank for rank, line in lines if line}
            return cls(state["name"], state["pattern"], ranks, dict(state["special_tokens"]))


def check_name(name: str) -> None:
    """Raises Mistake if `published` knows no tokenizer of this name."""
    names = ["bytes", *tiktoken.list_encoding_names()]
    if name not in names:
        raise Mistake(
            f"there is no published tokenizer {name!r}: write one of {', '.join(names)}; train.py also takes bpe, and "
            "the path of a model, which must have a /"
        )


def published(name: str) -> Tokenizer:
    """Returns the tokenizer "bytes" or a published encoding, from tiktoken's cache (TIKTOKEN_CACHE_DIR) or downloaded.

    Raises Mistake if the name is unknown or the download fails.
    """
    check_name(name)
    if name == "bytes":
        return byte_level()
    try:
        arguments = tiktoken.registry.ENCODING_CONSTRUCTORS[name]()
    except (OSError, ValueError) as error:  # ValueError: what came is not the encoding, but perhaps a login page
        raise Mistake(
            f"cannot download the encoding {name!r} ({str(error).partition('. ')[0]}): on a machine without network, "
            "set TIKTOKEN_CACHE_DIR to a folder in which another machine has stored it, or set --data.tokenizer bpe"
        ) from error
    return Tokenizer(name, arguments["pat_str"], arguments["mergeable_ranks"], arguments["special_tokens"])


def byte_level() -> Tokenizer:
    """Returns the tokenizer with one token per byte, and with end-of-text: V = 257."""
    return Tokenizer("bytes", BYTES_PATTERN, BYTES, {END_OF_TEXT: 256})


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learns a byte-pair encoding (Sennrich et al. 2016, over bytes as in GPT-2) from `texts`.

    Stops reading after TRAINING_BYTES. The `vocab_size` tokens are the 256 bytes, end-of-text, and the learned ones.
    Raises Mistake if the texts are too short to learn so many.
    """
    import rustbpe

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
        raise Mistake(
            f"vocab_size {vocab_size} is too large for this text, which is enough for {len(ranks) + 1} tokens only: "
            f"write --data.vocab_size {len(ranks) + 1} or less, or choose a longer text"
        )
    return Tokenizer("bpe", SPLIT_PATTERN, ranks, {END_OF_TEXT: vocab_size - 1})


# GPT-2 writes each byte as its Latin-1 character. If this cannot be printed, it writes a character from U+0100 on.
_FROM_BYTE = {byte: 256 + number for number, byte in enumerate([*range(33), *range(127, 161), 173])}
_TO_BYTE = {character: byte for byte, character in _FROM_BYTE.items()}


def bytes_to_unicode(token: bytes) -> str:
    """Returns a token as Hugging Face's vocabularies write it."""
    return token.decode("latin-1").translate(_FROM_BYTE)
