"""The repetitions corpus: the lengths of its rows, and the difference of its splits."""

import re

from data.corpora import repetitions
from data.corpora.repetitions import RepetitionCorpus
from data.text import SPLITS


def test_documents_repeat_rows_of_all_lengths_and_splits_share_no_long_row():
    texts, others = ([passage.text for passage in RepetitionCorpus(0.1).passages(split)] for split in SPLITS)
    # The shortest row that each text repeats.
    train, validation = ([re.fullmatch(r"(.+?)\1+", text)[1] for text in each] for each in (texts, others))
    lengths = sorted(map(len, train))
    assert len(lengths) == 21_600 and len(validation) == 2400
    assert 1 <= lengths[0] <= 2 and lengths[-1] == 30
    assert 7 <= lengths[10_800] <= 8  # the geometric mean of 2 and 30 is 7.7
    assert all(20 < len(text) <= 60 and set(text) <= set(repetitions.LETTERS) for text in texts)
    assert not {row for row in train if len(row) > 5} & set(validation)
