"""The report of a run: figures that are those of its files, whatever state they are in, and texts that stay texts."""

import html
import json
import re
from pathlib import Path

import pytest

from model.gpt import GPT, GPTConfig
from model.inspection.recorder import AttentionRecorder
from model.inspection.report import evenly, read_metrics, run_report, short, training_seconds, write_report

HOSTILE = "</script><img src=x onerror=alert(1)><!-- \u202e \x00 &amp;"
HEADER = "step,tokens,train/loss,val/loss,val/bits_per_byte,lr,tokens_per_second,mfu,attention/sink/layer_0"
METRICS = f"""{HEADER}
0,,,,,,,,0.25
10,1000,4.0,,,0.1,500.0,,
20,2000,3.0,3.5,2.5,0.1,1000.0,,0.5
30,3000,2.5,3.25,2.25,0.05,,,
40,4000,2.0,3.375,2.375,0.0,250.0,,
"""


@pytest.fixture
def run(tmp_path) -> Path:
    run = tmp_path / "a run & <more>"
    run.mkdir()
    (run / "metrics.csv").write_text(METRICS)
    (run / "config.yaml").write_text(f"prompt: {HOSTILE}\n")
    samples = [{"step": step, "prompt": "def ", "text": f"{step} {HOSTILE}"} for step in (20, 40)]
    (run / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return run


def record(run: Path) -> None:
    """Two captures of an untrained model, on a text that is hostile."""
    gpt = GPT(GPTConfig(vocab_size=20, context_length=16, num_layers=2, num_heads=2, embed_dim=16))
    recorder = AttentionRecorder(run / "attention", range(10), [HOSTILE] * 10, "fingerprint", 20)
    for step in (0, 20):
        recorder.record(gpt, step)


def data_of(page: str, name: str = "data"):
    return json.loads(re.search(rf'id="{name}">(.*?)</script>', page, re.DOTALL)[1])


def test_figures_are_those_of_the_files(run):
    data = data_of(run_report(run))
    assert data["title"] == run.name
    assert {name: (value, remark) for name, value, remark in data["facts"]} == {
        "bits per byte": ("2.3750", "best 2.2500 at step 30"),
        "validation loss": ("3.3750", "best 3.2500 at step 30"),
        "training loss": ("2.0000", "at step 40"),
        "tokens seen": ("4k", "in 40 steps"),
        "tokens a second": ("500", "median"),
        "trained for": ("0:07", "steps alone"),
    }
    curves = {chart["title"]: {curve["name"]: curve["points"] for curve in chart["curves"]} for chart in data["charts"]}
    assert curves["Loss"] == {
        "training": [[10, 4.0], [20, 3.0], [30, 2.5], [40, 2.0]],
        "validation": [[20, 3.5], [30, 3.25], [40, 3.375]],
    }
    assert list(curves) == ["Loss", "Bits per byte", "Learning rate", "Tokens a second"]  # nothing knows the peak here
    assert [chart["curves"][0]["points"] for chart in data["heads"]] == [[[0, 0.25], [20, 0.5]]]
    assert [sample["step"] for sample in data["samples"]] == [20, 40]
    assert data["samples"][0]["text"] == f"20 {HOSTILE}" and data["config"] == f"prompt: {HOSTILE}\n"


def test_attention_is_in_the_report_as_a_page_of_its_own(run):
    record(run)
    page = data_of(run_report(run), "attention")
    assert page.startswith("<!DOCTYPE html>")
    assert data_of(page)["probes"][0]["labels"] == [HOSTILE] * 10


def test_no_text_breaks_out(run):
    record(run)
    page = run_report(run)
    assert "<img" not in page and "<!-- \u202e" not in page
    assert page.count("</script>") == page.count("<script") == 3  # two kinds of data and the program
    assert f"<title>{html.escape(run.name)}</title>" in page
    loaded = re.findall(r"""(?:src|href)\s*=\s*["']|url\(|@import|https?://(?!www\.w3\.org/2000/svg)""", page)
    assert loaded == []


def test_captures_that_were_cut_short_are_left_out(run):
    record(run)
    scores = run / "attention" / "scores.jsonl"
    lines = scores.read_bytes().splitlines(keepends=True)
    scores.write_bytes(lines[0] + lines[1][:40])
    captures = data_of(data_of(run_report(run), "attention"))["runs"][0]["captures"]
    assert [capture["step"] for capture in captures] == [0]
    scores.write_bytes(lines[0][:40])
    assert 'id="attention"' not in run_report(run)


@pytest.mark.parametrize("missing", ["samples.jsonl", "config.yaml"])
def test_what_is_missing_is_left_out(run, missing):
    (run / missing).unlink()
    data = data_of(run_report(run))
    assert not data[{"samples.jsonl": "samples", "config.yaml": "config"}[missing]]


def test_a_run_that_is_going_on_may_be_in_the_middle_of_a_line(run):
    for name in ("metrics.csv", "samples.jsonl"):
        path = run / name
        path.write_text(path.read_text()[:-3])
    data = data_of(run_report(run))
    assert data["charts"][0]["curves"][0]["points"][-1] == [30, 2.5]
    assert [sample["step"] for sample in data["samples"]] == [20]


def test_damage_and_absence_are_named(run, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"metrics\.csv: nothing has been trained there yet"):
        run_report(tmp_path)
    (run / "metrics.csv").write_text(METRICS.replace("3.25", "high"))
    with pytest.raises(ValueError, match=r"metrics\.csv, line 5: damaged"):
        run_report(run)
    (run / "metrics.csv").write_text(METRICS)
    for name, content in (("samples.jsonl", b"[]\n"), ("config.yaml", b"\xff"), ("metrics.csv", b"\xff")):
        (run / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name} is damaged"):
            run_report(run)
        (run / name).write_text(METRICS if name == "metrics.csv" else "")
    assert not (run / "report.html").exists()


def test_a_diverged_run_has_a_report(run):
    (run / "metrics.csv").write_text(METRICS + "50,5000,nan,inf,inf,0.0,100.0,,nan\n")
    data = data_of(run_report(run))
    assert data["charts"][0]["curves"][0]["points"][-1] == [40, 2.0]


def test_long_curves_are_thinned_but_keep_their_ends():
    assert evenly(range(10), 20) == list(range(10))
    thinned = evenly(range(100_000), 1500)
    assert len(thinned) == 1500 and thinned[0] == 0 and thinned[-1] == 99_999 and thinned == sorted(set(thinned))


def test_training_time_counts_each_row_at_its_own_speed(run):
    rows = read_metrics(run / "metrics.csv")
    assert training_seconds(rows) == 1000 / 500 + 1000 / 1000 + 1000 / 250


@pytest.mark.parametrize(("number", "text"), [(950.0, "950"), (51_340, "51.3k"), (1_474_560, "1.47M"), (2e9, "2B")])
def test_large_numbers_are_short(number, text):
    assert short(number) == text


def test_the_report_is_written_into_the_run(run):
    assert write_report(run) == run / "report.html"
    assert (run / "report.html").read_text(encoding="utf-8") == run_report(run)


def sample_text(page) -> str:
    return page.locator("#sample").inner_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_report_in_a_browser(open_file, run, theme):
    record(run)
    page = open_file(write_report(run), theme=theme)
    assert page.title() == page.locator("h1").inner_text() == run.name
    assert page.locator("#facts .value").first.inner_text() == "2.3750"
    assert page.locator("#charts svg").count() == 4 and page.locator("#heads svg").count() == 1
    assert page.evaluate("document.images.length") == 0

    assert sample_text(page).startswith("def 40 </script><img")
    page.locator("#slider").focus()
    page.keyboard.press("ArrowLeft")
    assert sample_text(page).startswith("def 20 ")

    box = page.locator("#charts svg").first.bounding_box()
    x = page.evaluate("charts[0].x(30)")
    page.mouse.move(box["x"] + x, box["y"] + 60)
    assert page.locator(".key").first.inner_text().split() == ["training", "2.5", "validation", "3.25", "step", "30"]
    assert "0.05" in page.locator(".key").nth(2).inner_text()  # all charts follow
    before = page.evaluate("charts[0].x(10)")
    page.locator("#scale button").last.click()
    assert page.evaluate("charts[0].x(10)") > before

    frame = page.frame_locator("iframe")
    frame.locator("html[data-drawn]").wait_for(state="attached")
    assert frame.locator(".thumb").count() == 4
    assert frame.locator("html").get_attribute("data-theme") == theme
    page.locator("#theme").click()
    other = {"light": "dark", "dark": "light"}[theme]
    assert page.locator("html").get_attribute("data-theme") == other
    frame.locator(f"html[data-theme={other}]").wait_for(state="attached")


def test_a_report_without_maps_or_samples_shows_what_there_is(open_file, run):
    for name in ("samples.jsonl", "config.yaml"):
        (run / name).unlink()
    (run / "metrics.csv").write_text(f"{HEADER}\n10,1000,4.0,,,0.1,500.0,,\n")
    page = open_file(write_report(run))
    assert page.locator("section:visible").count() == 1
    assert page.locator("#charts svg").count() == 3
