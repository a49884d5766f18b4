"""Tokenizers: text <-> token ids, always through a `tiktoken.Encoding`.

Three kinds: a published encoding by name ("gpt2", "o200k_base", ...), "bytes" (one token a byte), and "bpe", a
byte-pair encoding trained on the training split. V is the vocabulary size; ids run from 0 to V - 1.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import tiktoken
import tiktoken.registry

from model.mistakes import Missing, Mistake, file_errors, parsing

END_OF_TEXT = "<|endoftext|>"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"  # as Hugging Face's libraries name them

# GPT-2's pattern as tiktoken writes it, and the `Tokenizer.fingerprint` of its published encoding.
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
GPT2_FINGERPRINT = "648dedb86513872cc826279d044c6ddfd43cd7fd4430662e21e2a73c0e7c55d8"
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

# Merges change little with more text than this; the limit bounds the memory for the table of distinct pieces.
TRAINING_BYTES = 128 * 2**20


class Tokenizer:
    """A `tiktoken.Encoding` with an end-of-text token, which can be stored as plain data.

    A special token's name inside a text ("<|endoftext|>") is encoded as ordinary text, never as the special token.

    Args:
        pattern: regular expression that splits text into pieces; tokens never cross a piece.
        ranks: id of each token's bytes, in order of the merges.
        special_tokens: id of each special token.

    Raises ValueError where a byte has no token or two have one id; whatever tiktoken raises for a wrong pattern.
    """

    def __init__(self, name: str, pattern: str, ranks: dict[bytes, int], special_tokens: dict[str, int]):
        self.name, self.pattern, self.ranks, self.special_tokens = name, pattern, ranks, special_tokens
        # tiktoken panics over these, which is no Exception.
        for value in range(256):
            if bytes([value]) not in ranks:
                raise ValueError(f"it has no token for the byte 0x{value:02x}")
        ids = [*ranks.values(), *special_tokens.values()]
        if len(set(ids)) < len(ids):
            raise ValueError("two of its tokens have one id")
        self.encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special_tokens)
        self.vocab_size = self.encoding.n_vocab
        self.end_of_text = special_tokens[END_OF_TEXT]
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 2**16 else np.uint32)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without end-of-text. Half a pair of surrogates becomes U+FFFD."""
        return self.encoding.encode_ordinary(text)

    def encode_array(self, text: str) -> np.ndarray:
        """`encode` as a uint32 array (N,), without a Python integer per token, for text that is UTF-8."""
        return self.encoding.encode_to_numpy(text, disallowed_special=())

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; bytes that are not UTF-8 (a character cut in two) and unused ids become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token: int, unused: str = "\N{REPLACEMENT CHARACTER}") -> bytes:
        """UTF-8 bytes of one token; of `unused` for an unused id, which there is where a vocabulary was rounded up."""
        try:
            return self.encoding.decode_single_token_bytes(token)
        except KeyError:
            return unused.encode()

    def label(self, token: int) -> str:
        """One token for people to read; part of a character is escaped, such as \\xe2, and an unused id is a number."""
        return self.token_bytes(token, unused=f"<{token}>").decode("utf-8", errors="backslashreplace")

    def num_bytes(self, tokens: np.ndarray) -> int:
        """UTF-8 bytes of the text of `tokens` (N,), without end-of-text."""
        return int(self.lengths[tokens].sum())

    @cached_property
    def lengths(self) -> np.ndarray:
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

    def huggingface_files(self, max_length: int | None = None) -> dict[str, dict]:
        """Files with which Hugging Face's AutoTokenizer encodes every text as this tokenizer does: name -> content.

        As here, a special token's name inside a text is ordinary text; split_special_tokens=False changes that.

        Args:
            max_length: the most tokens that the model reads at once, for programs that cut a text to fit.
        """
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        # In the syntax of Hugging Face's library {1,3}+ would repeat, not be possessive.
        their_pattern = re.sub(r"(\\p\{\w+\}\{[\d,]+\})\+", r"(?>\1)", self.pattern)
        split = {"type": "Split", "pattern": {"Regex": their_pattern}, "behavior": "Isolated", "invert": False}
        bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        content = {
            "version": "1.0",
            "added_tokens": [
                {"id": token, "content": name, "special": True, **plain} for name, token in self.special_tokens.items()
            ],
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytewise]},
            "decoder": bytewise,
            "model": {
                "type": "BPE",
                "ignore_merges": True,  # a piece that is a token is taken as it is, as in tiktoken
                "vocab": {bytes_to_unicode(token): rank for token, rank in self.ranks.items()},
                # In place of ranks all pairs of tokens that make a token, in the order in which tiktoken merges them.
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
        }
        if max_length is not None:
            config["model_max_length"] = max_length
        return {TOKENIZER: content, TOKENIZER_CONFIG: config}

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """The tokenizer in a folder of Hugging Face's: GPT-2's, or one that this project has exported.

        Raises Missing where there is none, Mistake for another: its file may ask for more than a `Tokenizer` does.
        """
        path = folder / TOKENIZER
        if not path.is_file():
            raise Missing(
                f"{folder} has no {TOKENIZER}: make a checkpoint by scripts/convert_huggingface.py import, and name a "
                "tokenizer by its --tokenizer"
            )
        foreign = (
            "neither GPT-2's tokenizer nor one that this project has exported; if it encodes as a published encoding "
            "does, remove the file and name that encoding"
        )
        with file_errors(path):
            content = path.read_bytes()
        with parsing(path, f", or {foreign}"):
            content = json.loads(content)
            special = {token["content"]: token["id"] for token in content["added_tokens"]}
            vocab = content["model"]["vocab"].items()
            ranks = {token.translate(_READ).encode("latin-1"): rank for token, rank in vocab if token not in special}
            steps = content["pre_tokenizer"].get("pretokenizers")
            pattern = steps[0]["pattern"]["Regex"] if steps else GPT2_PATTERN
            tokenizer = cls("bpe" if content["model"]["merges"] else "bytes", pattern, ranks, special)
            counts = _what_counts(content)
        if tokenizer.fingerprint == GPT2_FINGERPRINT:
            tokenizer.name = "gpt2"
        elif _what_counts(tokenizer.huggingface_files()[TOKENIZER]) != counts:
            raise Mistake(f"{path} is {foreign}")
        return tokenizer

    @classmethod
    def from_dict(cls, state: dict) -> Tokenizer:
        """Inverse of `to_dict`. Raises Mistake where `state` is not what `to_dict` returns."""
        with parsing("the stored tokenizer"):
            ranks: dict[bytes, int] = {}
            tokens, start, rank = state["tokens"], 0, 0
            while start < len(tokens):
                length = int.from_bytes(tokens[start : start + 2], "little")
                start += 2 + length
                if length:
                    ranks[tokens[start - length : start]] = rank
                rank += 1
            if start != len(tokens):
                raise ValueError("its tokens are cut short")
            return cls(state["name"], state["pattern"], ranks, dict(state["special_tokens"]))


def check_name(name: str) -> None:
    """Raises Mistake for a name that is neither one of this project's nor a published encoding."""
    known = ["bpe", "bytes", *tiktoken.list_encoding_names()]
    if name not in known:
        raise Mistake(f"unknown tokenizer {name!r}: write one of {', '.join(known)}, or a path with a / of a model")


def published(name: str) -> Tokenizer:
    """The tokenizer "bytes", or a published encoding, from TIKTOKEN_CACHE_DIR or else downloaded once.

    Raises Mistake for an unknown name, or where the download fails.
    """
    if name == "bytes":
        return byte_level()
    check_name(name)
    try:
        arguments = tiktoken.registry.ENCODING_CONSTRUCTORS[name]()
    except OSError as error:  # every exception of `requests` is one
        raise Mistake(
            f"cannot download the encoding {name!r}: on a machine without network, set TIKTOKEN_CACHE_DIR to a folder "
            f"where another machine has stored it, or write --data.tokenizer bpe"
        ) from error
    return Tokenizer(name, arguments["pat_str"], arguments["mergeable_ranks"], arguments["special_tokens"])


def byte_level() -> Tokenizer:
    """One token a byte, and end-of-text: V = 257."""
    return Tokenizer("bytes", r"[\s\S]", {bytes([value]): value for value in range(256)}, {END_OF_TEXT: 256})


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-pair encoding (Sennrich et al. 2016, over bytes as in GPT-2), learned from the first bytes of `texts`.

    It has V = `vocab_size` tokens, at least 257: the bytes, end-of-text, and what is learned. TRAINING_BYTES are read.
    Raises Mistake if the texts are too short to give V tokens.
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
            f"vocab_size {vocab_size} is too large for this text, which fills only {len(ranks) + 1}: "
            f"write --data.vocab_size {len(ranks) + 1} or less"
        )
    return Tokenizer("bpe", SPLIT_PATTERN, ranks, {END_OF_TEXT: vocab_size - 1})


def _what_counts(content: dict) -> dict:
    """A tokenizer.json without what changes no text's tokens.

    Hugging Face's libraries write defaults out, how they last cut and padded a batch, and a template for what is added
    around a text even if it is nothing.
    """
    counts = {name: value for name, value in content.items() if value and name not in ("truncation", "padding")}
    template = counts.get("post_processor", {})
    if template.get("type") == "TemplateProcessing" and [[*piece] for piece in template["single"]] == [["Sequence"]]:
        del counts["post_processor"]
    counts["model"] = {name: value for name, value in content["model"].items() if value}
    return counts


# Of the bytes as Latin-1, GPT-2 writes those that cannot be printed as the characters from U+0100 on.
_WRITTEN = {byte: 256 + number for number, byte in enumerate([*range(33), *range(127, 161), 173])}
_READ = {character: byte for byte, character in _WRITTEN.items()}


def bytes_to_unicode(token: bytes) -> str:
    """A token as vocabularies of Hugging Face's write it."""
    return token.decode("latin-1").translate(_WRITTEN)
