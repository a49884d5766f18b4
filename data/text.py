"""Cuts text of any size into passages, in bounded memory, and defines `Corpus`, the interface of all sources of text.

A passage is a piece of a document that fits into memory and is tokenised on its own. A long document is cut where the
split pattern of every encoding cuts too, so that its tokens are the same as without cuts (but see BLOCK).
"""

import codecs
import hashlib
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from model.mistakes import Mistake, file_errors

SPLITS = ("train", "validation")
# Bytes to read at once. Text without a place to cut (see _TO_LAST_CUT) is cut anywhere after this many characters:
# byte-pair encoding takes 50 times the memory of a piece that it cannot split, in each thread.
BLOCK = 2**20

# Matches text up to the last place where it can be cut: before a space that stands between two letters, or after a
# line break between two visible characters, unless a slash follows, which some encodings join to the line break.
_TO_LAST_CUT = re.compile(r"(?s:.*)(?:(?<=[A-Za-z])(?= [A-Za-z])|(?<=\S\n)(?=[^\s/]))")

_WITHIN_CHARACTER = bytes(range(0x80, 0xC0))  # UTF-8's continuation bytes: a character never begins with one

Share = tuple[float, float]  # the part of a file to read, as an interval in [0, 1]
WHOLE: Share = (0.0, 1.0)


class Passage(NamedTuple):
    text: str
    ends_document: bool


class Corpus(ABC):
    """Documents in two splits, training and validation.

    The constructor looks only at names, sizes and dates of files, so that a run whose tokens are cached starts at once.

    Attributes:
        name: appears in messages and in the name of the cache folder.
        identity: plain data, part of the key of the token cache. It must change whenever the text may have changed.
            After you change the code of a corpus, change its identity too, or delete .cache.
    """

    name: str
    identity: dict[str, Any]

    @abstractmethod
    def passages(self, split: str) -> Iterator[Passage]:
        """Yields the text of the split "train" or "validation", always in the same order.

        Raises Mistake if the text cannot be read. Any other exception is a bug.
        """

    def all_passages(self) -> Iterator[Passage]:
        """Yields the text of both splits. A document that the splits share comes whole. Raises as `passages` does."""
        for split in SPLITS:
            yield from self.passages(split)


def file_stamp(path: Path) -> list[str | int]:
    """Returns path, size in bytes and modification time in ns, to notice a changed file without reading it."""
    with file_errors(path):
        stat = path.stat()
    return [str(path.absolute()), stat.st_size, stat.st_mtime_ns]


def uniform_hash(key: str) -> float:
    """Returns a number in [0, 1) that depends on `key` alone: it is the same on every machine and in every corpus."""
    content = key.encode(errors="surrogatepass")  # a file name may not be valid UTF-8
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") / 2**64


def passages_of(pieces: Iterable[str]) -> Iterator[Passage]:
    """Yields the passages of one document, given as consecutive pieces."""
    text = ""
    for piece in pieces:
        if cut := _last_cut(text):
            yield Passage(text[:cut], ends_document=False)
            text = text[cut:]
        text += piece
    if text:
        yield Passage(text, ends_document=True)


def _last_cut(text: str) -> int:
    """Returns the last place where `text` can be cut without changing its tokens, or 0 if there is none.

    If `text` is longer than BLOCK and has no such place, it is cut before its last character.
    """
    if match := _TO_LAST_CUT.match(text):
        return match.end()
    return len(text) - 1 if len(text) > BLOCK else 0


def row_passages(texts: Iterable[str], share: Share) -> Iterator[Passage]:
    """Yields the passages of the texts that belong to `share`. Each text is a document; empty texts are left out.

    A hash of its row number gives each text a place in [0, 1), so that a stream can be split before its end is known.
    """
    low, high = share
    for number, text in enumerate(texts):
        if low <= uniform_hash(str(number)) < high:
            yield from passages_of(text[start : start + BLOCK] for start in range(0, len(text), BLOCK))


def text_passages(path: Path, share: Share) -> Iterator[Passage]:
    """Yields the passages of a share of a UTF-8 text file, as one document.

    The share is measured in bytes. Each end of it moves forward to the next byte that begins a character.

    Raises Mistake, with the byte offset, if the text is not UTF-8.
    """
    start, stop = (_offset(path, fraction) for fraction in share)
    return passages_of(_pieces(path, start, stop))


def _offset(path: Path, fraction: float) -> int:
    """Returns where the first character begins at or after this fraction of the file, as a byte offset."""
    if fraction == 1:
        return sys.maxsize
    with file_errors(path), path.open("rb") as file:
        start = file.seek(int(path.stat().st_size * fraction))
        rest = file.read(3)  # a character has at most 3 bytes after its first
    return start + len(rest) - len(rest.lstrip(_WITHIN_CHARACTER))


def _pieces(path: Path, start: int, stop: int) -> Iterator[str]:
    """Yields the text between two byte offsets. Raises Mistake if it is not UTF-8."""
    with file_errors(path), path.open("rb") as file:
        file.seek(start)
        blocks = iter(lambda: file.read(min(BLOCK, stop - file.tell())), b"")
        try:
            yield from codecs.iterdecode(blocks, "utf-8-sig")  # sig: skips the byte order mark that some editors write
        except UnicodeDecodeError as error:  # error.object ends where the block ends
            place = file.tell() - len(error.object) + error.start
            raise Mistake(
                f"{path} is not UTF-8 text at byte offset {place}: convert it to UTF-8, or remove it from --data.files"
            ) from error
