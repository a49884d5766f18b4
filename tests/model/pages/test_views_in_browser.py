"""The views of what was measured beside the maps, in a real browser: surprise, lens, attribution, ablation."""

import json
import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from model.inspection.parts import Change
from model.inspection.recording import Recording
from model.pages.describe import visible
from tests.html_pages import HOSTILE
from tests.measurements import learned_recording
from tests.model.pages.browsing import click, colours, number_in, point_at, press, shares, slide

pytestmark = pytest.mark.slow

STEPS = [0, 4, 16, 64]
LABELS = ["for", " i", " in", "\n", "</td><img src=x>", "\u202eabc", "\x00", " range", "(", "10", ")", ":"]
LAYERS, HEADS = 2, 3
plain_history = partial(learned_recording, labels=LABELS, steps=STEPS, induction=False)
HISTORY = plain_history()


def diverged() -> Recording:
    """The snapshots with no number in their last details that is finite."""

    *others, last = HISTORY.snapshots
    readings = {}
    for kind, one in last.readings.items():
        broken = json.loads(re.sub(r"-?\d+(\.\d+(e-\d+)?|e-\d+)", "null", json.dumps(one.figures)))
        figures = broken | {name: one.figures[name] for name in ("parts", "sublayers", "tokens")}
        readings[kind] = replace(one, figures=figures)
    nothing = Change(math.nan, math.nan)
    ablation = {probe: dict.fromkeys(changes, nothing) for probe, changes in last.ablation.items()}
    heads = replace(last.heads, scores=last.scores | {"sink": np.full((LAYERS, HEADS), math.nan)})
    return replace(HISTORY, snapshots=[*others, replace(last, heads=heads, ablation=ablation, readings=readings)])


def test_each_token_has_the_colour_of_its_surprise_and_tells_what_was_expected_to_pointer_tap_and_keys(open_page):
    page = open_page(HISTORY, hash_="#step=64")
    details = HISTORY.readings(64)["text"].figures
    click(page.locator("#shades button").last)
    depths = [colour[3] for colour in colours(page.locator("#tokens span"))]
    bits = np.array([0.0, *details["bits"][:-1]])
    np.testing.assert_allclose(depths, 0.75 * np.minimum(bits / 10, 1), atol=0.01)

    def check(token):
        place, bits = details["rank"][token - 1] + 1, details["bits"][token - 1]
        told = page.locator("#expected p").inner_text()
        assert re.search(rf"was number {place}, {bits:.1f} bits\.$", told)
        assert visible(details["tokens"][str(details["top"][token - 1][0])]) in told

    page.locator("#tokens span").nth(9).hover()
    check(9)
    click(page.locator("#tokens span").nth(2))
    page.mouse.move(0, 0)
    check(2)
    press(page.locator("#tokens"), "ArrowRight")
    check(3)
    assert page.locator("#expected").get_attribute("aria-live") == "polite"
    told = page.locator("#expected p").inner_text().partition("; the true")[0]
    np.testing.assert_allclose(shares(told), details["top_probability"][2], atol=0.006)
    click(page.locator("#tokens span").first)
    assert "first token" in page.locator("#expected p").inner_text()


def test_the_lens_has_a_cell_for_each_sublayer_and_position_that_tells_its_numbers_to_pointer_and_keys(open_page):
    page = open_page(HISTORY, hash_="#step=64")
    details = HISTORY.readings(64)["text"].figures
    lens = details["lens"]
    rows = page.locator("#lenses table").first.locator("tbody tr")
    assert rows.locator("th").all_inner_texts() == details["sublayers"]
    for row in range(2 * LAYERS + 1):
        likeliest = [visible(details["tokens"][str(token)], 8) for token in lens["token"][row]]
        assert rows.nth(row).locator("td").all_inner_texts() == likeliest
    assert page.locator("#lens img").count() == 0

    # The final prediction's cells for the true token are the darker, the larger its probability.
    probability = lens["probability"][-1][:-1]
    lightness = [sum(colour[:3]) for colour in colours(rows.last.locator("td"))]
    assert lightness[np.argmax(probability)] < lightness[np.argmin(probability)]

    table, readout = page.locator("#lenses table").first, page.locator("#lenses .readout").first
    rows.nth(1).locator("td").nth(7).hover()
    assert readout.inner_text().startswith("After attention 0, reading 7")
    assert f"{lens['divergence'][1][7]:.1f} bits" in readout.inner_text()
    rows.last.locator("td").last.hover()
    assert "final prediction" in readout.inner_text() and "true next" not in readout.inner_text()
    table.locator("td[tabindex='0']").press("ArrowUp")
    page.keyboard.press("ArrowRight")
    assert readout.inner_text().startswith("After attention 1, reading 1")
    press(page, "Enter")
    assert "token=1" in page.url and table.locator("td.chosen").count() == 2 * LAYERS + 1


def test_the_attribution_is_that_of_the_chosen_token_and_adds_up(open_page):
    page = open_page(HISTORY, hash_="#step=16&token=4")
    details = HISTORY.readings(16)["text"].figures
    logits = [row[4] for row in details["attribution"]]
    column = dict(zip(details["parts"], logits, strict=True))
    rows = page.locator("#parts tbody tr")
    shown = {row.locator("th").inner_text(): number_in(row.locator("td").last.inner_text()) for row in rows.all()}
    assert list(shown) == sorted(column, key=lambda part: -abs(column[part]))
    np.testing.assert_allclose([shown[part] for part in column], list(column.values()), atol=0.006)
    total = number_in(page.locator("#parts tfoot td").last.inner_text())
    assert total == pytest.approx(sum(column.values()), abs=0.01)
    error = f"{details['attribution_error']:.0e}".replace("e-0", "e−")
    assert error in page.locator("#attribution-badge.good").inner_text()
    click(page.locator("#parts").get_by_role("button", name="head 1.2", exact=True))
    assert "head=1.2" in page.url
    press(page.locator("#tokens"), "ArrowRight")
    assert page.locator("#attribution-what").inner_text().startswith("Reading 5")


def test_the_loss_without_each_part_is_told_with_its_error_the_most_missed_first(open_page):
    page = open_page(HISTORY, hash_="#step=16&head=1.0")
    snapshot = HISTORY.snapshots[2]
    rows = page.locator("#ablations tbody tr")
    changes = snapshot.ablation["text"]
    assert rows.locator("th").all_inner_texts() == sorted(changes, key=lambda part: -changes[part].rise)
    for row in rows.all():
        part = row.locator("th").inner_text()
        shown = [[number_in(one) for one in cell.split(" ± ")] for cell in row.locator("td").all_inner_texts()[:2]]
        np.testing.assert_allclose(shown, [snapshot.ablation[kind][part] for kind in ("text", "repeated")], atol=6e-4)
    expected = [snapshot.ablation[kind]["head 1.0"].rise for kind in ("text", "repeated")]
    told = re.findall(r"([+−][\d.]+) ±", page.locator("#part").inner_text())
    np.testing.assert_allclose(list(map(number_in, told)), expected, atol=6e-4)


def test_a_change_within_two_errors_is_no_clear_effect_and_a_step_without_losses_names_those_that_have(open_page):
    *others, before, last = HISTORY.snapshots
    unclear = {kind: {part: Change(0.01, 0.02) for part in changes} for kind, changes in last.ablation.items()}
    snapshots = [*others, replace(before, ablation=None), replace(last, ablation=unclear)]
    page = open_page(replace(HISTORY, snapshots=snapshots))
    assert page.locator("#part").inner_text().count("no clear effect") == 2
    slide(page, 2)
    assert page.locator("#ablations").is_hidden()
    click(page.locator("#measured-at button").last)
    assert "step=64" in page.url and page.locator("#ablations").is_visible()


def test_a_diverged_model_has_dashes_in_place_of_numbers(open_page):
    page = open_page(diverged(), hash_="#text=surprise&token=2&score=sink")
    assert {*page.locator("#ablations td").all_inner_texts()} == {"no clear effect"}
    for part in ("#expected", "#parts tbody", "#parts tfoot"):
        assert "–" in page.locator(part).inner_text()
    row = page.locator("#card dt", has_text="sink").locator("xpath=following-sibling::dd[1]")
    assert row.inner_text().strip() == "–"
    assert page.locator("#attribution-badge.bad").is_visible()
    page.locator("#lenses td").first.hover()
    assert "–" in page.locator("#lenses .readout").first.inner_text()
    assert not re.search(r"NaN|undefined|null|Infinity", page.locator("body").inner_text())
    slide(page, 0)
    assert "–" not in page.locator("#card").inner_text()


def test_hostile_text_is_shown_as_text(open_page):
    labels = [*HOSTILE, "a", "b", "c", "d"]
    page = open_page(plain_history(labels=labels), hash_="#probe=text&token=4&text=surprise")
    assert page.title() == page.locator("h1").inner_text() == "A title & <more>"
    assert page.locator("#main img, #tokens script").count() == 0
    texts = page.locator("#tokens span").evaluate_all("spans => spans.map((span) => span.textContent)")
    assert texts[:4] == HOSTILE[:4] and texts[5] == HOSTILE[5]
    assert texts[4] == "\\u202eright-to-left" and texts[6] == "👩\\u200d👩\\u200d👧"
    assert texts[7:9] == ["\\u0000", "\\ud800"] and len(texts[9]) == 60 and texts[10:12] == ["↵\n", "∅"]
    assert texts[12:15] == HOSTILE[12:15] and texts[15] == "\\u2028"
    told = page.locator("#expected p").inner_text()
    assert "\u202e" not in told and "\\u202eright" in told
    assert "\\u0000" in page.locator("#lenses thead").first.inner_text()
    for key in (1, 4, 9):
        point_at(page, 19, key)
        assert f"(token {key})" in page.locator("#readout").inner_text()
    for part in ("#lens", "#attribution", "#expected", "#readout"):
        assert not set(page.locator(part).inner_text()) & {"\u202e", "\x00"}


def test_one_snapshot_of_one_head_on_two_tokens_is_enough(open_page):
    one = learned_recording(1, 1, ["a", "b"], [32], induction=False)
    page = open_page(one)
    for part in ("#controls", "#slide-a", "#learning", "#compare"):
        assert page.locator(part).is_hidden()
    assert page.locator("#card").is_visible() and page.locator(".thumb").count() == 1
    page = open_page(one, hash_="#probe=text&text=surprise&token=1&order=sink&against=32")
    assert page.locator("#tokens span").count() == 2
    assert "the last token" in page.locator("#attribution-what").inner_text()
    assert page.locator("#lenses table").first.locator("td").count() == 2 * 3
    point_at(page, 1, 0)
    assert page.locator("#readout").inner_text().startswith("In A “\u2068b\u2069” (token 1) gives ")
