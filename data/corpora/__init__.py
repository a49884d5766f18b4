"""Where text comes from. A corpus is one file in this folder and one line in CORPORA.

An option that no other corpus has is a line of CorpusOptions, and one that explains it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature

from data.corpora.files import file_corpus
from data.corpora.hub import HubCorpus
from data.corpora.repetitions import RepetitionCorpus
from data.corpora.stdlib import stdlib_corpus
from data.text import Corpus
from model.mistakes import Mistake

# What makes each corpus: its parameters are the CorpusOptions that it reads.
CORPORA: dict[str, Callable[..., Corpus]] = {
    "stdlib": stdlib_corpus,
    "files": file_corpus,
    "hub": HubCorpus,
    "repetitions": RepetitionCorpus,
}
# Setting one of these options selects its corpus.
SELECTED_BY = {"files": "files", "dataset": "hub"}

_log = logging.getLogger(__name__)


@dataclass
class CorpusOptions:
    """The options of all corpora, --data.NAME. A corpus takes those that its function or class has as parameters.

    Args:
        files: globs of text, jsonl, csv or parquet, jsonl and csv may be .gz or .zst; setting it means
            --data.corpus files.
        validation_files: globs of files to validate on; otherwise part of `files` is held out.
        text_column: column that holds the text, in tables and data sets.
        quotes: quote marks enclose fields of csv and tsv files; false: they are text.
        dataset: name on the Hugging Face Hub, or folder of parquet, jsonl or arrow files; setting it means
            --data.corpus hub.
        dataset_config: configuration of the data set, where it has several.
        dataset_split: split to train on.
        dataset_validation_split: split to validate on; by default its own validation split where it has one.
        dataset_revision: commit or tag on the Hub, to read the same text next year.
        streaming: read the data set as it arrives, without storing it; needs max_tokens.
        validation_fraction: part of the corpus to validate on, where it does not come with its own.
    """

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


def build(name: str, options: CorpusOptions) -> Corpus:
    """The corpus `name`, or the one that an option selects, with those of the CorpusOptions that it reads.

    A config may have options of another corpus than the one that a person chooses; they are named and not used.

    Raises Mistake for options that contradict each other or name nothing.
    """
    if name not in CORPORA:
        raise Mistake(f"unknown data.corpus {name!r}: write one of {', '.join(CORPORA)}")
    values = vars(options)
    is_set = {option: value for option, value in values.items() if value != getattr(CorpusOptions, option)}
    for option, value in is_set.items():
        if value in ("", []) or (isinstance(value, list) and "" in value):
            raise Mistake(f"data.{option} is empty: name what to read, or leave the option out")
    selected = [option for option in SELECTED_BY if option in is_set]
    if len(selected) > 1:
        raise Mistake(f"data.{' and data.'.join(selected)} are both set: keep the one to train on")
    if selected:
        name = SELECTED_BY[selected[0]]
    reads = signature(CORPORA[name]).parameters
    for option in is_set:
        if option not in reads:
            _log.warning("data.%s is not used: data.corpus %s has no such option.", option, name)
    return CORPORA[name](**{option: values[option] for option in reads})
