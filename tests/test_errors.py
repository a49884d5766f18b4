"""An error in code gets a traceback that names its file, from every program that runs the code.

An error in training also gets a line that says how to resume. tests/test_train_mistakes.py has the mistakes that get a
sentence.
"""

import traceback
from pathlib import Path

import pytest
import torch

from data.corpora.files import FileCorpus
from model.attention import CausalSelfAttention
from model.glass import open_run
from scripts import generate, inspect_attention
from tests.command_lines import last_error

# Broken versions of `attend`: the error that each raises, and the code.
IN_ATTENTION = {
    "wrong dim": (IndexError, lambda self, q, k, v, mask=None: torch.softmax(q @ k.mT, dim=7) @ v),
    "wrong shape": (RuntimeError, lambda self, q, k, v, mask=None: q @ k @ v),
    "misspelled": (AttributeError, lambda self, q, k, v, mask=None: self.num_head),
}


IN_TRAINING = {name: (error, CausalSelfAttention, "attend", bug) for name, (error, bug) in IN_ATTENTION.items()}
IN_TRAINING["in a corpus"] = KeyError, FileCorpus, "passages", lambda self, split: {}["text"]


def codes_of(caught):
    """The code object of each line of a traceback."""
    return [entry.frame.code.raw for entry in caught.traceback]


@pytest.mark.parametrize("name", IN_TRAINING)
def test_train_raises_the_error_of_the_code(train, monkeypatch, capsys, name):
    error, kind, function, bug = IN_TRAINING[name]
    monkeypatch.setattr(kind, function, bug)
    with pytest.raises(error) as caught:
        train("--name=run", "--data.cache_dir=cache")
    assert bug.__code__ in codes_of(caught)
    assert "there is no checkpoint" in last_error(capsys)


OTHERS = {
    "generate": lambda: generate.main(["--checkpoint", "runs/run", "--prompt", "the", "--max_new_tokens", "2"]),
    "inspect": lambda: inspect_attention.main(["--checkpoint", "runs/run", "--prompt", "the text", "--output=x.png"]),
    "notebook": lambda: open_run("runs/run").read("the text").maps,
}


@pytest.mark.parametrize("program", OTHERS)
def test_scripts_and_notebooks_raise_the_error_of_the_network(finished_run, replace_attend, program):
    for kind, bug in IN_ATTENTION.values():
        replace_attend(bug)
        with pytest.raises(kind) as caught:
            OTHERS[program]()
        assert type(caught.value) is kind and bug.__code__ in codes_of(caught)


MINE = """
from lightning.pytorch.callbacks import Callback

class AtEnd(Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 13:
            trainer.global_step + "1"

class InInit(Callback):
    def __init__(self, every: int = 1):
        self.steps = list(every)

class InTrainer(Callback):
    state_key = property(lambda self: int("a bug"))
"""


@pytest.fixture
def mine(here, monkeypatch):
    """Modules of the user's own, in the working folder."""
    monkeypatch.syspath_prepend(here)
    Path("mine_of_tests.py").write_text(MINE)


def test_an_error_in_the_init_of_a_callback_is_shown_with_its_file(train, mine):
    with pytest.raises(ValueError) as caught:  # raised by jsonargparse from the callback's own error
        train("--trainer.callbacks+=mine_of_tests.InInit")
    assert type(caught.value.__cause__) is TypeError
    shown = traceback.extract_tb(caught.value.__cause__.__traceback__)
    assert any(line.filename.endswith("mine_of_tests.py") for line in shown)


def test_an_error_in_code_that_builds_the_trainer_is_no_mistake(train, mine):
    with pytest.raises(ValueError, match="a bug"):
        train("--trainer.callbacks+=mine_of_tests.InTrainer")


def test_a_run_can_be_resumed_after_a_callback_has_failed(train, finished_run, mine, capsys):
    with pytest.raises(TypeError) as caught:
        train("--resume=runs/run", "--trainer.max_steps=14", "--trainer.callbacks+=mine_of_tests.AtEnd")
    assert caught.traceback[-1].path.name == "mine_of_tests.py"
    assert "python train.py --resume runs/run" in last_error(capsys)
