"""Reading text of any size as passages, with bounded memory.

A passage is a piece of a document that is small enough to hold and is tokenised on its own. Long documents are cut
only where the split pattern of every encoding cuts too, so that the tokens are those of the whole document.
"""

import codecs
import hashlib
import mmap
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from model.checks import Mistake, reading

BLOCK_BYTES = 2**20
# Text without a place to cut is cut anywhere beyond this: for one piece without end, byte-pair encoding needs 50 times
# the memory of the text, in each thread.
MAX_PASSAGE_CHARS = 2**20

# Places to cut: between a word and a space before another, or after a single line end between two marks.
_CUTS = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])|(?<=\S\n)(?=[^\s/])")

_BLANK_LINES = re.compile(r"\r?\n(?:[ \t]*\r?\n)+")
_FIRST_BLANK_LINES = re.compile(r"\A(?:[ \t]*\r?\n)+")
_TO_NEXT_BLOCK = re.compile(rb"\n[ \t]*\r?\n(?:\s*\n)?(?=.*\S)")
_TO_NEXT_CHARACTER = re.compile(rb"(?=[^\x80-\xbf])|\Z")

Share = tuple[float, float]  # the part of a file to read: an interval in [0, 1]
WHOLE: Share = (0.0, 1.0)


class Passage(NamedTuple):
    text: str
    ends_document: bool


def passages_of(pieces: Iterable[str], blocks: bool = False) -> Iterator[Passage]:
    """The passages of a text that is read piece by piece; of one document, or of one per block between blank lines."""
    held = ""
    for piece in pieces:
        if (not blocks or len(held) > MAX_PASSAGE_CHARS) and (cut := _last_cut(held)):
            yield Passage(held[:cut], ends_document=False)
            held = held[cut:]
        held += piece
        if blocks:
            *complete, held = _BLANK_LINES.split(held)
            yield from (Passage(text, ends_document=True) for block in complete if (text := _stripped(block)))
    if text := _stripped(held) if blocks else held:
        yield Passage(text, ends_document=True)


def _stripped(block: str) -> str:
    """`block` without the blank lines around it; its first line keeps its indentation."""
    return _FIRST_BLANK_LINES.sub("", block).rstrip("\r\n") if block.strip() else ""


def _last_cut(text: str) -> int:
    """The last place where `text` can be cut without changing its tokens; 0 where there is none."""
    for searched in (2**12, len(text)):  # from the end, because a block has thousands of places
        if cut := max((found.start() for found in _CUTS.finditer(text, max(len(text) - searched, 0))), default=0):
            return cut
    return len(text) - 1 if len(text) > MAX_PASSAGE_CHARS else 0


def row_passages(texts: Iterable[str], share: Share) -> Iterator[Passage]:
    """One document for each text that is not empty.

    A hash of its number puts each row somewhere in [0, 1), so that a stream can be split before its length is known.
    """
    low, high = share
    for number, text in enumerate(texts):
        if low <= uniform_hash(str(number)) < high:
            yield from passages_of(text[start : start + BLOCK_BYTES] for start in range(0, len(text), BLOCK_BYTES))


def text_passages(path: Path, blocks: bool = False, share: Share = WHOLE) -> Iterator[Passage]:
    """UTF-8 text; one document, or one per block.

    The share counts bytes; both its ends move forward to the next character or, with `blocks`, to the next block.

    Raises Mistake where the bytes are not text, with their offset.
    """
    start, stop = (_offset(path, fraction, blocks) for fraction in share)
    yield from passages_of(text_pieces(path, start, stop), blocks)


def _offset(path: Path, fraction: float, blocks: bool) -> int:
    """The first byte from this fraction of a text on that begins a character or, with `blocks`, a block."""
    if fraction in (0.0, 1.0):
        return sys.maxsize if fraction else 0
    with reading(path), path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        found = (_TO_NEXT_BLOCK if blocks else _TO_NEXT_CHARACTER).search(text, int(len(text) * fraction))
    if found is None:
        raise Mistake(
            f"{path} has no blank line with text after it in its last {1 - fraction:.0%}, where validation would "
            "begin: write --data.documents file, or a larger --data.validation_fraction"
        )
    return found.end()


def text_pieces(path: Path, start: int = 0, stop: int = sys.maxsize) -> Iterator[str]:
    """The text between two byte offsets. Raises Mistake where it is not UTF-8 or holds a zero byte."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with reading(path), path.open("rb") as file:
        file.seek(start)
        for block in chain(iter(lambda: file.read(min(BLOCK_BYTES, stop - file.tell())), b""), [b""]):
            wrong = file.tell() - len(block) + block.index(b"\0") if b"\0" in block else None
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:  # whose `object` ends where the block does
                wrong = file.tell() - len(error.object) + error.start
            if wrong is not None:
                raise Mistake(
                    f"{path} is not UTF-8 text at byte offset {wrong}: convert it to UTF-8, or leave it out of "
                    "--data.files"
                )
            if file.tell() == len(block):  # the beginning of the file, where an editor may have put a byte order mark
                text = text.removeprefix("\ufeff")
            if text:
                yield text


def uniform_hash(key: str) -> float:
    """A number in [0, 1) that depends on `key` alone: the same on every machine and in every corpus."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") / 2**64
