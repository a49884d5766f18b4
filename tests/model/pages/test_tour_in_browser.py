"""The tour, in a real browser, of a model in which one head builds on another."""

import re

import pytest

from model.gpt import GPT
from tests.gpts import induction_gpt, random_gpt
from tests.model.pages.browsing import address, click, in_page, press, settle, unnamed, wait_for
from tests.model.pages.model_pages import LETTERS, page_of

pytestmark = pytest.mark.slow

GPT_ = induction_gpt()
STORAGE = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError') } })"


@pytest.fixture
def first_visit(open_page):
    """Opens the page of models in a browser that has seen no page yet."""

    def open_(*models: GPT, script="", width=1366):
        return open_page(page_of(*models, texts=LETTERS), script=script, width=width, height=768)

    return open_


def told(page) -> tuple[str, str, str]:
    """Returns the place of the tour, its sentence, and the id of what it highlights."""
    settle(page)
    (toured,) = page.locator(".toured").evaluate_all("all => all.map(({ id }) => id)")
    return page.inner_text("#tour-place"), page.inner_text("#tour-says"), toured


def test_the_tour_shows_six_things_of_the_model_and_restores_the_page(first_visit):
    page = first_visit(GPT(GPT_.config).eval(), GPT_)
    effects = in_page(page, "state", "data.experiments.effects")
    answer = next(one["trial"]["answer"] for one in effects if one["title"] == "A made-up word, twice")
    expected = [
        ("editor", "64"),
        ("stage", "head 0.1 100%"),
        ("stage", f"head 1.2 “{answer}” 100%"),
        ("coming", f"head 1.2 “{answer}” 100%"),
        ("square", f"head 0.1 head 1.2 “{answer}” 100%"),
        ("coming", f"step 0 “{answer}” 100% head 1.2 head 0.1 steps 0 and 8"),
    ]
    for number, (what, parts) in enumerate(expected, 1):
        if number > 1:
            page.keyboard.press("ArrowRight")
        wait_for(page, "#tour-place", f"{number} of 6")
        _, sentence, toured = told(page)
        sentence = re.sub("[\u2068\u2069]", "", sentence)
        assert toured == what and all(part in sentence for part in parts.split()), sentence
    last = told(page)
    click(page, ".thumb >> nth=3")  # the page shows what the user does meanwhile, and the tour says so
    assert told(page)[1] != last[1] and in_page(page, "render", "shown.head") == 3
    for key, where in (("ArrowLeft", "5 of 6"), ("ArrowRight", "6 of 6")):
        press(page.locator("#tour button").nth(1), key)
        wait_for(page, "#tour-place", where)
    assert told(page) == last
    press(page, "Enter")  # "done" has the focus
    assert page.is_hidden("#tour") and page.is_hidden(".toured")
    kept = address(page)  # the user's choice, and all else as before
    assert kept["head"] == "0.3" and kept["typed"] == in_page(page, "state", "data.text") and "off" not in kept
    page.reload()
    settle(page)
    assert page.is_hidden("#tour")
    click(page, "#tour-start")
    assert told(page)[0] == "1 of 6" and not unnamed(page, "all.filter((one) => one.closest('#tour'))")
    page.keyboard.press("Escape")
    assert page.is_hidden("#tour")


def test_a_link_opens_its_view_and_only_offers_the_tour(open_page):
    """An earlier version began the tour, and replaced the text in the page and its address."""
    link = "#typed=abcabc&off=head+0.1&step=8"
    page = open_page(page_of(GPT(GPT_.config).eval(), GPT_, texts=LETTERS), script="", hash_=link)
    for _ in range(2):
        assert page.is_hidden("#tour") and page.is_visible("#tour-start")
        assert page.input_value("#box") == "abcabc" and page.url.endswith(link)
        assert in_page(page, "render", "shown.off") == ["head 0.1"]
        page.reload()
        settle(page)
    click(page, "#tour-start")
    assert told(page)[0] == "1 of 6" and page.input_value("#box") != "abcabc"
    page.reload()  # in the middle of the tour
    settle(page)
    assert page.input_value("#box") == "abcabc" and page.url.endswith(link)


def test_text_typed_during_the_tour_is_kept_when_it_continues_or_ends(first_visit):
    page = first_visit(GPT(GPT_.config).eval(), GPT_)
    opening = in_page(page, "state", "data.text")
    assert told(page)[0] == "1 of 6"
    page.fill("#box", "my own words")
    click(page, "#tour button >> text=next")
    assert told(page)[0] == "2 of 6" and page.input_value("#box") == opening
    click(page, "#tour button >> text=skip")
    assert page.input_value("#box") == "my own words" and "typed=my+own+words" in page.url
    page.locator("#box").press("Control+z")  # to the text before it; "back" returns to it
    settle(page)
    assert page.input_value("#box") == opening
    page.go_back()
    settle(page)
    assert page.input_value("#box") == "my own words"
    click(page, "#tour-start")
    assert page.input_value("#box") == opening
    page.fill("#box", "others")
    click(page, ".thumb >> nth=3")
    click(page, "#tour button >> text=skip")
    assert page.input_value("#box") == "others" and in_page(page, "render", "shown.head") == 3
    # Text that the model writes during the tour does not replace the tour's own.
    click(page, "#tour-start")
    page.click("#write")
    page.click("#tour button >> text=next")
    wait_for(page, "#tour-place", "2 of 6")
    assert page.input_value("#box") == opening


def test_the_tour_leaves_out_what_a_model_cannot_do(first_visit):
    page = first_visit(random_gpt(GPT_.config), random_gpt(GPT_.config, 1))
    assert told(page)[0] == "1 of 1"


def test_without_storage_the_tour_begins_only_from_its_button(first_visit):
    page = first_visit(GPT_, script=STORAGE, width=400)
    assert page.is_hidden("#tour")
    click(page, "#tour-start")
    assert told(page)[0] == "1 of 5"  # a run of one step has no sixth stop
    for _ in range(5):
        box = page.locator("#tour").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 400
        click(page, "#tour button >> nth=1")
    assert page.is_hidden("#tour")
