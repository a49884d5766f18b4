"""An error in code shows where it is: a traceback that names the file, from every program that runs the code.

And after one in training a line that says what was running. tests/test_train_mistakes.py has what gets a sentence.
"""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from data.corpora.files import FileCorpus
from model.attention import CausalSelfAttention
from model.glass import open_run
from model.gpt import FeedForward
from model.multihead import scaled_dot_product_attention
from scripts import generate, inspect_attention

# Of `attend`: what it raises, and the code.
IN_ATTENTION = {
    "wrong dim": (IndexError, lambda self, q, k, v, mask=None: torch.softmax(q @ k.mT, dim=7) @ v),
    "missing argument": (TypeError, lambda self, q, k, v, mask=None: torch.softmax(q @ k.mT) @ v),
    "wrong shape": (RuntimeError, lambda self, q, k, v, mask=None: q @ k @ v),
    "misspelled": (AttributeError, lambda self, q, k, v, mask=None: self.num_head),
    "wrong mask": (TypeError, lambda self, q, k, v, mask=None: scaled_dot_product_attention(q, k, v, q @ k.mT)[0]),
    "no tensor": (TypeError, lambda self, q, k, v, mask=None: F.scaled_dot_product_attention(q, k, v, [[True]])),
}


def changed_in_place(self, x):
    """Which autograd notices in the backward pass."""
    hidden = F.relu(self.up_proj(x))
    squared = hidden.square()
    hidden.add_(1)
    return self.down_proj(squared)


IN_TRAINING = {
    name: (CausalSelfAttention, "attend", bug, "recording of step 0") for name, (_, bug) in IN_ATTENTION.items()
}
IN_TRAINING["in place"] = (FeedForward, "forward", changed_in_place, "training step 1")
IN_TRAINING["in a corpus"] = (FileCorpus, "passages", lambda self, split: {}["text"], "preparing text and model")


@pytest.mark.parametrize("name", IN_TRAINING)
def test_train_shows_the_traceback_and_what_was_running(train, monkeypatch, capsys, name):
    kind, function, bug, doing = IN_TRAINING[name]
    monkeypatch.setattr(kind, function, bug)
    assert train("--name=run", "--data.cache_dir=cache") == 1
    *shown, line = capsys.readouterr().err.splitlines()
    assert any("Traceback" in one for one in shown)
    if bug is not changed_in_place:  # of which no traceback ends in the forward pass
        assert any(f'"{__file__}"' in one and bug.__name__ in one for one in shown)
    assert doing in line and "there is no checkpoint" in line


OTHERS = {
    "generate": lambda: generate.main(["--checkpoint", "runs/run", "--prompt", "the", "--max_new_tokens", "2"]),
    "inspect": lambda: inspect_attention.main(["--checkpoint", "runs/run", "--prompt", "the text", "--output=x.png"]),
    "notebook": lambda: open_run("runs/run").read("the text").maps,
}


@pytest.mark.parametrize("program", OTHERS)
def test_scripts_and_notebooks_pass_on_what_the_network_raises(finished_run, monkeypatch, program):
    for kind, bug in IN_ATTENTION.values():
        monkeypatch.setattr(CausalSelfAttention, "attend", bug)
        with pytest.raises(kind) as caught:
            OTHERS[program]()
        assert type(caught.value) is kind
        assert any(entry.frame.code.raw is bug.__code__ for entry in caught.traceback)


MINE = """
import torch
from lightning.pytorch.callbacks import Callback

class AtEnd(Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 5:
            trainer.global_step + "1"

class InInit(Callback):
    def __init__(self, every: int = 1):
        self.steps = list(every)

class AnyOption(Callback):
    def __init__(self, **options):
        torch.softmax(torch.zeros(2))
"""


@pytest.fixture
def mine(here, monkeypatch):
    """A module of the person's own."""
    monkeypatch.syspath_prepend(here)
    Path("mine_of_tests.py").write_text(MINE)
    Path("broken_of_tests.py").write_text("undefined\n")


@pytest.mark.parametrize(
    ("callback", "kind"),
    [("mine_of_tests.InInit", TypeError), ("mine_of_tests.AnyOption", TypeError)],
)
def test_a_callback_that_cannot_be_made_is_an_error_in_its_code(train, mine, callback, kind):
    with pytest.raises(kind) as caught:
        train(f"--trainer.callbacks+={callback}")
    assert caught.traceback[-1].path.name == f"{callback.partition('.')[0]}.py" or "softmax" in str(caught.value)
    assert any(entry.path.name.endswith("_of_tests.py") for entry in caught.traceback)


def test_after_a_callback_fails_the_run_can_be_gone_on_with(train, mine, capsys):
    assert train("--name=run", "--trainer.max_steps=4", "--attention.enabled=false") == 0
    start = ["--resume=runs/run", "--trainer.max_steps=6", "--trainer.callbacks+=mine_of_tests.AtEnd"]
    assert train(*start) == 1
    *shown, line = capsys.readouterr().err.splitlines()
    assert any(re.search(r'mine_of_tests\.py", line 8', one) for one in shown)
    assert "training step 5" in line and "python train.py --resume runs/run" in line


def test_a_checkpoint_of_which_a_part_cannot_be_restored_is_named(train, finished_run, capsys):
    """As one of other code would be."""
    path = finished_run / "checkpoints/last.ckpt"
    torch.save(torch.load(path) | {"counted": (1,)}, path)
    assert train("--resume=runs/run", "--trainer.max_steps=13") == 1
    *shown, line = capsys.readouterr().err.splitlines()
    assert any("Traceback" in one for one in shown) and "restoring runs/run/checkpoints/last.ckpt" in line


OPTIONS = {
    "broken_of_tests.X": "broken_of_tests",
    "mine_of_tests.Nothing": "mine_of_tests.Nothing",
    "nothing.X": "nothing",
    "Nothing": "Nothing",
    "EarlyStopping": "monitor",
    "{class_path: mine_of_tests.InInit, init_args: {every: x}}": "every",
    "{class_path: mine_of_tests.InInit, init_args: {evry: 1}}": "evry",
    "{class_path: EarlyStopping, init_args: {monitor: val/loss, mode: x}}": "mode",
    "{class_path: ModelCheckpoint, init_args: {save_top_k: -7, monitor: val/loss}}": "save_top_k",
}


@pytest.mark.parametrize("typed", OPTIONS)
def test_a_class_that_is_given_other_options_than_it_takes_gets_a_sentence(train, mine, capsys, typed):
    assert train(f"--trainer.callbacks+={typed}") == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error and OPTIONS[typed] in error.splitlines()[-1]
    assert not Path("runs").exists()
