"""Generated text in which only looking back helps: random letters, each row of them repeated."""

from __future__ import annotations

import math
import random
import string
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from data.corpora.corpus import Corpus
from data.readers import Passage

LETTERS = string.ascii_letters + string.digits


@dataclass
class RepetitionCorpus(Corpus):
    """Documents such as "f3Kf3Kf3K...": a row of random letters, over and over.

    The length of a row is drawn from `row_lengths`, uniformly in its logarithm. In a short row, the letters just
    before almost determine the next one, and what is learned there carries over to long rows; with long rows alone,
    a small model still guesses after thousands of steps.

    Args:
        validation_fraction: part of the documents to validate on.
        num_documents: of both splits together.
        document_length: letters of a document, about; a row comes at least twice, whatever its length.
        row_lengths: letters of the shortest and the longest row.
        seed: decides all letters and lengths.
    """

    validation_fraction: float = 0.1
    num_documents: int = 24_000
    document_length: int = 40
    row_lengths: tuple[int, int] = (2, 30)
    seed: int = 0

    name = "repetitions"

    def __post_init__(self):
        self.identity = {"repetitions": asdict(self), "letters": LETTERS}

    def passages(self, split: str) -> Iterator[Passage]:
        num_validation = round(self.num_documents * self.validation_fraction)
        draw = random.Random(f"{split} {self.seed}")
        shortest, longest = map(math.log, self.row_lengths)
        for _ in range(num_validation if split == "validation" else self.num_documents - num_validation):
            length = round(math.exp(draw.uniform(shortest, longest)))
            row = "".join(draw.choices(LETTERS, k=length))
            yield Passage(row * max(2, self.document_length // length), ends_document=True)
