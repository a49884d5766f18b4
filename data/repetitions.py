"""Generated text in which there is nothing to learn but to look back: random letters, each row of them repeated."""

from __future__ import annotations

import math
import random
import string
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from data.corpora import Corpus
from data.readers import Passage

LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True)
class RepetitionCorpus(Corpus):
    """Documents such as "f3Kf3Kf3K...": as many random letters as are drawn from `row_lengths`, over and over.

    Lengths are drawn evenly in their logarithm. Where a row is short, looking at the letters just before almost gives
    the next one away, and what is learned there carries over to long rows; with long rows alone, a small model goes
    on guessing for thousands of steps.

    Args:
        num_documents: of both splits together.
        document_length: letters of a document, about; a row comes at least twice, whatever its length.
        row_lengths: of the shortest and the longest row.
        validation_fraction: part of the documents to validate on.
        seed: of all letters and lengths.
    """

    num_documents: int = 24_000
    document_length: int = 40
    row_lengths: tuple[int, int] = (2, 30)
    validation_fraction: float = 0.1
    seed: int = 0

    name = "repetitions"

    @property
    def identity(self) -> dict[str, Any]:
        return {"repetitions": asdict(self), "letters": LETTERS}

    def passages(self, split: str) -> Iterator[Passage]:
        num_validation = round(self.num_documents * self.validation_fraction)
        draw = random.Random(f"{split} {self.seed}")
        shortest, longest = map(math.log, self.row_lengths)
        for _ in range(num_validation if split == "validation" else self.num_documents - num_validation):
            length = round(math.exp(draw.uniform(shortest, longest)))
            row = "".join(draw.choices(LETTERS, k=length))
            yield Passage(row * max(2, self.document_length // length), ends_document=True)

    def num_bytes(self, split: str) -> int:
        share = self.validation_fraction if split == "validation" else 1 - self.validation_fraction
        return round(self.num_documents * share * self.document_length)
