"""The page in a real browser, offline: what a user does with it and then sees."""

import io
import math
import re
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.image import imread
from numpy.testing import assert_allclose

from model.files import write_atomically
from model.glass import open_run
from model.pages.images import COLOURS
from model.pages.learning import learning
from model.pages.page import run_page
from tests.command_lines import tells
from tests.measurements import learned_recording
from tests.model.pages.browsing import (
    address,
    click,
    colours,
    place,
    point_at,
    press,
    resize,
    settle,
    shares,
    slide,
    unnamed,
    until,
    wait_for,
)
from tests.model.pages.conftest import NO_TOUR

pytestmark = pytest.mark.slow

STEPS = [0, 1, 2, 4, 8, 16, 32]
LABELS = ["for", " i", " in", " range", "(", "10", "):", "\n", "    ", "print"] * 2
snapshot_steps = partial(learned_recording, labels=LABELS, steps=STEPS)
HISTORY = snapshot_steps()


def shades(page):
    """The background of each token of the text, white if it has none, (T, 3)."""
    found = colours(page.locator("#tokens span"))
    return np.array([[1, 1, 1] if colour[3:] == [0] else np.array(colour[:3]) / 255 for colour in found])


def inks(shown):
    """The colours that pictures have for these values between 0 and 1, (T, 3)."""
    return LinearSegmentedColormap.from_list("ink", COLOURS)(shown)[:, :3]


def test_badges_are_green_or_red_and_the_manual_has_their_figures(open_page):
    assert open_page(HISTORY).locator("#fidelity.good, #causality.good").count() == 2
    page = open_page(snapshot_steps(causality=0.25, fidelity=math.nan))
    assert page.locator("#fidelity.bad, #causality.bad").count() == 2
    page.keyboard.press("?")
    assert all(figure in page.inner_text("#manual") for figure in ("2.5e−1", "not a number"))


def test_a_square_has_the_colour_of_its_weight_and_the_readout_its_figure(open_page):
    page = open_page(HISTORY, hash_="#probe=text&head=1.1&step=8&theme=light")
    recorded = HISTORY.maps(8)["text"][1, 1].astype(float)
    squares = [(0, 0), (7, 3), (19, 0), (19, 18), (3, 12)]
    page.mouse.move(0, 0)
    x, y = np.array([place(page, *square) for square in squares], int).T
    drawn = imread(io.BytesIO(page.screenshot()))[y, x, :3]
    assert_allclose(drawn, inks(np.sqrt([recorded[square] for square in squares])), atol=0.03)
    for query, key in squares:
        point_at(page, query, key)
        shown = page.inner_text("#readout")
        if key > query:
            assert "later" in shown and not shares(shown)
        else:
            assert tells(shown, f"token {query} itself" if key == query else f"token {query} {key}")
            assert shares(shown) == [pytest.approx(recorded[query, key], abs=0.006)]


def test_the_text_is_shaded_for_the_chosen_token_or_the_one_under_the_pointer(open_page):
    page = open_page(HISTORY, hash_="#probe=text&head=1.0&step=16&token=3")
    weights = np.sqrt(HISTORY.maps(16)["text"][1, 0].astype(float))
    spans, chosen = page.locator("#tokens span"), page.locator("#tokens .chosen")

    def check(expected, token):
        assert_allclose(shades(page), inks(expected), atol=0.04)
        assert chosen.get_attribute("data-index") == str(token)

    check(weights[3], 3)
    spans.nth(11).hover()
    check(weights[11], 11)
    page.mouse.move(0, 0)
    check(weights[3], 3)
    click(page, "#tokens span >> nth=11")
    page.mouse.move(0, 0)
    press(page, "Escape")
    assert (shades(page) == 1).all()


def test_invalid_addresses_are_ignored(open_page):
    page = open_page(HISTORY, hash_="#step=999999&head=9.9&token=77&probe=none&scale=x&run=5&against=3.x&%%%=&=&step=")
    assert page.inner_text("#slide-a output") == "step 32"


def test_two_snapshots_are_shown_side_by_side_until_the_comparison_is_ended(open_page):
    page = open_page(HISTORY, hash_="#probe=text&head=0.0&step=32&against=2")
    assert page.inner_text("#stage-title") == "Layer 0, head 0, A: step 32"
    assert page.locator("#lenses h3:visible").all_inner_texts() == ["A: step 32", "B: step 2"]
    assert not unnamed(page)
    point_at(page, 9, 8)
    expected = [HISTORY.maps(step)["text"][0, 0, 9, 8] for step in (32, 2)]
    assert_allclose(shares(page.inner_text("#readout")), expected, atol=0.006)
    assert page.inner_text("#slide-b output") == "B: step 2"
    click(page, "#compare")
    assert page.is_hidden("#slide-b") and page.inner_text("#stage-title") == "Layer 0, head 0"


def test_heads_are_marked_from_the_step_at_which_they_formed(open_page):
    page = open_page(HISTORY, hash_="#score=previous_token")
    marks, formed = page.locator(".thumb").first.locator(".marks"), HISTORY.formation["previous_token"]["0.0"]
    assert formed in STEPS[1:-1]
    before = STEPS[STEPS.index(formed) - 1]
    label = f"previous token: head 0.0 begins to form between steps {before} and {formed}"
    click(page, f"#flags [aria-label^='{label}']")
    assert address(page)["step"] == str(formed) and address(page)["head"] == "0.0"
    for at, step in enumerate(STEPS):
        slide(page, at)
        assert ("P" in marks.inner_text()) == (step >= formed)


def test_steps_heads_probes_squares_and_tokens_can_be_chosen_with_the_keyboard(open_page):
    page = open_page(HISTORY, hash_="#probe=text&head=0.0")
    press(page, "ArrowLeft")
    assert address(page)["step"] == "16"
    press(page, "ArrowDown", "p")
    kept = address(page)
    assert (kept["head"], kept["probe"]) == ("0.1", "repeated")
    page.locator("#over").press("ArrowUp")
    assert page.inner_text("#readout") == page.inner_text("#live") != ""
    page.locator("#grid dfn").first.press("Enter")  # the help opens at the word
    assert page.is_visible("#manual")
    press(page, "Escape", "Escape")
    press(page.locator("#tokens"), "ArrowLeft")
    assert address(page)["token"] == "18" and address(page)["step"] == "16"


def boxes(page, selector):
    """Left, top, right and bottom of each element, (N, 4)."""
    corners = "all => all.map((e) => e.getBoundingClientRect()).map((b) => [b.x, b.y, b.right, b.bottom])"
    return np.array(page.locator(selector).evaluate_all(corners))


@pytest.mark.parametrize("layers, count", [(6, 3), (12, 12)])
def test_text_map_and_heads_are_in_view_together_and_the_layout_fits_every_width(open_page, layers, count):
    page = open_page(learned_recording(layers, count, (LABELS * 4)[:64], [0, 32]))
    for width, height in ((1280, 900), (1366, 768)):
        resize(page, width, height)
        thumbs = () if layers == 12 else (".thumb",)  # so many heads need scrolling
        for part in ("#text", "#coming", "#says", "#stage", "#panes", *thumbs):
            found = boxes(page, part)
            assert (found[:, :2] >= 0).all() and (found[:, 2:] <= [width, height]).all(), part
        panes = boxes(page, "#panes")
        assert (panes[:, 2:] - panes[:, :2] >= 300).all()
    resize(page, 1280, 720)
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    assert page.evaluate("scrollY") > 100
    (stage,), (kept,) = boxes(page, "#stage"), boxes(page, "#kept-in-sight")
    assert kept[1] == 0 and kept[3] <= stage[1] < 260  # model and map stay in view while the page scrolls
    click(page, "#compare")
    for width in (390, 1280, 2200):
        resize(page, width, 900)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = boxes(page, ".thumb")
        assert (found[:, 2] - found[:, 0]).min() >= 20


def test_a_phone_shows_text_next_tokens_map_and_sentence_in_this_order_with_large_buttons(open_page):
    page = open_page(HISTORY, width=400, height=800, touch=True)
    found = boxes(page, "main > section:visible")
    ids = page.locator("main > section:visible").evaluate_all("all => all.map((e) => e.id)")
    assert ids[:4] == ["text", "coming", "stage", "says"]
    assert (found[1:, 1] >= found[:-1, 3]).all() and found[:, 2].max() <= 400
    small = page.locator(":is(button, select, input):visible:not(#next *)").evaluate_all(
        "all => all.filter((e) => Math.min(e.clientWidth, e.offsetHeight) < 42).map((e) => e.outerHTML)"
    )
    assert not small


# The part of the page with the focus and its corner, and the left edge and vertical middle of the focused element.
FOCUSED = """() => {
  const part = document.activeElement.closest("header, nav, section, #changed, details");
  const [outer, inner] = [part, document.activeElement].map((e) => e?.getBoundingClientRect());
  return part && [part.id || part.tagName, outer.x, outer.y + scrollY, inner.x, (inner.y + inner.bottom) / 2 + scrollY];
}"""


@pytest.mark.parametrize("width, hash_", [(820, ""), (400, "#text=surprise"), (1280, "#against=0")])
def test_the_tab_key_moves_from_left_to_right_and_top_to_bottom(open_page, width, hash_):
    page = open_page(HISTORY, width=width, height=768, hash_=hash_)
    stops = []
    page.keyboard.press("Tab")
    while found := page.evaluate(FOCUSED):
        stops.append(found)
        page.keyboard.press("Tab")
    assert len(stops) > 20
    parts = list(dict.fromkeys((name, x, y) for name, x, y, *_ in stops))
    assert parts == sorted(parts, key=lambda part: (round(part[2]), part[1]))
    assert {"text", "learning", "lens", "attribution", "ablation"} <= {name for name, *_ in parts}
    for one, other in pairwise(stops):
        # Within a part: to the right in the same line, or further down. "model" scrolls to the focused element.
        if one[0] == other[0] != "model":
            assert other[4] > one[4] + 6 or (abs(other[4] - one[4]) <= 6 and other[3] > one[3]), (one, other)


def luminance(colour):
    """Relative luminance, as WCAG 2 defines it."""
    rgb = np.array([float(x) / 255 for x in re.findall(r"[\d.]+", colour)[:3]])
    return float(np.where(rgb <= 0.03928, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_theme_follows_the_system_until_it_is_switched_and_both_themes_have_contrast(open_page, theme):
    page = open_page(HISTORY, theme=theme, hash_="#probe=text&head=0.0&token=9")

    def contrast(one, other):
        low, high = sorted(map(luminance, (one, other)))
        return (high + 0.05) / (low + 0.05)

    def style(selector, name):
        return page.locator(selector).first.evaluate("(e, name) => getComputedStyle(e)[name]", name)

    assert (luminance(style("body", "backgroundColor")) > 0.5) == (theme == "light")
    assert contrast(style("#compare", "borderTopColor"), style("body", "backgroundColor")) >= 3
    for head in range(6):
        click(page, f".thumb >> nth={head}")
        for back, ink in page.locator("#tokens span[style*=background]").evaluate_all(
            "spans => spans.map((s) => getComputedStyle(s)).map((s) => [s.backgroundColor, s.color])"
        ):
            assert back == "rgba(0, 0, 0, 0)" or contrast(back, ink) >= 4.5
    click(page, "#theme")
    assert (luminance(style("body", "backgroundColor")) > 0.5) == (theme == "dark")
    assert style("html", "colorScheme") == page.get_attribute("html", "data-theme")  # of scroll bars
    backs = []
    for forced in ("active", "none"):  # with the system's few colours a bar is still seen
        page.emulate_media(forced_colors=forced)
        backs.append(style("#next .track i", "backgroundColor"))
    assert backs[0] == backs[1]
    page.add_style_tag(content="#curve { width: 200px }")  # as on paper: nothing draws the chart again
    curve, point = (page.locator(f"#curve{part}").last.bounding_box() for part in ("", " circle"))
    assert point["x"] + point["width"] <= curve["x"] + curve["width"]


# A page that looks for a newer one every 0.2 seconds.
HASTY = f"{NO_TOUR}; const interval = setInterval; window.setInterval = (act, every) => interval(act, every / 20)"


def test_the_page_of_a_running_run_reloads_keeps_the_view_and_says_how_the_run_ended(open_file, tmp_path):
    path = tmp_path / "report.html"

    def write(steps, state):
        history = replace(HISTORY, snapshots=HISTORY.snapshots[:steps])
        write_atomically(path, run_page("a run", history, state=state).encode())

    write(4, "running")
    page = open_file(path, script=HASTY)
    settle(page)
    page.click("[aria-label^='layer 1, head 1']")
    slide(page, 2)
    page.evaluate("scrollTo(0, 300)")
    page.evaluate("window.isOld = true")
    page.wait_for_timeout(600)
    assert page.evaluate("window.isOld")  # it does not reload while the file is the same
    with page.expect_event("load"):
        write(5, "running")
    settle(page)
    kept = address(page)
    assert (kept["head"], kept["step"]) == ("1.1", "2")  # a user at an earlier step stays there
    assert page.get_attribute("#slide-a input", "max") == "4"
    assert page.evaluate("scrollY") == pytest.approx(300, abs=30)
    slide(page, 4)
    click(page, "#help")
    write(6, "ended")
    page.wait_for_timeout(600)
    assert page.is_visible("#manual")  # a reader of the manual is not interrupted
    page.keyboard.press("Escape")
    wait_for(page, "#status", "ended")
    # A user at the last step gets the new last step.
    assert page.inner_text("#slide-a output") == "step 16" and "head=1.1" in page.url
    old = re.sub(r'"written":[\d.]+', '"written":1', run_page("a run", HISTORY, state="running"))
    assert "died" in open_file(old).locator("#status").inner_text()


DRAWN_AT = """new MutationObserver((_, observer) => {
  if (document.documentElement.dataset.drawn === undefined) return;
  window.drawnAt = performance.now();
  observer.disconnect();
}).observe(document, { subtree: true, attributes: true })"""


@pytest.mark.parametrize("known", ["blocking", "unknown-to-firefox"])
def test_a_reload_paints_nothing_before_the_view_is_drawn(open_page, known):
    text = run_page("a run", HISTORY, state="running").replace("blocking=", f"{known}=")
    page = open_page(text, hash_="#step=4&head=1.1", script=DRAWN_AT)
    page.reload()
    settle(page)
    until(page, "performance.getEntriesByName('first-contentful-paint').length")
    assert page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime >= drawnAt")
    assert page.inner_text("#slide-a output") == "step 4"


def test_the_page_of_a_run_that_has_just_begun_shows_its_chart_and_no_maps(open_file):
    learned = learning([{"step": 1, "train/loss": 4.0}, {"step": 9, "train/loss": 3.0}], [], "", {})
    page = open_file(run_page("a run", learning=learned, state="running"))
    page.locator("#curve path").wait_for(state="attached")
    assert page.inner_text("#story") == learned["story"] != "" and page.is_hidden("#main")
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") == "dark"


def test_two_readings_in_one_notebook_do_not_affect_each_other(run_dir, open_file):
    cells = [open_run(run_dir).read(text)._repr_html_() for text in ("the model reads", "which word")]
    notebook = f"<!doctype html><body>{''.join(cells)}<div hidden>{cells[0]}</div>"  # the last cell is collapsed
    page = open_file(notebook, width=1300, height=1600)
    one, other, hidden = (page.frame_locator("iframe").nth(number) for number in range(3))
    hidden.locator("html[data-drawn]").wait_for(state="attached")
    before = other.locator("body").inner_text()
    one.locator("#grid button").last.click()  # a frame's address cannot be changed, which must be no error
    one.locator("body").press("ArrowRight")
    assert other.locator("body").inner_text() == before
    assert page.locator("iframe").first.get_attribute("sandbox") == "allow-scripts allow-downloads"
