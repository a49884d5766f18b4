"""Where text comes from. A corpus is one file in this folder and one line in CORPORA."""

import logging
from collections.abc import Callable
from dataclasses import asdict, field, make_dataclass
from inspect import cleandoc, signature
from typing import Any

from data.corpora.corpus import SPLITS, Corpus
from data.corpora.files import file_corpus
from data.corpora.hub import HubCorpus
from data.corpora.repetitions import RepetitionCorpus
from data.corpora.stdlib import stdlib_corpus
from model.checks import Mistake

__all__ = ["CORPORA", "SPLITS", "Corpus", "CorpusOptions", "build"]

# What makes each corpus. Its parameters, all with a default, are its options --data.NAME; the Args of its docstring are
# their --help. An option that several corpora have is one for all of them.
CORPORA: dict[str, Callable[..., Corpus]] = {
    "stdlib": stdlib_corpus,
    "files": file_corpus,
    "hub": HubCorpus,
    "repetitions": RepetitionCorpus,
}
# Setting one of these options selects its corpus.
SELECTED_BY = {"files": "files", "dataset": "hub"}

_log = logging.getLogger(__name__)


def _all_options() -> type:
    parameters = {name: one for make in CORPORA.values() for name, one in signature(make).parameters.items()}
    options = [(name, one.annotation, field(default=one.default)) for name, one in parameters.items()]
    explained = [cleandoc(make.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0] for make in CORPORA.values()]
    return make_dataclass("CorpusOptions", options, namespace={"__doc__": "\n".join(["Options.\n\nArgs:", *explained])})


CorpusOptions: Any = _all_options()  # the options of all corpora, as one object


def build(name: str, options: Any) -> Corpus:
    """The corpus `name`, or the one that an option selects, with those of the CorpusOptions that it reads.

    A config may have options of another corpus than the one that a person chooses; they are named and not used.

    Raises Mistake for options that contradict each other or name nothing.
    """
    if name not in CORPORA:
        raise Mistake(f"unknown data.corpus {name!r}: write one of {', '.join(CORPORA)}")
    values, defaults = asdict(options), asdict(CorpusOptions())
    is_set = {option: value for option, value in values.items() if value != defaults[option]}
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
