"""The report as a page: its figures are those of the data it is given, and texts stay texts."""

import html
import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from model.inspection import heads
from model.inspection.ablation import Change
from model.inspection.probes import Probe
from model.inspection.recording import Recording
from model.pages.report import evenly, heads_that_matter, report_page, short, story
from tests.html_pages import Page
from tests.measurements import measured, snapshot_with

HOSTILE = "</script><img src=x onerror=alert(1)><!-- \u202e \x00 &amp;"
NAME = "a run & <more>"
ROWS = [
    {"step": 0, "attention/sink/layer_0": 0.25},
    {"step": 10, "tokens": 1000.0, "train/loss": 4.0, "lr": 0.1, "tokens_per_second": 500.0},
    {"step": 20, "tokens": 2000.0, "train/loss": 3.0, "val/loss": 3.5, "val/bits_per_byte": 2.5, "lr": 0.1}
    | {"tokens_per_second": 1000.0, "attention/sink/layer_0": 0.5},
    {"step": 30, "tokens": 3000.0, "train/loss": 2.5, "val/loss": 3.25, "val/bits_per_byte": 2.25, "lr": 0.05},
    {"step": 40, "tokens": 4000.0, "train/loss": 2.0, "val/loss": 3.375, "val/bits_per_byte": 2.375, "lr": 0.0}
    | {"tokens_per_second": 250.0},
]
SAMPLES = [{"step": step, "prompt": "def ", "text": f"{step} {HOSTILE}"} for step in (20, 40)]
CONFIG = f"prompt: {HOSTILE}\n"


def history_of(*sinks: float) -> Recording:
    """Two layers of two heads with uniform attention, on a hostile text. The sink scores of head 1.0 are given."""
    probes = {"text": Probe([*range(10)], [HOSTILE] * 10), "repeated": Probe([0] + 2 * [1, 2, 3, 4], ["x"] * 9, 4)}
    maps = {name: heads.uniform_attention(len(probe.tokens)).repeat(2, 2, 1, 1) for name, probe in probes.items()}
    snapshots = []
    for step, sink in enumerate(sinks):
        scores = {name: np.full((2, 2), 0.1, np.float32) for name in heads.SCORES}
        scores["sink"][1, 0] = sink
        snapshots.append(snapshot_with(scores, probes, step))
    snapshots = [measured(replace(one, maps=maps), probes) for one in snapshots]
    return Recording(probes, name=NAME, snapshots=snapshots)


HISTORY = history_of(0.1, 0.9, 0.9)


def report(rows=ROWS, samples=SAMPLES, config=CONFIG, history=None, **more) -> str:
    return report_page(NAME, rows, samples, config, history, **more)


def test_figures_are_those_of_the_data():
    data = Page(report()).data
    assert data["title"] == NAME
    assert {name: (value, remark) for name, value, remark in data["facts"]} == {
        "bits per byte": ("2.3750", "best 2.2500 at step 30"),
        "validation loss": ("3.3750", "best 3.2500 at step 30"),
        "training loss": ("2.0000", "at step 40"),
        "tokens seen": ("4k", "in 40 steps"),
        "tokens per second": ("500", "median"),
        "trained for": ("0:07", "without validation"),
    }
    curves = {chart["title"]: {curve["name"]: curve["points"] for curve in chart["curves"]} for chart in data["charts"]}
    assert curves["Loss"] == {
        "training": [[10, 4.0], [20, 3.0], [30, 2.5], [40, 2.0]],
        "validation": [[20, 3.5], [30, 3.25], [40, 3.375]],
    }
    assert list(curves) == ["Loss", "Bits per byte"]
    assert [chart["title"] for chart in data["machine"]] == ["Learning rate", "Tokens per second"]  # no MFU is known
    assert [chart["curves"][0]["points"] for chart in data["heads"]] == [[[0, 0.25], [20, 0.5]]]
    assert [sample["step"] for sample in data["samples"]] == [20, 40]
    assert data["samples"][0]["text"] == f"20 {HOSTILE}" and data["config"] == CONFIG


def test_the_report_knows_which_heads_formed_and_names_scores_that_no_head_passes():
    figures = {"duplicate": 0.02, "line_start": 0.06, "entropy": 0.1}
    rows = [*ROWS, {"step": 0} | {f"attention/{score}/layer_0": figure for score, figure in figures.items()}]
    data = Page(report(rows, history=HISTORY)).data
    assert [(stage["head"], stage["before"], stage["step"]) for stage in data["stages"]] == [("1.0", 0, 1)]
    assert [(chart["title"], chart["score"]) for chart in data["heads"]] == [("sink", "sink"), ("entropy", "entropy")]
    assert data["faint"] == ["duplicate", "line start"]
    assert not Page(report(history=history_of(0.1, 0.1))).data["stages"]
    without = Page(report(rows)).data  # without maps nothing is known about uniform attention
    assert len(without["heads"]) == 4 and not without["faint"]


def test_the_story_says_what_was_trained_on_what_for_how_long_and_how_well():
    sizes = [
        ({"num_layers": 6, "num_heads": 3}, " of 6 layers with 3 attention heads each"),
        ({"num_layers": 1, "num_heads": 1}, " of 1 layer with 1 attention head each"),
        ({"num_layers": None, "num_heads": "x"}, ""),
        (3, ""),
    ]
    texts = [
        ({"corpus": "stdlib", "files": None}, "the source of Python's standard library"),
        ({"corpus": "files", "files": ["a.txt", "b.txt"]}, "a.txt, b.txt"),
        ({"corpus": "stdlib", "dataset": "some/set"}, "the data set some/set"),
        ({"corpus": ["stdlib"]}, "a text"),
        ([1], "a text"),
    ]
    for (gpt, size), (data, text) in product(sizes, texts):
        found = story([], {"model": {"gpt": gpt}, "data": data})
        assert found == f"A small GPT{size} learned to predict the next token of {text}."
    assert story(ROWS, {}).endswith(
        " It read 4k tokens in 40 steps, which took 7 seconds. "
        "It now needs 2.38 bits for a byte of text that it has not read; a guess needs 8."
    )


def test_heads_that_are_missed_are_listed_and_those_without_a_clear_effect_in_one_line():
    changes = {
        "text": [(0.1, 0.01), (math.nan, 0.1), (0.01, 0.02), (-0.2, 0.01)],
        "repeated": [(0.0, 0.0), (0.7, 0.1), (0.1, math.nan), (3.0, 0.5)],
    }
    parts = ["head 0.0", "head 0.1", "head 1.0", "head 1.1"]
    ablation = {kind: {"n-gram tables": Change(9.0, 0.1)} for kind in changes}
    for kind, of_kind in changes.items():
        ablation[kind] |= {part: Change(*change) for part, change in zip(parts, of_kind, strict=True)}
    found, idle = heads_that_matter(replace(HISTORY.snapshots[-1], ablation=ablation))
    assert [one["head"] for one in found] == ["1.1", "0.1", "0.0"]  # by the larger change
    assert (found[0]["text"], found[0]["repeated"]) == ((-0.2, 0.01), (3.0, 0.5))
    assert found[1]["text"] is None and found[2]["repeated"] is None
    assert "1.0" in idle and "0.0" not in idle and "no clear effect" in idle


def test_what_was_measured_at_the_last_snapshot_is_in_the_report():
    data, details = Page(report(history=HISTORY)).data, HISTORY.details(2)
    assert data["labels"] == HISTORY.probes["text"].labels and data["step"] == 2
    assert data["details"]["sublayers"] == details["sublayers"] and list(data["details"]["probes"]) == ["text"]
    for name in ("bits", "rank", "top", "top_probability", "lens"):
        assert data["details"]["probes"]["text"][name] == details["probes"]["text"][name]
    assert "attribution" not in data["details"]["probes"]["text"]
    *others, last = HISTORY.snapshots
    removed = Page(report(history=replace(HISTORY, snapshots=[*others, replace(last, maps=None)]))).data
    assert removed["matter"] == data["matter"] and "details" not in removed


def test_no_text_becomes_markup():
    text = report(history=HISTORY)
    page = Page(text)
    assert "<img" not in text and "<!-- \u202e" not in text
    assert page.scripts.keys() == {"data", "attention", "importmap", "module"}
    assert f"<title>{html.escape(NAME)}</title>" in text
    elsewhere = r"""(?:src|href)\s*=\s*["'](?!#)|url\(|@import|https?://(?!www\.w3\.org/2000/svg)"""
    assert not any(re.search(elsewhere, code) for code in (text, *page.modules.values()))


def test_long_curves_are_thinned_but_keep_their_ends():
    assert evenly(range(10), 20) == list(range(10))
    thinned = evenly(range(100_000), 1500)
    assert len(thinned) == 1500 and thinned[0] == 0 and thinned[-1] == 99_999 and thinned == sorted(set(thinned))


def test_large_numbers_are_short():
    assert [*map(short, (950.0, 51_340, 1_474_560, 2e9))] == ["950", "51.3k", "1.47M", "2B"]


def middle_of_step(page, step: str) -> float:
    """Where the first chart writes the number of a step, in pixels of the window."""
    box = page.locator("#charts svg").first.locator("text", has_text=re.compile(f"^{step}$")).bounding_box()
    return box["x"] + box["width"] / 2


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_report_in_a_browser(open_file, theme):
    page = open_file(report(history=HISTORY), theme=theme)
    assert page.title() == page.locator("h1").inner_text() == NAME
    assert page.locator("#facts .value").first.inner_text() == "2.3750"
    assert [page.locator(f"#{group} svg").count() for group in ("charts", "heads", "machine")] == [2, 1, 2]
    assert "sink head 1.0 forms between steps 0 and 1" in page.locator("#charts svg").first.get_attribute("aria-label")
    assert page.evaluate("document.images.length") == 0

    assert page.locator("#sample").inner_text().startswith("def 40 </script><img")
    page.locator("#slider").press("ArrowLeft")
    assert page.locator("#sample").inner_text().startswith("def 20 ")

    box = page.locator("#charts svg").first.bounding_box()
    page.mouse.move(middle_of_step(page, "30"), box["y"] + 60)
    assert page.locator(".key").first.inner_text().split() == ["training", "2.5", "validation", "3.25", "step", "30"]
    assert "0.05" in page.locator("#machine .key").first.inner_text()  # all charts follow
    before = middle_of_step(page, "10")
    page.locator("#scale button").last.click()
    assert middle_of_step(page, "10") > before

    assert page.locator("#surprised .chosen").count() == 1 and page.locator("#surprised span").count() == 10
    for _ in range(10):
        page.locator("#surprised").press("ArrowLeft")
    assert page.locator("#expected li.sentence").inner_text().startswith("This is the first token")
    page.locator("#surprised span").nth(4).click()
    assert page.locator("#expected li.sentence").inner_text().startswith("The model expected: ")
    assert page.locator("#expected li.expected").count() == 2  # of two different tokens
    assert page.locator("#lens tbody tr").count() == 5 and page.locator("#lens tbody td").count() == 50
    ablation = HISTORY.snapshots[-1].ablation
    of_heads = [part for part in ablation["text"] if part.startswith("head ")]
    clear = {part: [of[part].rise for of in ablation.values() if of[part].is_clear] for part in of_heads}
    worst = max(filter(clear.get, of_heads), key=lambda part: max(clear[part]))
    assert page.locator("#matter li").first.inner_text().startswith(worst)

    frame = page.frame_locator("#frame iframe")
    frame.locator("html[data-drawn]").wait_for(state="attached")
    assert frame.locator(".thumb").count() == 4
    assert frame.locator("html").get_attribute("data-theme") == theme
    page.locator("#theme").click()
    other = {"light": "dark", "dark": "light"}[theme]
    assert page.locator("html").get_attribute("data-theme") == other
    frame.locator(f"html[data-theme={other}]").wait_for(state="attached")

    page.wait_for_function(  # the maps have no scroll bar of their own
        "() => { const frame = document.querySelector('iframe');"
        " return frame.clientHeight >= frame.contentDocument.body.offsetHeight }"
    )
    page.locator("#frame h2 a").click()
    assert page.url.endswith("#frame")
    with page.expect_popup() as popup:
        page.locator("#alone").click()
    popup.value.locator("html[data-drawn]").wait_for(state="attached")
    assert popup.value.title() == f"{NAME}: attention"
    popup.value.close()


def test_one_sample_has_no_slider_and_the_arrow_keys_read_a_chart(open_file):
    page = open_file(report(samples=SAMPLES[:1]))
    assert page.locator("#slider").is_hidden() and page.locator("#sample").inner_text().startswith("def 20 ")
    page.locator("#charts svg").first.focus()
    for key, step in [("ArrowRight", "40"), ("ArrowLeft", "30"), ("ArrowLeft", "20"), ("ArrowRight", "30")]:
        page.keyboard.press(key)
        assert page.locator(".key").first.inner_text().split()[-1] == step


def test_a_report_without_maps_or_samples_shows_what_there_is(open_file):
    rows = [{"step": 10, "tokens": 1000.0, "train/loss": 4.0, "lr": 0.1, "tokens_per_second": 500.0}]
    page = open_file(report(rows, samples=[], config=""))
    assert page.locator("section:visible h2").all_inner_texts() == ["How it learned", "How the machine did"]
    assert page.locator("#charts svg").count() == 1 and page.locator("#machine svg").count() == 2


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1280])  # views.test.mjs has all others
def test_no_chart_is_alone_on_its_row(open_file, width):
    scores = ("previous_token", "duplicate", "induction", "sink", "entropy")
    columns = {f"attention/{score}/layer_0": 0.5 for score in scores}
    page = open_file(report(rows=[row | columns | {"mfu": 0.3} for row in ROWS]), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for group in ("charts", "heads", "machine"):
        tops = [chart.bounding_box()["y"] for chart in page.locator(f"#{group} .chart").all()]
        rows = [tops.count(top) for top in dict.fromkeys(tops)]
        assert max(rows) == 1 or min(rows) > 1
