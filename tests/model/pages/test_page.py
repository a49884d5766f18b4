"""The page as a file: its content, its size limit, and that no text in it can become markup."""

import html
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model.inspection.recording import Recording
from model.pages.describe import describe_heads, opening_view
from model.pages.page import attention_page, log_spaced
from tests.html_pages import HOSTILE, Page
from tests.measurements import learned_recording, write_recording

HISTORY = learned_recording()


def read(*runs: Recording, **options) -> Page:
    return Page(attention_page(runs, "a title", **options))


def check_maps(page: Page, history: Recording, run: int = 0) -> None:
    """The page's maps of the tokens that it shows are those of the history, to within 0.004."""
    about = page.data["runs"][run]
    for i, shown in enumerate(about["snapshots"]):
        for number, probe in enumerate(about["probes"] if "blocks" in shown else ()):
            found, expected = page.maps(run, i, number), history.maps(shown["step"])[probe["name"]].astype(float)
            np.testing.assert_allclose(found, expected[..., : len(found[0, 0]), : len(found[0, 0])], atol=0.004)


def test_each_run_has_its_own_maps_scores_formation_and_verdicts_and_opens_with_the_clearest_head():
    runs = [HISTORY, replace(learned_recording(seed=1, fidelity=2e-5, causality=0.1), name="other")]
    page = read(*runs)
    assert [run["name"] for run in page.data["runs"]] == ["demo", "other"]
    for number, history in enumerate(runs):
        run = page.data["runs"][number]
        assert sum("blocks" in shown for shown in run["snapshots"]) == 5
        check_maps(page, history, number)
        assert run["uniform"] == pytest.approx(history.snapshots[-1].heads.uniform)
        assert run["formation"] == history.formation and history.formation["previous_token"]
        clearest = opening_view(history, 8)
        assert run["opening"] == clearest | {"probe": [*history.probes].index(clearest["probe"])}
        for shown, snapshot in zip(run["snapshots"], history.snapshots, strict=True):
            for name, score in snapshot.scores.items():
                np.testing.assert_allclose(shown["scores"][name], score, atol=5.1e-4)
            assert shown["faithful"] == shown["causal"] == (history is HISTORY)
            details = json.loads(page.block(shown["details"]))
            assert {"descriptions", "probes"} <= details.keys()


def test_hostile_text_stays_data():
    labels = HOSTILE[:12]
    page = attention_page([learned_recording(labels=labels)], "</title><script>alert(1)</script>")
    parsed = Page(page)
    assert parsed.data["runs"][0]["probes"][0]["labels"] == labels
    assert parsed.data["title"] == "</title><script>alert(1)</script>"
    assert set(parsed.scripts) == {"data", "importmap", "module", *(f"block-{n}" for n in range(15))}
    assert not parsed.suspicious
    page.encode()  # lone surrogates are escaped


def test_the_page_loads_nothing_and_holds_every_module_that_its_program_imports():
    page = attention_page([HISTORY], "a title")
    sources = Page(page).modules
    for text in (page, *sources.values()):
        text = text.replace('"http://www.w3.org/2000/svg"', "")  # a name that is never requested
        assert "http://" not in text and "https://" not in text and "innerHTML" not in text
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert html.unescape(policy).startswith("default-src 'none'")
    assert "browser/scores.js" in sources and "browser/report.js" not in sources
    imported = {name for source in sources.values() for name in re.findall(r'"(browser/\S+)"', source)}
    assert imported | {"browser/page.js"} == set(sources)


def test_every_step_has_its_details_and_a_description_of_every_head():
    def with_a_token_more(details):
        return details | {"tokens": details["tokens"] | {"999": "unused"}}

    snapshots = [replace(one, details=with_a_token_more(one.details)) for one in HISTORY.snapshots]
    page = read(replace(HISTORY, snapshots=snapshots))
    for shown in page.data["runs"][0]["snapshots"]:
        details = json.loads(page.block(shown["details"]))
        expected = HISTORY.details(shown["step"])
        assert details["probes"] == expected["probes"] and details["parts"] == expected["parts"]
        used = {str(token) for row in expected["probes"]["text"]["lens"]["token"] for token in row}
        assert used <= set(details["tokens"]) and "999" not in details["tokens"]
        assert details["descriptions"] == json.loads(json.dumps(describe_heads(HISTORY.at(shown["step"]))))


def test_both_colour_maps_change_lightness_steadily():
    colours = read(HISTORY).data["colours"]
    for theme, direction in (("light", -1), ("dark", 1)):
        rgb = np.array([[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in colours[theme]["weights"]])
        assert (direction * np.diff(rgb @ [0.2126, 0.7152, 0.0722]) > 0).all()


FITS = [  # the share of the whole that must fit, the steps and tokens that are then shown, and what the page says
    (0.92, [20], [40], r"rounds weights to within 0\.004\.$"),
    (0.70, range(12, 20), [40], r"shows \d+ of 20 recorded steps \(the curves show all\)\.$"),
    (0.40, [12], range(8, 40), r"shows the first \d+ of 40 tokens"),
]


@pytest.fixture(scope="module")
def large() -> tuple[Recording, int, int]:
    """History of 40 tokens at 20 steps, how long their page is, and how long a page without any."""
    history = learned_recording(2, 3, 40, steps=range(0, 1000, 50))
    template = attention_page([learned_recording(1, 1, 5, steps=[0])], "a title")
    return history, len(attention_page([history], "a title")), len(template)


@pytest.mark.parametrize(("share", "steps", "tokens", "note"), FITS)
def test_weights_are_rounded_before_steps_are_left_out_and_these_before_the_text_is_cut(
    large, share, steps, tokens, note
):
    history, whole_page, template = large
    limit = int(template + share * (whole_page - template))
    text = attention_page([history], "a title", max_bytes=limit)
    assert len(text.encode()) <= limit
    page = Page(text)
    run, (said,) = page.data["runs"][0], page.data["notes"]
    shown = [shown for shown in run["snapshots"] if "blocks" in shown]
    length = len(run["probes"][0]["labels"])
    assert len(run["snapshots"]) == 20 and len(shown) in steps and length in tokens
    assert re.search(note, said)
    for count, whole in ((len(shown), 20), (length, 40)):
        assert count == whole or re.search(rf"shows (the first )?{count} of {whole} ", said)
    assert shown[0]["step"] == 0 and shown[-1]["step"] == 950
    check_maps(page, history)
    found = json.loads(page.block(shown[3]["details"]))["probes"]["text"]
    whole = history.details(shown[3]["step"])["probes"]["text"]
    assert {len(found[name]) for name in ("bits", "rank", "top", "top_probability")} == {length}
    for name, values in {**found, **found["lens"]}.items():
        if name not in ("lens", "attribution_error", "bits", "rank"):
            expected = np.array(whole.get(name, whole["lens"].get(name)), float)
            expected = expected[:length] if name.startswith("top") else expected[..., :length]
            np.testing.assert_allclose(np.array(values, float), expected, rtol=0.051)


def test_curves_are_thinned_but_keep_every_step_that_has_maps_and_the_page_does_not_say_that_they_show_all(monkeypatch):
    monkeypatch.setattr("model.pages.page.MAX_CURVE_POINTS", 20)
    history = learned_recording(2, 3, 24, steps=range(0, 1600, 40))
    without_maps = [one if one.step in (0, 280, 1560) else replace(one, maps=None) for one in history.snapshots]
    few = read(replace(history, snapshots=without_maps)).data["runs"][0]["snapshots"]
    assert 20 <= len(few) < 40 and [c["step"] for c in few if "blocks" in c] == [0, 280, 1560]
    text = attention_page([history], "a title")
    page = Page(text)
    numbers = [number for c in page.data["runs"][0]["snapshots"] for number in (*c["blocks"], c["details"])]
    assert len(numbers) == 3 * 40
    assert {f"block-{number}" for number in numbers} == page.scripts.keys() - {"data", "importmap", "module"}
    data = read(replace(history), max_bytes=int(0.75 * len(text))).data  # anew, with curves of its own
    assert len(data["runs"][0]["snapshots"]) < 40 and "recorded steps (the curves show more)" in data["notes"][0]
    # Five times as many, whose scores alone would take more.
    snapshots = [replace(snapshot, step=5 * snapshot.step + n) for snapshot in history.snapshots for n in range(5)]
    assert len(read(replace(history, snapshots=snapshots), max_bytes=len(text)).data["runs"][0]["snapshots"]) < 60


@given(st.sets(st.integers(0, 100_000), min_size=1), st.integers(2, 60))
@example({0, 1, 2, 3, 1000}, 4)  # the step nearest to the first target would leave too few for the rest
def test_log_spaced_steps_are_ascending_and_keep_both_ends(steps, count):
    steps = sorted(steps)
    chosen = log_spaced(steps, count)
    assert len(chosen) == min(count, len(steps)) and chosen == sorted(set(chosen)) and set(chosen) <= set(steps)
    assert (chosen[0], chosen[-1]) == (steps[0], steps[-1])


def test_log_spaced_steps_are_dense_where_steps_are_small():
    chosen = log_spaced(range(0, 10_001), 14)
    gaps = np.diff(chosen)
    assert (np.diff(gaps)[1:] >= 0).all() and gaps[-1] > 50 * gaps[0]


def test_maps_that_cannot_be_shown_are_refused():
    """As two that cannot be compared are, see tests/test_inspect_attention.py."""
    with pytest.raises(ValueError, match="other has no recorded maps"):
        read(HISTORY, replace(HISTORY, name="other", snapshots=[]))
    with pytest.raises(ValueError, match="do not fit"):
        read(HISTORY, max_bytes=100_000)


def test_steps_whose_maps_were_removed_keep_their_scores(tmp_path):
    write_recording(HISTORY, tmp_path).path(2).unlink()
    shown = read(Recording.open(tmp_path, "demo")).data["runs"][0]["snapshots"]
    assert ["blocks" in shown for shown in shown] == [True, True, False, True, True]
