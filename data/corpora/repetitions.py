"""Generated text that can be predicted only by looking back: rows of random letters, each repeated."""

import math
import random
import string
from collections.abc import Iterator

from data.text import Corpus, Passage

NUM_DOCUMENTS = 24_000  # in both splits together
LETTERS = string.ascii_letters + string.digits
SHORTEST_ROW, LONGEST_ROW = 2, 30  # letters
DOCUMENT_LENGTH = 40  # letters, approximately; longer if the row would not appear twice
SEED = 0  # determines all letters and lengths


class RepetitionCorpus(Corpus):
    """Documents such as "f3Kf3Kf3K...": a row of random letters, over and over.

    The length of a row is log-uniform. In a short row, the last few letters almost determine the next one, and what a
    model learns from short rows carries over to long ones. Trained on long rows alone, a small model still guesses
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
