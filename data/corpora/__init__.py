"""Sources of text. To add a corpus, write one file in this folder and one line in CORPORA.

If it needs a new option, add a field to CorpusOptions and a line that explains it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature

from data.corpora.files import file_corpus
from data.corpora.hub import HubCorpus
from data.corpora.repetitions import RepetitionCorpus
from data.corpora.stdlib import stdlib_corpus
from data.text import SPLITS, Corpus
from model.mistakes import Mistake, check_range, imported

# The name of each corpus, and what builds it: a function or class that takes some of the fields of CorpusOptions.
CORPORA: dict[str, Callable[..., Corpus]] = {
    "stdlib": stdlib_corpus,
    "files": file_corpus,
    "hub": HubCorpus,
    "repetitions": RepetitionCorpus,
}
# Option -> the corpus that is selected by setting it. The page names the text by such an option: add yours to
# `_text_in_words` in model/pages/learning.py.
SELECTED_BY = {"files": "files", "dataset": "hub"}
READ_HERE = ("corpus", "max_tokens")  # options that no corpus needs to know

_log = logging.getLogger(__name__)


@dataclass
class CorpusOptions:
    """What text is read, by --data.NAME. Each corpus gets the options that its builder in CORPORA has as parameters.

    Args:
        corpus: where the text comes from: stdlib (the source code of Python's standard library), files (your own, see
            --data.files), hub (a data set, see --data.dataset), repetitions (generated, for induction heads), or your
            own by the path of a function that returns a `data.text.Corpus`, such as mine.my_corpus.
        max_tokens: train on at most this many tokens, from the beginning of the corpus, and validate on at most
            validation_fraction of this number (null: no limit).
        files: files to read, as glob patterns: json, jsonl (or jsonlines, ndjson), csv, tsv, parquet, arrow, or plain
            text with any other ending; json, jsonl, csv and tsv may be compressed (.gz, .zst, .xz or .bz2). Setting
            this selects --data.corpus files, unless that is your own.
        validation_files: files to validate on, as glob patterns (null: validation_fraction of files).
        text_column: column that holds the text, in tables and data sets.
        quotes: whether quote marks enclose fields in csv and tsv files; false: they are part of the text.
        dataset: data set to read: its name on the Hugging Face Hub, or a folder of parquet, jsonl or arrow files.
            Setting this selects --data.corpus hub, unless that is your own.
        dataset_config: configuration of the data set, if it has several.
        dataset_split: name of the split to train on.
        dataset_validation_split: name of the split to validate on (null: the data set's validation split if it has
            one, or else validation_fraction of dataset_split).
        dataset_revision: commit or tag of the data set on the Hub; set it to read the same text in later runs.
        streaming: read the data set over the network without storing its text on disk; needs max_tokens.
        validation_fraction: share of the corpus for validation, above 0 and below 1. Ignored if there are
            validation_files or the data set has a validation split.
    """

    corpus: str = "stdlib"
    max_tokens: int | None = None
    files: list[str] | str | None = None
    validation_files: list[str] | str | None = None
    text_column: str = "text"
    quotes: bool = True
    dataset: str | None = None
    dataset_config: str | None = None
    dataset_split: str = "train"
    dataset_validation_split: str | None = None
    dataset_revision: str | None = None
    streaming: bool = False
    validation_fraction: float = 0.1

    def __post_init__(self) -> None:
        check_range("data.validation_fraction", self.validation_fraction, 0, 1, low_open=True, high_open=True)
        check_range("data.max_tokens", self.max_tokens, 2)
        if self.streaming and self.max_tokens is None:
            raise Mistake("data.streaming needs a limit: set --data.max_tokens to the number of tokens to train on")

    @property
    def token_limits(self) -> dict[str, int | None]:
        """How many tokens of each split are read, None for all."""
        if self.max_tokens is None:
            return dict.fromkeys(SPLITS)
        return {"train": self.max_tokens, "validation": max(int(self.max_tokens * self.validation_fraction), 2)}


def build(options: CorpusOptions) -> Corpus:
    """Builds options.corpus, or the corpus that another option selects instead (see SELECTED_BY).

    A name with a dot, such as mine.my_corpus, is imported: a function or class like those in CORPORA. No option selects
    another instead.

    Warns about every option that is set but not read by this corpus. This is not a Mistake: a user may combine a config
    with another corpus than it was written for.

    Raises Mistake if options contradict each other, or if options.corpus is unknown.
    """
    values, name = vars(options), options.corpus
    is_set = {option: value for option, value in values.items() if value != getattr(CorpusOptions, option)}
    selected = [option for option in SELECTED_BY if option in is_set]
    if len(selected) > 1:
        raise Mistake(f"data.{' and data.'.join(selected)} are both set: keep only the one to train on")
    if selected and name in CORPORA:
        name = SELECTED_BY[selected[0]]
    builder = CORPORA.get(name) or imported("data.corpus", name, CORPORA)
    reads = signature(builder).parameters
    for option in is_set:
        if option not in {*reads, *READ_HERE}:
            _log.warning("data.%s is ignored: data.corpus %s has no such option.", option, name)
    return builder(**{option: values[option] for option in reads})
