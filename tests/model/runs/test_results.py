"""Reading the files of a run, also unfinished or damaged ones, and writing its report."""

import json
import lzma
import re
from pathlib import Path

import pytest

from model.glass import open_run
from model.runs.results import finish, read_metrics, write_report
from tests.html_pages import Page
from tests.measurements import learned_recording, write_recording

HEADER = "step,tokens,train/loss,val/loss,val/bits_per_byte,lr,tokens_per_second,mfu,attention/sink/layer_0"
HISTORY = learned_recording(steps=(0, 20))
METRICS = f"""{HEADER}
0,,,,,,,,0.25
10,1000,4.0,,,0.1,500.0,,
20,2000,3.0,3.5,2.5,0.1,1000.0,,0.5
"""


@pytest.fixture
def run(tmp_path) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.csv").write_text(METRICS)
    (run / "config.yaml").write_text("prompt: hello\n")
    samples = [{"step": step, "prompt": "def ", "text": f"{step}"} for step in (10, 20)]
    (run / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return run


def report_of(run: Path) -> str:
    return write_report(run).read_text(encoding="utf-8")


def test_rows_have_the_columns_in_which_they_have_a_number_and_a_report_needs_them(run, tmp_path):
    assert read_metrics(run / "metrics.csv")[:2] == [
        {"step": 0, "attention/sink/layer_0": 0.25},
        {"step": 10, "tokens": 1000.0, "train/loss": 4.0, "lr": 0.1, "tokens_per_second": 500.0},
    ]
    with pytest.raises(FileNotFoundError, match=r"metrics\.csv: nothing has been trained there yet"):
        write_report(tmp_path)


def test_the_report_is_written_into_the_run_folder_or_to_a_given_path(run, tmp_path):
    write_recording(HISTORY, run / "attention")
    assert write_report(run) == run / "report.html"
    text = (run / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    data = page.data
    assert data["title"] == "run" and data["config"] == "prompt: hello\n"
    assert [sample["text"] for sample in data["samples"]] == ["10", "20"]
    assert data["charts"][0]["curves"][0]["points"] == [[10, 4.0], [20, 3.0]]
    assert [snapshot["step"] for snapshot in Page(page.json("attention")).data["runs"][0]["snapshots"]] == [0, 20]
    other = tmp_path / "other.html"
    assert write_report(run, other) == other and other.read_text(encoding="utf-8") == text


def test_snapshots_that_were_cut_short_are_left_out(run):
    write_recording(HISTORY, run / "attention")
    scores = run / "attention" / "scores.jsonl"
    lines = scores.read_bytes().splitlines(keepends=True)
    scores.write_bytes(lines[0] + lines[1][:40])
    snapshots = Page(Page(report_of(run)).json("attention")).data["runs"][0]["snapshots"]
    assert [snapshot["step"] for snapshot in snapshots] == [0]
    scores.write_bytes(lines[0][:40])
    assert 'id="attention"' not in report_of(run)


def test_a_diverged_loss_unfinished_last_lines_and_missing_files_are_left_out(run):
    (run / "metrics.csv").write_text(METRICS + "30,3000,nan,inf,inf,0.0,100.0,,nan\n")
    assert Page(report_of(run)).data["charts"][0]["curves"][0]["points"][-1] == [20, 3.0]
    (run / "metrics.csv").write_text(METRICS)
    for name in ("metrics.csv", "samples.jsonl"):
        path = run / name
        path.write_text(path.read_text()[:-3])
    data = Page(report_of(run)).data
    assert data["charts"][0]["curves"][0]["points"][-1] == [10, 4.0]
    assert [sample["step"] for sample in data["samples"]] == [10]
    for missing, field in (("samples.jsonl", "samples"), ("config.yaml", "config")):
        (run / missing).unlink()
        assert not Page(report_of(run)).data[field]


def test_the_summary_says_what_was_reached(run):
    (run / "metrics.csv").write_text(METRICS + "30,3000,2.9,3.6,2.6,0.1,100.0,,\n")
    reached = "validation: 2.6000 bits per byte after 30 steps, best 2.5000 after 20"
    assert f"{reached}\n" in finish(run, None, open_run)
    assert (run / "report.html").exists()
    text = Path(json.__file__).read_text()
    bits = 8 * len(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)) / len(text.encode())
    assert f"{reached}; xz -9e needs {bits:.4f} for the same text\n" in finish(run, text, open_run)


def test_a_model_page_of_an_earlier_step_does_not_stay(run):
    """A run whose heads were not recorded has none, and a resumed one must not show the model as it was before."""
    (run / "model.html").write_text("the model as it was")
    (run / "attention" / "scores.jsonl").unlink(missing_ok=True)
    summary = finish(run, None, open_run)
    assert "model.html" not in summary and "inspect_attention.py" not in summary  # which would find nothing
    assert not (run / "model.html").exists()


def test_commands_of_the_summary_can_be_pasted_even_if_nothing_was_trained(tmp_path, caplog):
    run = tmp_path / "my runs" / "a"
    summary = finish(run, None, open_run)
    assert summary.startswith("nothing was trained") and "--resume" not in summary
    (run / "checkpoints").mkdir(parents=True)
    summary = finish(run, None, open_run)
    assert f"--resume '{run}' --trainer.max_steps" in summary and "nothing was trained" in summary
    assert f"everything is in {run}/: checkpoints\n" in summary
    assert "There is no report of this run" in caplog.text


def test_the_report_says_from_which_step_experiments_hold_and_one_that_fails_does_not_fail_the_run(run, caplog):
    write_recording(HISTORY, run / "attention")
    assert Page(report_of(run)).data["experiments"] == ""
    found = run / "attention" / "experiments.json"
    found.write_text('{"Nothing at all": 400, "A made-up word, twice": 1500}')
    told = "Nothing at all: step 400; A made-up word, twice: step 1,500"
    assert Page(report_of(run)).data["experiments"] == told
    found.write_text('["Nothing at all"]')
    finish(run, None, open_run)
    assert re.search(r"There is no report of this run: .*experiments\.json is damaged", caplog.text)
