"""Experiments: found in models with hand-made weights that do the thing, and never by chance."""

from pathlib import Path

import pytest
import torch

from data.tokenizers import byte_level, train_bpe
from model.gpt import GPT, GPTConfig
from model.inspection import experiments
from model.inspection.experiments import try_all
from model.inspection.parts import part_means, replaced
from model.inspection.texts import Texts, spread_starts
from tests.gpts import GPT2, random_gpt, repeating_gpt
from tests.model.pages.model_pages import LETTERS

BYTES, REPEATED = byte_level(), "".join(LETTERS)
CODE = Path(experiments.__file__).read_text(encoding="utf-8")


def windows(text, tokenizer=BYTES, length=64):
    tokens = tokenizer.encode(text)
    length = min(length, len(tokens))
    rows = [tokens[start : start + length] for start in spread_starts(len(tokens), length)]
    return Texts.of(rows, tokenizer.label)


def found_in(gpt, tokenizer=BYTES, text=None):
    recorded = windows(text or REPEATED, tokenizer, gpt.config.context_length)
    return try_all(gpt, tokenizer, recorded)


def shares(gpt, trial, text):
    """The probability of the right tokens, computed without batches, hooks or padding."""
    tokens = BYTES.encode(text) or [BYTES.end_of_text]
    with torch.no_grad():
        return gpt(torch.tensor([tokens[-64:]]))[0, -1].softmax(-1)[trial.right].sum().item()


def test_an_effect_is_found_with_its_head_and_the_probabilities_that_the_model_computes():
    gpt = repeating_gpt()
    effects, tried = found_in(gpt)
    found = {effect.title: effect for effect in effects}
    twice = found["A made-up word, twice"]
    assert (twice.off, twice.head, twice.change) == (["head 0.1"], "0.1", "switch head 0.1 off")
    assert twice.weight > 0.99 and twice.means[0] > 0.9 and twice.means[1] < 0.1
    assert twice.texts == 60  # of 72; the others served to choose the head
    assert "such texts" in tried["A quote closes as it opened"] + tried["A colon indents the next line"]
    means = part_means(gpt, windows(REPEATED))
    for effect in effects:
        assert effect.shares[0] == pytest.approx(shares(gpt, effect.trial, effect.trial.text), abs=1e-5)
        with replaced(gpt, {name: means[name] for name in effect.off}):
            after = shares(gpt, effect.trial, effect.trial.changed)
        # Only listed tokens count; a token that is not listed has less than a twentieth.
        assert effect.shares[1] == pytest.approx(after, abs=1e-5) or (effect.shares[1] == 0 and after < 0.05)


@pytest.mark.parametrize("context", [5, 8, 16, 32, 64])  # some are shorter than the texts
@pytest.mark.parametrize("tokenizer", [BYTES, train_bpe([CODE], 400)], ids=["bytes", "bpe"])
@pytest.mark.parametrize("make", [random_gpt, lambda config: GPT(config).eval()], ids=["random", "new"])
def test_an_untrained_model_has_no_effects(context, tokenizer, make):
    for family in ({}, GPT2):
        config = GPTConfig(tokenizer.vocab_size, context, num_layers=2, num_heads=2, embed_dim=32, **family)
        effects, tried = found_in(make(config), tokenizer, CODE)
        assert not effects and len(tried) == len(experiments.EXPERIMENTS)


@pytest.mark.parametrize("tokens", [None, 300, 900])
def test_the_source_of_each_text_holds_what_its_answer_depends_on(tokens):
    tokenizer = train_bpe([CODE], tokens) if tokens else BYTES
    config = GPTConfig(tokenizer.vocab_size, context_length=128, num_layers=1, num_heads=1, embed_dim=16)
    words = "".join(f"{a}{b}{c} " for a in "abcdefgh" for b in "ijkl" for c in "mnop")
    material = experiments.Material(GPT(config), tokenizer, {}, words)
    twice, quotes, colons = (list(propose(material)) for propose in experiments.EXPERIMENTS)
    assert min(map(len, (twice, quotes, colons))) >= experiments.MADE_UP

    def source(trial):
        return tokenizer.label(tokenizer.encode(trial.text)[trial.source])

    for trial in twice:
        word = trial.text[: trial.text.index(" ", 1)]
        assert (trial.text + trial.answer).replace(word, "", 1) in word and source(trial) == trial.answer
    for number, trial in enumerate(quotes):
        quote = "'\""[number % 2]
        changed = [one for one, other in zip(trial.text, trial.changed, strict=True) if one != other]
        assert quote in source(trial) and trial.answer == quote and changed == [quote]
    assert all(" " in source(trial) and not source(trial).strip(":) \n") for trial in colons)


@pytest.mark.parametrize("source, head", [(2, "0.1"), (3, None)])
def test_the_named_head_is_one_that_the_model_needs_not_one_that_only_looks_at_the_source(source, head, monkeypatch):
    gpt = repeating_gpt()  # at the last of ten tokens its head 0.1 reads token 2
    queries, keys, _ = gpt.blocks[0].attention.qkv_proj.weight.split(192)
    with torch.no_grad():  # head 0.0 looks at the source more clearly, but writes nothing
        queries[:64, 64:128] = 8 * torch.eye(64).roll(source - 9, 0)
        keys[:64, 64:128] = 4 * torch.eye(64)

    def copies(texts):
        recorded = BYTES.encode(texts.recorded)
        for start in range(0, 11 * experiments.MADE_UP, 11):
            *tokens, following = recorded[start : start + 11]
            yield experiments.Trial(BYTES.decode(tokens), [following], "", BYTES.decode(tokens[:1]), source)

    monkeypatch.setattr(experiments, "EXPERIMENTS", {copies: experiments.Experiment("A copy", "", "", "", "")})
    (effect,), _ = found_in(gpt)
    assert effect.head == head and (effect.weight > 0.99) == (head is not None)
