"""The film in the data of a page: the word, its heads and, for each step, what was recorded."""

import json
from dataclasses import replace

import numpy as np

from model.gpt import GPT
from model.inspection.film import SOURCE
from model.pages.page import run_page
from tests.gpts import induction_gpt
from tests.html_pages import Page
from tests.model.pages.model_pages import LETTERS, TOKENIZER, recording_of


def test_a_page_has_the_word_its_heads_and_their_figures_at_each_step():
    gpts = {0: GPT(induction_gpt().config).eval(), 8: induction_gpt()}
    recording = recording_of(*LETTERS, has_film=True).with_losses([*gpts.items()], TOKENIZER.label)
    page = Page(run_page("a title", recording))
    film = page.data["film"]
    assert (film["finder"], film["writers"], film["missing"]) == ("1.2", ["0.1"], None)
    assert film["stops"] == {"writers": 8, "leap": 8}
    assert film["labels"][SOURCE] == film["right"] and "".join(film["labels"]) == film["text"]
    opening = page.data["run"]["opening"]
    assert opening == {"head": "1.2", "probe": "word", "score": "induction"}
    chances = []
    for step in gpts:
        frame = recording.frame(step)
        figures = json.loads(page.block("word-figures", step))
        word = next(i for i, labels in enumerate(recording.words.labels) if labels[:-1] == film["labels"])
        np.testing.assert_allclose(figures["chance"], frame.chance[word], rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(figures["raises"], frame.raises[word, 1, 2].flatten(), rtol=1e-3, atol=1e-3)
        assert figures["tokens"]["0"] == film["right"] and figures["bits"][-1] is None
        chances.append(figures["chance"])
    assert chances[0] < 0.01 and chances[1] > 0.99


def test_a_recording_without_words_or_maps_has_no_film():
    recording = recording_of(*LETTERS).with_losses([(0, induction_gpt())])
    assert Page(run_page("a title", recording)).data["film"] is None
    assert "film" not in Page(run_page("a title", replace(recording, snapshots=[]))).data
