"""Defaults of the command line, options that exclude each other or do harm, and hidden warnings."""

import logging
import warnings
from pathlib import Path

import pytest
import yaml

from model.runs.command_line import NOT_SAVED, quiet, read_options

CONFIG = "model: {gpt: {num_layers: 3}}\ntrainer: {max_steps: 5, precision: 32-true}\ndata: {tokenizer: bytes}\n"


@pytest.fixture
def options(here, parser):
    Path("default.yaml").write_text(CONFIG)
    return lambda *args: read_options(parser, list(args), Path("default.yaml"))


def test_options_that_are_left_out_get_their_defaults(options):
    Path("own.yaml").write_text("trainer: {max_steps: 7}\n")
    for args, layers, steps in (
        ([], 3, 5),
        (["--name", "a"], 3, 5),
        (["--config=own.yaml"], 6, 7),
        (["-c", "own.yaml"], 6, 7),
        (["--config=own.yaml", "--config", "default.yaml"], 3, 5),
        (["--trainer.max_steps=9", "--config=default.yaml"], 3, 9),  # the order does not matter
    ):
        read = options(*args)
        assert (read.config.model.gpt.num_layers, read.config.trainer.max_steps) == (layers, steps), args
        assert read.config.trainer.precision is not None
        saved = yaml.safe_load(read.saved)
        assert saved["model"]["gpt"]["num_layers"] == layers and read.run is None
        assert saved.keys() == read.config.as_dict().keys() - set(NOT_SAVED)


def test_naming_a_text_replaces_the_one_that_an_earlier_source_names(options):
    Path("files.yaml").write_text("data: {corpus: files, files: [a.txt], batch_size: 3}\n")
    Path("hub.yaml").write_text("data: {corpus: hub, dataset: a/b}\n")
    typed = {"corpus=repetitions": ("repetitions", None, None), "files+=b.txt": ("stdlib", ["b.txt"], None)}
    typed |= {"dataset=c/d": ("stdlib", None, "c/d"), "max_tokens=9": ("files", ["a.txt"], None)}
    for option, named in typed.items():
        data = options("--config=hub.yaml", "--config=files.yaml", f"--data.{option}").config.data
        assert ((data.corpus, data.files, data.dataset), data.batch_size) == (named, 3), option


def test_a_group_of_options_with_a_plain_value_is_refused(options):
    for group in ("data", "model", "model.gpt", "model.schedule", "trainer", "samples", "checkpoints"):
        for value in ("3", "text", "[1]", "null"):
            Path("own.yaml").write_text(f"{group}: {value}")
            with pytest.raises(ValueError, match=rf"\b{group}\b"):
                options("--config=own.yaml")


def test_warnings_that_matter_are_shown():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        quiet()
        warnings.warn("A warning that matters", stacklevel=1)
    assert len(seen) == 1 and logging.getLogger("model.runs").isEnabledFor(logging.WARNING)
