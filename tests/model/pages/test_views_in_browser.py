"""The views of surprise, lens, attribution and ablation, in a real browser."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from model.inspection.parts import Change
from model.inspection.recording import take_snapshot
from model.pages.describe import visible
from model.pages.page import run_page
from tests.command_lines import tells
from tests.html_pages import HOSTILE
from tests.measurements import learned_recording
from tests.model.pages.browsing import click, colours, number_in, point_at, press, shares, slide
from tests.model.pages.model_pages import OPENING, TOKENIZER, plain_gpt, recording_of

pytestmark = pytest.mark.slow

STEPS = [0, 4, 16, 64]
LABELS = ["for", " i", " in", "\n", "</td><img src=x>", "\u202eabc", "\x00", " range", "(", "10", ")", ":"]
HISTORY = learned_recording(labels=LABELS, steps=STEPS)


def test_each_token_has_the_colour_of_its_surprise_and_its_expected_tokens_can_be_read(open_page):
    page = open_page(HISTORY, hash_="#probe=text&step=64")
    details = HISTORY.readings(64)["text"].figures
    click(page, "#shades button >> nth=-1")
    depths = [colour[3] for colour in colours(page.locator("#tokens span"))]
    bits = np.array([0.0, *details["bits"][:-1]])
    assert_allclose(depths, 0.75 * np.minimum(bits / 10, 1), atol=0.01)

    def check(token):
        expected, _, came = page.inner_text("#expected p").partition("; the true")
        assert tells(came, f"{details['rank'][token - 1] + 1} {details['bits'][token - 1]:.1f}")
        assert visible(details["tokens"][str(details["top"][token - 1][0])]) in expected
        assert_allclose(shares(expected), details["top_probability"][token - 1], atol=0.006)

    page.locator("#tokens span").nth(9).hover()
    check(9)
    click(page, "#tokens span >> nth=2")
    page.mouse.move(0, 0)
    check(2)
    press(page.locator("#tokens"), "ArrowRight")
    check(3)
    click(page, "#tokens span >> nth=0")
    assert "first token" in page.inner_text("#expected p")


def test_the_lens_has_a_cell_for_each_sublayer_and_position_whose_figures_can_be_read(open_page):
    page = open_page(HISTORY, hash_="#probe=text&step=64")
    details = HISTORY.readings(64)["text"].figures
    lens = details["lens"]
    rows = page.locator("#lenses table").first.locator("tbody tr")
    assert rows.locator("th").all_inner_texts() == details["sublayers"]
    for row, tokens in zip(rows.all(), lens["token"], strict=True):
        likeliest = [visible(details["tokens"][str(token)], 8) for token in tokens]
        assert row.locator("td").all_inner_texts() == likeliest

    probability = lens["probability"][-1][:-1]  # the more likely the true token, the darker the cell
    lightness = [sum(colour[:3]) for colour in colours(rows.last.locator("td"))]
    assert lightness[np.argmax(probability)] < lightness[np.argmin(probability)]
    rows.nth(1).locator("td").nth(7).hover()
    told = page.inner_text("#lenses .readout >> nth=0")
    assert tells(told, f"attention 0 token 7 {lens['divergence'][1][7]:.1f} bits")
    rows.locator("td[tabindex='0']").press("ArrowRight")
    press(page, "Enter")
    assert tells(page.inner_text("#lenses .readout >> nth=0"), "token 1")  # what was read stays
    assert "token=1" in page.url and rows.locator("td.chosen").count() == len(lens["token"])


def test_the_attribution_of_the_chosen_token_has_its_figures_and_their_sum(open_page):
    page = open_page(HISTORY, hash_="#probe=text&step=16&token=4")
    details = HISTORY.readings(16)["text"].figures
    logits = [row[4] for row in details["attribution"]]
    column = dict(zip(details["parts"], logits, strict=True))
    rows = page.locator("#parts tbody tr")
    shown = {row.locator("th").inner_text(): number_in(row.locator("td").last.inner_text()) for row in rows.all()}
    assert list(shown) == sorted(column, key=lambda part: -abs(column[part]))
    assert_allclose([shown[part] for part in column], list(column.values()), atol=0.006)
    total = number_in(page.locator("#parts tfoot td").last.inner_text())
    assert total == pytest.approx(sum(column.values()), abs=0.01)
    assert page.is_visible("#attribution-badge.good")
    click(page, "#parts >> text=head 1.2")
    assert "head=1.2" in page.url


def test_losses_without_each_part_are_sorted_and_shown_with_their_error_if_clear(open_page):
    first, second, third, last = HISTORY.snapshots
    unclear = {kind: {part: Change(0.01, 0.02) for part in changes} for kind, changes in last.ablation.items()}
    snapshots = [first, second, replace(third, ablation=None), replace(last, ablation=unclear)]
    page = open_page(replace(HISTORY, snapshots=snapshots), hash_="#step=4&head=1.0")
    changes = second.ablation["text"]
    rows = page.locator("#ablations tbody tr")
    assert rows.locator("th").all_inner_texts() == sorted(changes, key=lambda part: -changes[part].rise)
    for row in rows.all():
        part = row.locator("th").inner_text()
        shown = [[number_in(one) for one in cell.split(" ± ")] for cell in row.locator("td").all_inner_texts()[:2]]
        assert_allclose(shown, [second.ablation[kind][part] for kind in ("text", "repeated")], atol=6e-4)
    assert page.inner_text("#part").count("±") == 2
    slide(page, 2)  # a step without these losses
    assert page.is_hidden("#ablations")
    click(page, "#measured-at button >> nth=-1")
    assert "step=64" in page.url and page.inner_text("#part").count("no clear effect") == 2


def test_a_diverged_model_has_dashes_instead_of_numbers(open_page):
    gpt, recording = plain_gpt(2), recording_of(OPENING)
    for step in (0, 8):
        recording.append(take_snapshot(gpt, step, recording, TOKENIZER.label, with_losses=True))
        gpt.token_embedding.weight.data.fill_(math.nan)
    page_text = run_page("tiny", recording, models=[(8, gpt)], tokenizer=TOKENIZER)
    page = open_page(page_text, hash_="#text=surprise&token=2&score=first_token")
    assert tells(page.inner_text("#notes"), "8 diverged")
    assert {*page.locator("#ablations td").all_inner_texts()} == {"no clear effect"}
    page.locator("#lenses td").first.hover()
    for part in ("#expected", "#parts tbody", "#parts tfoot", "#lenses .readout >> nth=0", "#card"):
        assert "–" in page.inner_text(part)
    assert page.is_visible("#attribution-badge.bad")
    assert not re.search(r"NaN|undefined|null|Infinity", page.inner_text("body"))
    slide(page, 0)
    assert "–" not in page.inner_text("#card")


def test_hostile_labels_are_shown_as_text(open_page):
    """views.test.mjs has how each invisible character is written."""
    labels = [*HOSTILE, "a", "b", "c", "d"]
    page = open_page(learned_recording(labels=labels, steps=STEPS), hash_="#probe=text&token=4&text=surprise")
    assert page.title() == page.inner_text("h1") == "A title & <more>"
    assert page.locator("#main img, #tokens script").count() == 0
    texts = page.locator("#tokens span").all_text_contents()
    assert len(texts) == len(labels) and texts[:4] == HOSTILE[:4]
    point_at(page, 19, 4)
    assert "\\u202eright-to-left" in page.inner_text("#readout")
    for part in ("#tokens", "#lens", "#attribution", "#expected", "#readout"):
        assert not set(page.locator(part).inner_text()) & {"\u202e", "\x00"}


def test_a_recording_of_one_snapshot_one_head_and_two_tokens_has_a_page(open_page):
    one = learned_recording(1, 1, ["a", "b"], [32])
    page = open_page(one, hash_="#probe=text&token=1&against=32")
    for part in ("#controls", "#slide-a", "#learning", "#compare"):
        assert page.is_hidden(part)
    assert page.is_visible("#card") and page.locator(".thumb").count() == 1
    assert page.locator("#tokens span").count() == 2
