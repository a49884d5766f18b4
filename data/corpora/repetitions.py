"""Generated text in which only looking back helps: random letters, each row of them repeated."""

import math
import random
import string
from collections.abc import Iterator

from data.corpora.corpus import Corpus
from data.readers import Passage

NUM_DOCUMENTS = 24_000  # of both splits together
SHORTEST_ROW = 2  # letters
SEED = 0  # of all letters and lengths


class RepetitionCorpus(Corpus):
    """Documents such as "f3Kf3Kf3K...": a row of random letters, over and over.

    The length of a row is drawn uniformly in its logarithm. In a short row, the letters just before almost determine
    the next one, and what is learned there carries over to long rows; with long rows alone, a small model still guesses
    after thousands of steps.
    """

    name = "repetitions"
    letters = string.ascii_letters + string.digits
    longest_row = 30  # letters
    document_length = 40  # approximate, in letters; a row is always repeated at least once
    are_distinct = False  # the letters of a row

    def __init__(self, validation_fraction: float):
        self.num_validation = round(NUM_DOCUMENTS * validation_fraction)
        lengths = [self.document_length, SHORTEST_ROW, self.longest_row]
        self.identity = {self.name: [NUM_DOCUMENTS, self.num_validation, *lengths, SEED, self.letters]}

    def passages(self, split: str) -> Iterator[Passage]:
        draw = random.Random(f"{split} {SEED}")
        shortest, longest = math.log(SHORTEST_ROW), math.log(self.longest_row)
        for _ in range(self.num_validation if split == "validation" else NUM_DOCUMENTS - self.num_validation):
            length = round(math.exp(draw.uniform(shortest, longest)))
            row = draw.sample(self.letters, length) if self.are_distinct else draw.choices(self.letters, k=length)
            yield Passage("".join(row) * max(2, self.document_length // length), ends_document=True)


class WordCorpus(RepetitionCorpus):
    """As above, with rows of lowercase letters that are all different, as in "blacksmithblacksmith...".

    One letter tells the next then, so that the simplest circuit that copies does it without an error.
    """

    name = "words"
    letters = string.ascii_lowercase
    longest_row = 14
    document_length = 200  # most windows of a training lie within one document
    are_distinct = True
