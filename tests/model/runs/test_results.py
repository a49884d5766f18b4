"""Reading the files of a run, even unfinished or damaged ones, and writing its page."""

import json
import os
import re

import pytest

from model.runs.results import write_report
from tests.html_pages import Page
from tests.measurements import learned_recording

METRICS = """step,tokens,train/loss,val/loss,val/bits_per_byte,lr,tokens_per_second,mfu,attention/first_token/layer_0
0,,,,,,,,0.25
10,1000,4.0,,,0.1,500.0,,
20,2000,3.0,3.5,2.5,0.1,1000.0,,0.5
"""


@pytest.fixture
def run(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.csv").write_text(METRICS)
    (run / "config.yaml").write_text("prompt: hello\n")
    samples = [{"step": step, "prompt": "def ", "text": f"{step}"} for step in (10, 20)]
    (run / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return run


def data_of(run):
    write_report(run, "running")
    return Page(run / "report.html").data


def test_the_page_of_a_run_shows_what_its_folder_holds_even_when_it_has_just_begun(run, tmp_path):
    learned_recording(steps=(0, 20), folder=run / "attention")
    data = data_of(run)
    learned = data["learning"]
    assert data["title"] == "run" and learned["config"] == "prompt: hello\n"
    assert [sample["text"] for sample in learned["samples"]] == ["10", "20"]
    assert learned["charts"][0]["curves"][0]["points"] == [[10, 4.0], [20, 3.0]]
    assert [snapshot["step"] for snapshot in data["run"]["snapshots"]] == [0, 20]
    begun = tmp_path / "begun"
    begun.mkdir()
    data = data_of(begun)
    assert data["status"]["gap"] == 0 and data["run"] is None
    os.utime(begun / "report.html", (0, 0))
    data = data_of(begun)
    assert data["status"]["gap"] == pytest.approx(data["status"]["written"])  # seconds since the previous page


def test_the_page_leaves_out_diverged_losses_unfinished_lines_and_missing_files(run):
    (run / "metrics.csv").write_text(METRICS + "30,3000,nan,inf,inf,0.0,100.0,,nan\n")
    assert data_of(run)["learning"]["charts"][0]["curves"][0]["points"][-1] == [20, 3.0]
    (run / "metrics.csv").write_text(METRICS)
    for path in (run / "metrics.csv", run / "samples.jsonl"):
        path.write_text(path.read_text()[:-3])
    data = data_of(run)["learning"]
    assert data["charts"][0]["curves"][0]["points"][-1] == [10, 4.0]
    assert [sample["step"] for sample in data["samples"]] == [10]
    for missing, field in (("samples.jsonl", "samples"), ("config.yaml", "config")):
        (run / missing).unlink()
        assert not data_of(run)["learning"][field]


def test_the_last_page_holds_the_weights_of_the_best_and_all_kept_steps(kept):
    (kept / "checkpoints/step_00000004.ckpt").replace(kept / "checkpoints/best.ckpt")
    write_report(kept, "ended")
    page = Page(kept / "report.html")
    assert [one["step"] for one in page.data["run"]["snapshots"] if "weights" in one] == [0, 3, 4, 8, 12]
    assert "text" not in data_of(kept)  # the page of a running run has no weights


@pytest.mark.parametrize("file", ["samples.jsonl", "checkpoints/best.ckpt"])
def test_a_page_that_fails_does_not_fail_the_run(file, kept, caplog):
    (kept / file).write_text("damaged\n")
    write_report(kept, "ended")
    assert re.search(rf"page.*{file}\b", caplog.text)
