"""Where text comes from. A corpus is one file in this folder and one line in CORPORA."""

import logging
from collections.abc import Callable
from dataclasses import fields

from data.corpora.corpus import SPLITS, Corpus, CorpusOptions
from data.corpora.files import file_corpus
from data.corpora.hub import HUB_OPTIONS, HubCorpus
from data.corpora.repetitions import RepetitionCorpus, WordCorpus
from data.corpora.stdlib import stdlib_corpus

__all__ = ["CORPORA", "SPLITS", "Corpus", "CorpusOptions", "build"]

# What makes each corpus, and the options that it reads besides validation_fraction, which every corpus does.
CORPORA: dict[str, tuple[Callable[[CorpusOptions], Corpus], tuple[str, ...]]] = {
    "stdlib": (stdlib_corpus, ()),
    "files": (file_corpus, ("files", "validation_files", "documents", "text_column")),
    "hub": (HubCorpus, HUB_OPTIONS),
    "repetitions": (RepetitionCorpus, ()),
    "words": (WordCorpus, ()),
}

_log = logging.getLogger(__name__)

# Setting one of these options selects its corpus.
SELECTED_BY = {"files": "files", "dataset": "hub"}


def build(name: str, options: CorpusOptions) -> Corpus:
    """The corpus `name`, or the one that an option selects.

    A config may have options of another corpus than the one that a person chooses; they are named and not used.

    Raises ValueError or FileNotFoundError for options that contradict each other or name nothing.
    """
    if name not in CORPORA:
        raise ValueError(f"unknown data.corpus {name!r}: write one of {', '.join(CORPORA)}")
    is_set = {
        field.name: value for field in fields(options) if (value := getattr(options, field.name)) != field.default
    }
    for option, value in is_set.items():
        if value in ("", []) or (isinstance(value, list) and "" in value):
            raise ValueError(f"data.{option} is empty: name what to read, or leave the option out")
    selected = [option for option in SELECTED_BY if option in is_set]
    if len(selected) > 1:
        raise ValueError(f"data.{' and data.'.join(selected)} are both set: keep the one to train on")
    if selected:
        name = SELECTED_BY[selected[0]]
    make, reads = CORPORA[name]
    for option in is_set:
        if option not in (*reads, "validation_fraction"):
            _log.warning("data.%s is not used: data.corpus %s has no such option.", option, name)
    return make(options)
