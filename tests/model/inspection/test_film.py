"""The film: its words can be typed, and its frames hold what the model computes of each word alone."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from data.tokenizers import byte_level, train_bpe
from model.inspection.film import BEGIN, SOURCE, WORD, WORDS, film_texts, take_frame, tell_film
from model.inspection.reading import read
from model.inspection.texts import Texts
from tests.by_hand import ByHand
from tests.gpts import CONFIGS, induction_gpt, random_gpt
from tests.measurements import WORDS as FILM
from tests.measurements import raised
from tests.model.inspection.test_experiments import CODE

T = WORD + BEGIN
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize("tokenizer", [byte_level(), train_bpe([CODE], 900)], ids=["bytes", "bpe"])
@pytest.mark.parametrize("text", [CODE, LETTERS])
def test_words_are_distinct_tokens_that_begin_again_and_can_be_typed(tokenizer, text):
    words = film_texts(tokenizer, text, T)
    assert words.tokens.shape == (WORDS, T + 1) and len({*map(tuple, words.tokens.tolist())}) == WORDS
    for tokens, labels in zip(words.tokens.tolist(), words.labels, strict=True):
        assert len({*tokens}) == WORD and tokens[WORD:] == tokens[: BEGIN + 1]
        assert tokenizer.encode(tokenizer.decode(tokens[:T])) == tokens[:T]
        assert "".join(labels).startswith(" ") == (text == CODE) and {*"".join(labels)} <= {*LETTERS, " "}
    assert torch.equal(words.tokens, film_texts(tokenizer, text, 99).tokens)  # always the same
    assert film_texts(tokenizer, text, T - 1) is film_texts(tokenizer, "abc", T) is None


@torch.no_grad()
@pytest.mark.parametrize("name", ["modern", "gpt2", "grouped heads", "window", "every norm and bias"])
def test_a_frame_holds_what_the_model_computes_of_each_word(name):
    gpt = random_gpt(CONFIGS[name])
    config = gpt.config
    frame = take_frame(gpt, replace(FILM, attention_window=config.window))
    for word, (*tokens, right) in enumerate(FILM.tokens.tolist()):
        reading = read(gpt, Texts.of(tokens, attention_window=config.window))
        exact = ByHand(gpt, tokens)
        assert_close(frame.maps[word], reading.maps)
        assert_close(frame.bits[word, :-1], reading.surprise)
        assert frame.chance[word].item() == pytest.approx(reading.logits[-1].softmax(-1)[right].item(), rel=1e-4)
        assert frame.top[word, -1].tolist() == [text for text, _ in reading.top()]
        parts = reading.attribution(of=right)
        for layer, earlier in ((0, 1), (1, 0)):
            part = f"head {layer}.{earlier}"
            assert frame.parts[word, layer, earlier].item() == pytest.approx(parts[part], rel=1e-3, abs=1e-4)
            found = frame.raises[word, -1, :, layer, earlier].tolist()
            written = exact.written()[part]
            expected = [raised(exact, head, written, -1, SOURCE) for head in range(config.num_heads)]
            assert found == pytest.approx(expected, rel=1e-3)
    assert not frame.raises[:, 0].any() and not frame.raises[:, 1, :, 1:].any()


def test_the_film_names_the_heads_of_an_induction_circuit_or_what_is_missing():
    tokenizer = byte_level()
    words = film_texts(tokenizer, LETTERS, 64)
    film = tell_film(take_frame(induction_gpt(), words))
    assert (film.finder, film.writers, film.missing) == ((1, 2), ((0, 1),), None)
    untrained = tell_film(take_frame(random_gpt(induction_gpt().config, std=0.02), words))
    assert untrained.finder is None and not untrained.writers and untrained.missing
    changed = induction_gpt()
    changed.blocks[1].attention.register_forward_pre_hook(lambda _, inputs: inputs[0] + 0.1)
    assert "keys" in tell_film(take_frame(changed, words)).missing
