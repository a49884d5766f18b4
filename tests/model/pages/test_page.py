"""The page as a file: its content, its size limit, and that no text in it becomes markup."""

import html
import json
import re
from dataclasses import replace

import pytest
from numpy.testing import assert_allclose

from model.gpt import GPT
from model.inspection.film import SOURCE
from model.inspection.recording import Recording
from model.pages.describe import describe_heads, opening_view
from model.pages.page import run_page, shown_steps
from tests.command_lines import mistake, tells
from tests.gpts import induction_gpt
from tests.html_pages import HOSTILE, Page
from tests.measurements import learned_recording
from tests.model.pages.model_pages import LETTERS, TOKENIZER, recording_of

HISTORY = learned_recording()


def read(recording):
    return Page(run_page("a title", recording))


@pytest.mark.parametrize("is_good", [True, False])
def test_the_page_has_maps_scores_checks_and_details_of_every_step_and_opens_with_the_clearest_head(is_good):
    history = HISTORY if is_good else learned_recording(seed=1, fidelity=2e-5, causality=0.1)
    page = read(history)
    run = page.data["run"]
    assert run["uniform"] == pytest.approx(history.snapshots[-1].heads.uniform)
    assert run["formation"] == history.formation
    assert run["opening"] == opening_view(history)
    for i, (shown, snapshot) in enumerate(zip(run["snapshots"], history.snapshots, strict=True)):
        for name, score in snapshot.scores.items():
            assert_allclose(shown["scores"][name], score, atol=5.1e-4)
        assert is_good == (not shown["problems"])
        for number, (kind, reading) in enumerate(history.readings(shown["step"]).items()):
            assert_allclose(page.maps(i, number), reading.maps, atol=0.004)
            assert json.loads(page.block(f"{kind}-figures", shown["step"])) == reading.figures
        assert json.loads(page.block("descriptions", shown["step"])) == describe_heads(snapshot)


def test_a_page_that_is_written_again_packs_only_new_steps(monkeypatch):
    history, packed, readings = learned_recording(), [], Recording.readings
    monkeypatch.setattr(Recording, "readings", lambda self, step: packed.append(step) or readings(self, step))
    early = replace(history, snapshots=history.snapshots[:3])
    read(early)
    assert {*packed} == {0, 1, 2}
    early.snapshots.append(history.snapshots[3])
    packed.clear()
    page = read(early)
    assert {*packed} == {4} and len(page.data["run"]["snapshots"]) == 4


def test_hostile_text_does_not_become_markup():
    labels = HOSTILE[:12]
    page = run_page("</title><script>alert(1)</script>", learned_recording(labels=labels))
    parsed = Page(page)
    assert parsed.data["run"]["probes"][0]["labels"] == labels
    assert parsed.data["title"] == "</title><script>alert(1)</script>"
    assert {name for name in parsed.scripts if not name.startswith("block-")} == {"data", "importmap", "module"}
    assert not parsed.suspicious
    page.encode()  # lone surrogates are escaped


def test_the_page_loads_nothing_and_holds_every_module_that_it_imports():
    page = run_page("a title", HISTORY)
    sources = Page(page).modules
    for text in (page, *sources.values()):
        text = text.replace('"http://www.w3.org/2000/svg"', "")  # the name of a namespace, which is never requested
        assert "http://" not in text and "https://" not in text and "innerHTML" not in text
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert html.unescape(policy).startswith("default-src 'none'")
    assert "browser/scores.js" in sources
    imported = {name for source in sources.values() for name in re.findall(r'"(browser/\S+)"', source)}
    assert imported | {"browser/page.js"} == set(sources)


def test_a_page_that_would_be_too_large_leaves_out_every_second_step_and_never_packs_one_again(monkeypatch):
    history = learned_recording(steps=range(0, 1000, 50))
    assert shown_steps(history) == history.steps
    size = sum(map(len, history.snapshots[-1].packed))
    monkeypatch.setattr("model.pages.page.MAX_MAP_BYTES", 12 * size)
    assert shown_steps(history, wanted=[150]) == [0, 100, 150, *range(200, 950, 100), 950]
    page = read(history)
    assert [shown["step"] for shown in page.data["run"]["snapshots"]] == [*range(0, 950, 100), 950]
    assert tells(page.data["notes"][0], "11 20")
    monkeypatch.setattr("model.pages.page.MAX_MAP_BYTES", size)
    assert shown_steps(replace(history, snapshots=history.snapshots[-1:])) == [950]
    with mistake("fit"):
        read(history)


def test_steps_whose_maps_are_gone_are_left_out(tmp_path):
    learned_recording(folder=tmp_path).path(2).unlink()
    shown = read(Recording.open(tmp_path, "demo")).data["run"]["snapshots"]
    assert [one["step"] for one in shown] == [0, 1, 4, 8]


def test_the_page_has_the_film_its_word_its_heads_and_their_figures_at_each_step():
    models = [(0, GPT(induction_gpt().config).eval()), (4, induction_gpt()), (8, induction_gpt())]
    recording = recording_of(*LETTERS, has_film=True).with_losses(models, TOKENIZER.label)
    recording.snapshots[1] = replace(recording.snapshots[1], readings=None)  # the page lacks the step
    page = read(recording)
    film = page.data["film"]
    assert (film["finder"], film["writers"], film["missing"]) == ("1.2", ["0.1"], None)
    assert film["stops"] == {"writers": 8, "leap": 8}
    assert film["labels"][SOURCE] == film["right"] and "".join(film["labels"]) == film["text"]
    assert page.data["run"]["opening"] == {"head": "1.2", "probe": "word", "score": "induction"}
    word = [labels[:-1] for labels in recording.words.labels].index(film["labels"])
    for step in (0, 8):
        frame = recording.frame(step)
        figures = json.loads(page.block("word-figures", step))
        assert_allclose(figures["chance"], frame.chance[word], rtol=1e-3, atol=1e-6)
        assert_allclose(figures["raises"], frame.raises[word, 1, 2].flatten(), rtol=1e-3, atol=1e-3)
        assert figures["tokens"]["0"] == film["right"] and figures["bits"][-1] is None
