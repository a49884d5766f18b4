"""The repetitions corpus: every row is repeated, and splits share no long row."""

import re

import pytest

from data.corpora import repetitions
from data.corpora.repetitions import RepetitionCorpus

CORPUS = RepetitionCorpus(0.1)


@pytest.fixture(scope="module")
def documents() -> dict[str, list[str]]:
    return {split: [passage.text for passage in CORPUS.passages(split)] for split in ("train", "validation")}


def rows(texts: list[str]) -> list[str]:
    """The shortest text that each is a repetition of."""
    return [re.fullmatch(r"(.+?)\1+", text)[1] for text in texts]


def test_documents_repeat_rows_of_all_lengths_and_splits_share_no_long_row(documents):
    texts, train, validation = documents["train"], rows(documents["train"]), rows(documents["validation"])
    lengths = sorted(map(len, train))
    assert len(lengths) == 21_600 and len(validation) == 2400
    assert 1 <= lengths[0] <= 2 and lengths[-1] == 30
    assert 7 <= lengths[10_800] <= 8  # the geometric mean of 2 and 30 is 7.7
    assert all(20 < len(text) <= 60 and set(text) <= set(repetitions.LETTERS) for text in texts)
    assert not {row for row in train if len(row) > 5} & set(validation)


def test_another_seed_gives_another_text_and_identity(documents, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(repetitions, "SEED", 1)
    other = RepetitionCorpus(0.1)
    assert next(other.passages("train")).text != documents["train"][0] and other.identity != CORPUS.identity
