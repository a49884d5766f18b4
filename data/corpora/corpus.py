"""The interface of a corpus: documents in two splits, and an identity that changes when they may have changed."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data.readers import Passage

SPLITS = ("train", "validation")


class Corpus(ABC):
    """Documents in two splits.

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
    stat = path.stat()
    return [str(path.absolute()), stat.st_size, stat.st_mtime_ns]
