"""The repetitions corpus: every row is repeated, splits share no long row, and each call generates the same text."""

import re

import pytest

from data.corpora import CorpusOptions, repetitions
from data.corpora.repetitions import RepetitionCorpus, WordCorpus
from data.datamodule import TextDataModule

CORPUS = RepetitionCorpus(CorpusOptions())


def rows(corpus: RepetitionCorpus, split: str) -> list[str]:
    """The shortest text that each document is a repetition of."""
    return [re.fullmatch(r"(.+?)\1+", passage.text)[1] for passage in corpus.passages(split)]


def test_documents_repeat_rows_of_all_lengths():
    lengths = sorted(map(len, rows(CORPUS, "train")))
    assert len(lengths) == 21_600 and len(rows(CORPUS, "validation")) == 2400
    assert 1 <= lengths[0] <= 2 and lengths[-1] == 30
    assert 7 <= lengths[10_800] <= 8  # the geometric mean of 2 and 30 is 7.7
    texts = [passage.text for passage in CORPUS.passages("train")]
    assert all(20 < len(text) <= 60 and set(text) <= set(CORPUS.letters) for text in texts)


def test_splits_share_no_long_row_and_are_reproducible(monkeypatch: pytest.MonkeyPatch):
    train, validation = (rows(CORPUS, split) for split in ("train", "validation"))
    assert not {row for row in train if len(row) > 5} & set(validation)
    assert train == rows(RepetitionCorpus(CorpusOptions()), "train")
    monkeypatch.setattr(repetitions, "SEED", 1)
    other = RepetitionCorpus(CorpusOptions())
    assert train != rows(other, "train")
    assert CORPUS.identity != other.identity


def test_words_have_no_letter_twice():
    words = rows(WordCorpus(CorpusOptions()), "train")
    assert all(len(word) == len(set(word)) and re.fullmatch("[a-z]{2,14}", word) for word in words)
    assert {len(word) for word in words} == set(range(2, 15)) and set("".join(words)) == set(WordCorpus.letters)
    assert WordCorpus(CorpusOptions()).identity != CORPUS.identity


def test_it_can_be_trained_on(tmp_path):
    data = TextDataModule("repetitions", tokenizer="bytes", context_length=32, cache_dir=str(tmp_path), num_processes=1)
    data.prepare_data()
    data.setup()
    assert data.validation_text(20) == next(data.corpus.passages("validation")).text[:20]
    assert 600_000 < data.tokenized.train.num_tokens < 1_200_000
