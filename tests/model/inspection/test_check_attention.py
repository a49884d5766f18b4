"""check_attention names the mistake in wrong attentions, and finds none in right ones.

attention_styles.py holds right attentions, attention_mistakes.txt changes of their text: what follows the change is a
word of the sentence that it has to get, or nothing if the attention is still right.
"""

import copy
import inspect
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model import check_attention
from model.attention import CausalSelfAttention
from model.inspection.attention_mistakes import formula
from model.multihead import MultiHeadAttention, scaled_dot_product_attention
from tests.model.inspection import attention_styles
from tests.small_runs import assert_same

TABLE = Path(__file__).with_name("attention_mistakes.txt").read_text(encoding="utf-8").splitlines()[1:]
LINES = [line.replace("\\n", "\n") for line in TABLE]
CHANGES = [line.split(" | ") for line in LINES if not line.endswith(" |")]
HARMLESS = [line.removesuffix(" |").split(" | ") for line in LINES if line.endswith(" |")]
STYLES = [name for name, made in vars(attention_styles).items() if inspect.getmodule(made) is attention_styles]


def made(style, text="", replacement=""):
    """The attention of a style, with a change of its text."""
    source = inspect.getsource(attention_styles)
    if text:
        part = inspect.getsource(getattr(attention_styles, style))
        assert text in part
        source = source.replace(part, part.replace(text, replacement))
        style = style.replace(text, replacement)
    names = {"__name__": "changed"}
    exec(source, names)
    return names[style]() if isinstance(names[style], type) else names[style]


@pytest.mark.parametrize("style, text, replacement, word", CHANGES)
def test_every_mistake_is_named(style, text, replacement, word):
    torch.manual_seed(0)
    sentences = check_attention(made(style, text, replacement))
    assert any(word in sentence for sentence in sentences), sentences


@pytest.mark.filterwarnings("ignore:compared without a mask")
@pytest.mark.parametrize("change", [[style] for style in STYLES] + HARMLESS, ids=str)
def test_right_attentions_get_no_sentence(change):
    torch.manual_seed(0)
    assert not check_attention(made(*change))


class Kept(attention_styles.MinGPT):
    """Keeps its output, was called once before, and begins with an output of zeros."""

    def __init__(self):
        super().__init__()
        self(torch.randn(1, 3, 16))
        nn.init.zeros_(self.c_proj.weight)

    def forward(self, x):
        self.kept = super().forward(x)
        return self.kept


RIGHT = {
    "PyTorch's": lambda: nn.MultiheadAttention(64, 4, batch_first=True, dropout=0.5),
    "PyTorch's, bfloat16": lambda: nn.MultiheadAttention(64, 4, batch_first=True).bfloat16(),
    "PyTorch's, tokens first": lambda: nn.MultiheadAttention(64, 4),
    "PyTorch's kernel": lambda: lambda query, key, value, mask: F.scaled_dot_product_attention(query, key, value, mask),
    "float16, of training": lambda: attention_styles.MinGPT().half().train(),
    "computed in bfloat16": lambda: (
        lambda q, k, v, mask: attention_styles.step_by_step(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask)
    ),
    "grouped heads": lambda: CausalSelfAttention(64, 4, num_kv_heads=2).bfloat16(),
    "the GPT's with a norm and a window": lambda: CausalSelfAttention(64, 4, qk_norm=True, window=2),
    "the general layer": lambda: MultiHeadAttention(64, 4),
    "keeps its output": Kept,
}


@pytest.mark.filterwarnings("ignore:compared with tokens first")
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_attention_gets_no_sentence_and_is_not_changed(name):
    torch.manual_seed(0)
    mine = RIGHT[name]()
    is_module = isinstance(mine, nn.Module)
    before = (copy.deepcopy(mine.state_dict()), mine.training) if is_module else None
    assert not check_attention(mine)
    if is_module:
        assert_same(before, (mine.state_dict(), mine.training))


def test_a_warning_says_that_there_was_no_mask():
    for attention, is_warned in ((attention_styles.Timm(), True), (attention_styles.MinGPT(), False)):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert not check_attention(attention)
        assert bool(told) == is_warned


def test_what_cannot_be_compared_gets_a_sentence():
    class Five(attention_styles.MinGPT):
        def __init__(self):
            super().__init__()
            self.more = nn.Linear(16, 16)

        def forward(self, x):
            return self.more(super().forward(x))

    assert any("more.weight" in sentence for sentence in check_attention(Five()))
    for other in (nn.Linear(4, 4), lambda x: x, F.scaled_dot_product_attention):
        assert check_attention(other)


def test_an_error_is_shown_with_the_shapes_and_the_line_of_the_user():
    def mine(q, k, v):
        _, _, _ = q.shape  # called with four axes first: this failure is one of the call
        return {}["scores"]

    (sentence,) = check_attention(mine)
    assert all(part in sentence for part in ("KeyError: 'scores'", 'return {}["scores"]', "(2, 5, "))


def test_the_formula_is_that_of_the_general_layer():
    q, k, v = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    mask = torch.ones(1, 1, 3, 5, dtype=torch.bool).tril(2)
    k4, v4 = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    values, _ = scaled_dot_product_attention(q, k4, v4, mask)
    torch.testing.assert_close(formula(q, k, v, mask, {}), values.transpose(1, 2).flatten(2))
