"""Generated text in which only looking back helps: random letters, each row of them repeated."""

import math
import random
import string
from collections.abc import Iterator

from data.text import Corpus, Passage

NUM_DOCUMENTS = 24_000  # of both splits together
LETTERS = string.ascii_letters + string.digits
SHORTEST_ROW, LONGEST_ROW = 2, 30  # letters
DOCUMENT_LENGTH = 40  # approximate, in letters; a row is always repeated at least once
SEED = 0  # of all letters and lengths


class RepetitionCorpus(Corpus):
    """Documents such as "f3Kf3Kf3K...": a row of random letters, over and over.

    The length of a row is drawn uniformly in its logarithm. In a short row, the letters just before almost determine
    the next one, and what is learned there carries over to long rows; with long rows alone, a small model still guesses
    after thousands of steps.
    """

    name = "repetitions"

    def __init__(self, validation_fraction: float):
        self.num_validation = round(NUM_DOCUMENTS * validation_fraction)
        lengths = [DOCUMENT_LENGTH, SHORTEST_ROW, LONGEST_ROW]
        self.identity = {self.name: [NUM_DOCUMENTS, self.num_validation, *lengths, SEED, LETTERS]}

    def passages(self, split: str) -> Iterator[Passage]:
        draw = random.Random(f"{split} {SEED}")
        for _ in range(self.num_validation if split == "validation" else NUM_DOCUMENTS - self.num_validation):
            length = round(math.exp(draw.uniform(math.log(SHORTEST_ROW), math.log(LONGEST_ROW))))
            row = "".join(draw.choices(LETTERS, k=length))
            yield Passage(row * max(2, DOCUMENT_LENGTH // length), ends_document=True)
