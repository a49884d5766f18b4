"""check_attention names the mistake in wrong attentions, and finds none in right ones.

attention_styles.py holds right attentions, attention_mistakes.txt changes of their text: what follows the change is a
word of the sentence that it has to get, or nothing if the attention is still right.
"""

import copy
import functools
import inspect
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model import check_attention
from model.attention import CausalSelfAttention, merge_heads, split_heads
from model.multihead import MultiHeadAttention
from tests.model.inspection import attention_styles
from tests.model.inspection.attention_styles import Bert, MinGPT, step_by_step
from tests.small_runs import assert_same

TABLE = Path(__file__).with_name("attention_mistakes.txt").read_text(encoding="utf-8").splitlines()[1:]
CHANGES = [line.removesuffix(" |").replace("\\n", "\n").split(" | ") for line in TABLE]
source_of = functools.cache(inspect.getsource)
STYLES = [name for name, made in vars(attention_styles).items() if inspect.getmodule(made) is attention_styles]


def made(style, text="", replacement=""):
    """The attention of a style, with a change of its text."""
    part = source_of(getattr(attention_styles, style))
    assert text in part
    names = {"__name__": "changed"}
    source = source_of(attention_styles)
    exec(source.replace(part, part.replace(text, replacement)) if text else source, names)
    attention = names[style]
    return attention() if isinstance(attention, type) else attention


@pytest.mark.parametrize("style, text, replacement, word", [change for change in CHANGES if len(change) == 4])
def test_every_mistake_is_named(style, text, replacement, word):
    sentences = check_attention(made(style, text, replacement))
    assert any(word in sentence for sentence in sentences), sentences


class Kept(MinGPT):
    """Keeps its outputs, was called once before, and begins with an output of zeros."""

    def __init__(self):
        super().__init__()
        self.all = []
        self(torch.randn(1, 3, 16))
        nn.init.zeros_(self.c_proj.weight)

    def forward(self, x):
        self.kept = super().forward(x)
        self.all.append(self.kept)
        return self.kept


class MadeForEight(nn.Module):
    """Has no matrices, and a constant that is right for heads of width 8."""

    def attend(self, q, k, v, mask=None):
        return F.scaled_dot_product_attention(q, k, v, mask, scale=8**-0.5)


def with_heads(q, k, v):
    return merge_heads(step_by_step(*(split_heads(x, 2) for x in (q, k, v))))


RIGHT = {
    "cuts its heads": lambda: with_heads,
    "takes its matrices": lambda: lambda x, W_q, W_k, W_v: step_by_step(x @ W_q, x @ W_k, x @ W_v),
    "a number for hidden scores": lambda: lambda q, k, v, mask_value=-1e9: step_by_step(q, k, v),
    "True hides": lambda: lambda q, k, v, key_padding_mask: step_by_step(q, k, v, ~key_padding_mask[:, None]),
    "a method for one width": lambda: MadeForEight().attend,
    "PyTorch's": lambda: nn.MultiheadAttention(64, 4, batch_first=True, dropout=0.5),
    "PyTorch's, bfloat16": lambda: nn.MultiheadAttention(64, 4, batch_first=True).bfloat16(),
    "PyTorch's, tokens first": lambda: nn.MultiheadAttention(64, 4),
    "PyTorch's kernel": lambda: lambda query, key, value, mask: F.scaled_dot_product_attention(query, key, value, mask),
    "float16, of training": lambda: MinGPT().half().train(),
    "computed in bfloat16": lambda: lambda q, k, v, mask: step_by_step(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask),
    "grouped heads": lambda: CausalSelfAttention(64, 4, num_kv_heads=2).bfloat16(),
    "the GPT's with a norm and a window": lambda: CausalSelfAttention(64, 4, qk_norm=True, window=2),
    "the general layer": lambda: MultiHeadAttention(64, 4),
    "keeps its output": Kept,
    "behind a norm": lambda: nn.Sequential(nn.RMSNorm(16), MinGPT()),
}
RIGHT |= {style: partial(made, style) for style in STYLES}
RIGHT |= {str(change): partial(made, *change) for change in CHANGES if len(change) == 3}


@pytest.mark.filterwarnings("ignore:compared with")
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_attention_gets_no_sentence_and_is_not_changed(name):
    mine = RIGHT[name]()
    module = mine if isinstance(mine, nn.Module) else nn.Module()
    before = copy.deepcopy(module.state_dict()), module.training
    assert not check_attention(mine)
    assert_same(before, (module.state_dict(), module.training))


def test_a_warning_says_what_was_not_compared():
    for change, word in (
        (["MinGPT", 'att.masked_fill(self.bias[:T, :T] == 0, float("-inf"))', "att"], "without a mask"),
        (["always_causal"], "fewer"),
        (["Bert"], "torch.bool"),
        (["step_by_step", "dim=-1)", "dim=-1, dtype=torch.float16).float()"], "16 bits"),
    ):
        with pytest.warns(UserWarning, match=word):
            assert not check_attention(made(*change))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not check_attention(MinGPT())


def test_lazy_layers_are_made_by_the_check():
    lazy = made("AnnotatedTransformer", "nn.Linear(16, 16)", "nn.LazyLinear(16)")
    assert not check_attention(lazy)
    assert isinstance(lazy.linears[0], nn.LazyLinear)


def test_what_cannot_be_compared_gets_a_sentence():
    class Five(MinGPT):
        def __init__(self):
            super().__init__()
            self.more = nn.Linear(16, 16)

        def forward(self, x):
            return self.more(super().forward(x))

    assert any("more.weight" in sentence for sentence in check_attention(Five()))
    for other in (nn.Linear(4, 4), lambda x: x, F.scaled_dot_product_attention, lambda q, k, v: q > 0):
        assert check_attention(other)
    assert check_attention(lambda q, k, v: 1.01 * step_by_step(q.double(), k.double(), v.double()))  # 1% is no rounding


def test_what_a_notebook_has_set_does_not_matter():
    module = MinGPT()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"), torch.inference_mode():
            assert not check_attention(module) and not check_attention(attention_styles.always_causal)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_learned_bias_of_the_scores_is_not_called_right():
    class Biased(Bert):
        def __init__(self):
            super().__init__()
            self.position_bias = nn.Parameter(torch.randn(4, 5, 5))

        def forward(self, x):
            return super().forward(x, self.position_bias[:, : x.shape[1], : x.shape[1]])

    assert any("position_bias" in sentence for sentence in check_attention(Biased()))


def test_an_error_is_shown_with_the_shapes_and_the_line_of_the_user():
    def mine(q, k, v):
        _, _, _ = q.shape  # called with four axes first: this failure is one of the call
        return {}["scores"]

    (sentence,) = check_attention(mine)
    assert all(part in sentence for part in ("KeyError: 'scores'", 'return {}["scores"]', "(2, 5, "))
