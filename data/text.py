"""Text of any size as passages, with bounded memory, and the interface of a corpus, which gives them.

A passage is a piece of a document that is small enough to hold and is tokenised on its own. Long documents are cut
only where the split pattern of every encoding cuts too, so that the tokens are those of the whole document.
"""

import codecs
import hashlib
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from model.mistakes import Mistake, file_errors

SPLITS = ("train", "validation")
# Bytes that are read at once. Text without a place to cut is cut anywhere beyond as many characters: for one piece
# without end, byte-pair encoding needs 50 times the memory of the text, in each thread.
BLOCK = 2**20

# Up to the last place to cut: between a word and a space before another, or after a single line end between two marks.
_TO_LAST_CUT = re.compile(r"(?s:.*)(?:(?<=[A-Za-z])(?= [A-Za-z])|(?<=\S\n)(?=[^\s/]))")

_WITHIN_CHARACTER = bytes(range(0x80, 0xC0))  # UTF-8's continuation bytes: none begins a character

Share = tuple[float, float]  # the part of a file to read: an interval in [0, 1]
WHOLE: Share = (0.0, 1.0)


class Passage(NamedTuple):
    text: str
    ends_document: bool


class Corpus(ABC):
    """Documents in two splits, and an identity that changes when they may have changed.

    Building a corpus looks at names, sizes and dates only, so that a run whose tokens are cached starts at once.

    Attributes:
        name: for people.
        identity: plain data that changes whenever the text may have changed. Tokens are cached by it: after a change of
            a corpus's code remove .cache, or change it too.
    """

    name: str
    identity: dict[str, Any]

    @abstractmethod
    def passages(self, split: str) -> Iterator[Passage]:
        """The text of "train" or "validation", always in the same order.

        Raises Mistake for what cannot be read. Every other error is one in code.
        """

    def all_passages(self) -> Iterator[Passage]:
        """The text of both splits; a document of which each has a part is whole here. Raises as `passages`."""
        for split in SPLITS:
            yield from self.passages(split)


def file_stamp(path: Path) -> list[str | int]:
    """Tells that a file is another one, or has changed, without reading it: place, bytes, modification time in ns."""
    with file_errors(path):
        stat = path.stat()
    return [str(path.absolute()), stat.st_size, stat.st_mtime_ns]


def uniform_hash(key: str) -> float:
    """A number in [0, 1) that depends on `key` alone: the same on every machine and in every corpus."""
    content = key.encode(errors="surrogatepass")  # the name of a file may be no UTF-8
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") / 2**64


def passages_of(pieces: Iterable[str]) -> Iterator[Passage]:
    """The passages of one document that is read piece by piece."""
    held = ""
    for piece in pieces:
        if cut := _last_cut(held):
            yield Passage(held[:cut], ends_document=False)
            held = held[cut:]
        held += piece
    if held:
        yield Passage(held, ends_document=True)


def _last_cut(text: str) -> int:
    """The last place where `text` can be cut without changing its tokens; 0 where there is none."""
    if found := _TO_LAST_CUT.match(text):
        return found.end()
    return len(text) - 1 if len(text) > BLOCK else 0


def row_passages(texts: Iterable[str], share: Share) -> Iterator[Passage]:
    """One document for each text that is not empty.

    A hash of its number puts each row somewhere in [0, 1), so that a stream can be split before its length is known.
    """
    low, high = share
    for number, text in enumerate(texts):
        if low <= uniform_hash(str(number)) < high:
            yield from passages_of(text[start : start + BLOCK] for start in range(0, len(text), BLOCK))


def text_passages(path: Path, share: Share) -> Iterator[Passage]:
    """A share of a file of UTF-8 text as one document; it counts bytes, and its ends move on to the next character.

    Raises Mistake where the bytes are not text, with their offset.
    """
    start, stop = (_offset(path, fraction) for fraction in share)
    return passages_of(_pieces(path, start, stop))


def _offset(path: Path, fraction: float) -> int:
    """The first byte from this fraction of a text on that begins a character."""
    if fraction == 1:
        return sys.maxsize
    with file_errors(path), path.open("rb") as file:
        start = file.seek(int(path.stat().st_size * fraction))
        rest = file.read(3)  # as many bytes as may be left of a character
    return start + len(rest) - len(rest.lstrip(_WITHIN_CHARACTER))


def _pieces(path: Path, start: int, stop: int) -> Iterator[str]:
    """The text between two byte offsets. Raises Mistake where it is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()  # an editor may have put a byte order mark at the beginning
    with file_errors(path), path.open("rb") as file:
        file.seek(start)
        for block in chain(iter(lambda: file.read(min(BLOCK, stop - file.tell())), b""), [b""]):
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:  # whose `object` ends where the block does
                place = file.tell() - len(error.object) + error.start
                raise Mistake(
                    f"{path} is not UTF-8 text at byte offset {place}: convert it to UTF-8, or leave it out of "
                    "--data.files"
                ) from error
            if text:
                yield text
