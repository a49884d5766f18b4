"""The repetitions corpus: every row is repeated, splits share no long row, and each call generates the same text."""

import re
from itertools import islice

import pytest

from data.corpora import repetitions
from data.corpora.repetitions import RepetitionCorpus
from data.datamodule import TextDataModule

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


def test_the_text_is_the_same_every_time(documents, monkeypatch: pytest.MonkeyPatch):
    def first_texts(corpus: RepetitionCorpus) -> list[str]:
        return [passage.text for passage in islice(corpus.passages("train"), 1000)]

    assert first_texts(RepetitionCorpus(0.1)) == documents["train"][:1000]
    monkeypatch.setattr(repetitions, "SEED", 1)
    other = RepetitionCorpus(0.1)
    assert first_texts(other) != documents["train"][:1000]
    assert CORPUS.identity != other.identity


def test_it_can_be_trained_on(tmp_path):
    data = TextDataModule("repetitions", tokenizer="bytes", context_length=32, cache_dir=str(tmp_path), num_threads=1)
    data.prepare_data()
    data.setup()
    assert data.validation_text(20) == next(data.corpus.passages("validation")).text[:20]
    assert 600_000 < data.tokenized.train.num_tokens < 1_200_000
