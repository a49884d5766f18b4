"""Where text comes from. A corpus is one file in this folder and one line in CORPORA.

A corpus takes its options as arguments, under the names that TextDataModule declares.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from inspect import signature
from typing import Any

from data.corpora.corpus import SPLITS, Corpus
from data.corpora.files import file_corpus
from data.corpora.hub import HubCorpus
from data.corpora.repetitions import RepetitionCorpus
from data.corpora.stdlib import stdlib_corpus

__all__ = ["CORPORA", "SPLITS", "Corpus", "build"]

CORPORA: dict[str, Callable[..., Corpus]] = {
    "stdlib": stdlib_corpus,
    "files": file_corpus,
    "hub": HubCorpus,
    "repetitions": RepetitionCorpus,
}

_log = logging.getLogger(__name__)

# Setting one of these options selects its corpus.
SELECTED_BY = {"files": "files", "dataset": "hub"}


def build(name: str, **options: Any) -> Corpus:
    """The corpus `name`, or the one that an option selects, with those of `options` that it takes.

    A config may have options of another corpus than the one that a person chooses; they are named and not used.

    Raises ValueError or FileNotFoundError for options that contradict each other or name nothing.
    """
    if name not in CORPORA:
        raise ValueError(f"unknown data.corpus {name!r}: write one of {', '.join(CORPORA)}")
    for option, value in options.items():
        if value in ("", []) or (isinstance(value, list) and "" in value):
            raise ValueError(f"data.{option} is empty: name what to read, or leave the option out")
    selected = [option for option in SELECTED_BY if options.get(option) is not None]
    if len(selected) > 1:
        raise ValueError(f"data.{' and data.'.join(selected)} are both set: keep the one to train on")
    if selected:
        name = SELECTED_BY[selected[0]]
    taken = signature(CORPORA[name]).parameters
    defaults = {
        option: taker.default for make in CORPORA.values() for option, taker in signature(make).parameters.items()
    }
    for option, value in options.items():
        if option not in taken and value != defaults.get(option, value):
            _log.warning("data.%s is not used: data.corpus %s has no such option.", option, name)
    return CORPORA[name](**{option: value for option, value in options.items() if option in taken})
