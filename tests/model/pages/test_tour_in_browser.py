"""The tour, in a real browser, of a model in which one head builds on another."""

import re

import pytest

from model.gpt import GPT
from tests.gpts import induction_gpt
from tests.model.pages.browsing import address, click, in_page, press, resize, settle, shares, slide, unnamed, wait_for
from tests.model.pages.conftest import NO_TOUR
from tests.model.pages.model_pages import LETTERS, page_of

pytestmark = pytest.mark.slow

GPT_ = induction_gpt()
UNTRAINED = GPT(GPT_.config).eval()
# Ten seconds from the first of three steps to the last become half a second.
FAST_FILM = f"{NO_TOUR}; const wait = setTimeout; window.setTimeout = (act, ms) => wait(act, ms === 5000 ? 250 : ms)"
STORAGE = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError') } })"


@pytest.fixture
def first_visit(open_page):
    """Opens the page of a model in a browser that has seen no page yet."""

    def open_(script="", hash_=""):
        page = page_of(UNTRAINED, GPT_, GPT_, texts=LETTERS, has_film=True)
        return open_page(page, script=script, width=1366, height=768, hash_=hash_)

    return open_


def told(page):
    """Returns the place of the tour, its sentence, and the id of what it highlights."""
    settle(page)
    (toured,) = page.locator(".toured").evaluate_all("all => all.map(({ id }) => id)")
    return page.inner_text("#tour-place"), page.inner_text("#tour-says"), toured


def test_the_tour_shows_the_circuit_of_the_model_and_restores_the_page(first_visit):
    page = first_visit()
    right = in_page(page, "state", "data.film.right")
    expected = [
        ("stage", "head 1.2 100% induction"),
        ("coming", f"head 1.2 “{right}” 100%"),
        ("square", "head 0.1 head 1.2"),
        ("coming", f"head 0.1 “{right}”"),
        ("controls", "▶"),
    ]
    for number, (what, parts) in enumerate(expected, 1):
        if number > 1:
            page.keyboard.press("ArrowRight")
        wait_for(page, "#tour-place", f"{number} of 5")
        _, sentence, toured = told(page)
        sentence = re.sub("[\u2068\u2069]", "", sentence).replace("Head", "head")
        assert toured == what and all(part in sentence for part in parts.split()), sentence
    press(page.locator("#tour button").nth(1), "ArrowLeft")
    wait_for(page, "#tour-place", "4 of 5")
    click(page, "#tour button >> text=skip")
    assert page.is_hidden("#tour") and page.is_hidden(".toured") and "off" not in address(page)
    page.reload()
    settle(page)
    assert page.is_hidden("#tour")
    click(page, "#tour-start")
    assert told(page)[0] == "1 of 5" and not unnamed(page)
    page.keyboard.press("Escape")
    assert page.is_hidden("#tour")


def test_a_link_opens_its_view_and_only_offers_the_tour(first_visit):
    """An earlier version began the tour, and replaced the text in the page and its address."""
    link = "#typed=abcabc&off=head+0.1&step=8"
    page = first_visit(hash_=link)
    page.reload()
    settle(page)
    assert page.is_hidden("#tour") and page.is_visible("#tour-start")
    assert page.input_value("#box") == "abcabc" and page.url.endswith(link)
    assert in_page(page, "render", "shown.off") == ["head 0.1"]
    click(page, "#tour-start")
    assert told(page)[0] == "1 of 5" and page.input_value("#box") != "abcabc"
    page.fill("#box", "my own words")  # what the user does ends the tour
    settle(page)
    assert page.is_hidden("#tour") and page.input_value("#box") == "my own words"
    click(page, "#undo")
    click(page, "#undo")
    assert page.input_value("#box") == "abcabc"  # the text before the tour


def test_a_model_without_such_heads_has_no_tour_and_a_film_that_says_what_is_missing(open_page):
    page = open_page(page_of(UNTRAINED, texts=LETTERS, has_film=True), script="")
    assert page.is_hidden("#tour") and page.is_hidden("#tour-start")
    click(page, "#film button")
    assert in_page(page, "state", "data.film.missing") in page.inner_text("#film")


def test_the_film_plays_every_step_asks_where_heads_form_and_ends_with_the_live_model(first_visit):
    page = first_visit(FAST_FILM)
    assert page.input_value("#box") == in_page(page, "state", "data.film.text") and "100%" in page.inner_text("#film")
    assert page.locator("#arrows .arc").count() == 1
    page.click("#play")
    wait_for(page, "#film", "What does head 1.2 do now?")
    assert in_page(page, "state", "state.at") == 1  # step 0 has passed; the film waits here
    click(page, "#film button")
    chance, raises = shares(page.inner_text("#film"))[-1], in_page(page, "render", "shown.sides[0].measured.raises")
    assert "head 0.1" in page.inner_text("#film") and chance == 1 and max(raises) == raises[1] > 10
    click(page, "#film button")
    wait_for(page, "#film", "one by one and together")
    assert in_page(page, "state", "state.at") == 2 and page.is_visible("#box")
    for head in (0, 1):
        click(page, f"#film button >> nth={head}")
        assert shares(page.inner_text("#film"))[0] < 0.1 and page.locator("#arrows .arc").count() == 0
        click(page, f"#film button >> nth={head}")
    slide(page, 0)  # by hand: the word as recorded, where the model knows nothing
    assert shares(page.inner_text("#film"))[0] < 0.01
    assert in_page(page, "render", "shown.typing")  # this page holds the weights of each of its steps


def test_without_storage_the_tour_begins_and_with_reduced_motion_the_film_goes_on_only_when_asked(first_visit):
    page = first_visit(f"{STORAGE}; matchMedia = (query) => ({{ matches: query.includes('reduce') }})")
    assert page.is_hidden("#tour")
    resize(page, 400, 768)
    click(page, "#tour-start")
    assert told(page)[0] == "1 of 5"
    for _ in range(5):
        box = page.locator("#tour").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 400
        click(page, "#tour button >> nth=1")
    assert page.is_hidden("#tour")
    click(page, "#play")
    page.wait_for_timeout(300)
    assert in_page(page, "state", "state.at") == 0
    click(page, "#play")  # which asks for the next step now
    assert in_page(page, "state", "state.at") == 1
