"""Where text comes from. A corpus is one file in this folder and one line in CORPORA."""

import logging
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from data.corpora.corpus import SPLITS, Corpus
from data.corpora.files import file_corpus
from data.corpora.hub import HubCorpus
from data.corpora.repetitions import RepetitionCorpus
from data.corpora.stdlib import stdlib_corpus
from data.mistakes import Mistake

__all__ = ["CORPORA", "SPLITS", "Corpus", "build"]

# What makes each corpus. Its parameters are the options of TextDataModule that it reads.
CORPORA: dict[str, Callable[..., Corpus]] = {
    "stdlib": stdlib_corpus,
    "files": file_corpus,
    "hub": HubCorpus,
    "repetitions": RepetitionCorpus,
}
# Setting one of these options selects its corpus.
SELECTED_BY = {"files": "files", "dataset": "hub"}

_log = logging.getLogger(__name__)


def build(name: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Corpus:
    """The corpus `name`, or the one that an option selects, with those of `options` that it reads.

    A config may have options of another corpus than the one that a person chooses; they are named and not used.

    Raises Mistake for options that contradict each other or name nothing.
    """
    if name not in CORPORA:
        raise Mistake(f"unknown data.corpus {name!r}: write one of {', '.join(CORPORA)}")
    reads = {corpus: signature(make).parameters for corpus, make in CORPORA.items()}
    of_a_corpus = set().union(*reads.values())
    is_set = [option for option in defaults if option in of_a_corpus and options[option] != defaults[option]]
    for option in is_set:
        value = options[option]
        if value in ("", []) or (isinstance(value, list) and "" in value):
            raise Mistake(f"data.{option} is empty: name what to read, or leave the option out")
    selected = [option for option in SELECTED_BY if option in is_set]
    if len(selected) > 1:
        raise Mistake(f"data.{' and data.'.join(selected)} are both set: keep the one to train on")
    if selected:
        name = SELECTED_BY[selected[0]]
    for option in is_set:
        if option not in reads[name]:
            _log.warning("data.%s is not used: data.corpus %s has no such option.", option, name)
    return CORPORA[name](**{option: options[option] for option in reads[name]})
