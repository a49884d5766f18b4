"""A run's report: written at its end, written again by scripts/report.py, and a sentence for every mistake."""

import shlex
from pathlib import Path

import pytest

from scripts.report import main
from tests.command_lines import refused


def test_a_run_has_a_report_that_can_be_written_again(finished_run, capsys):
    report = finished_run / "report.html"
    page = report.read_text(encoding="utf-8")
    assert "val/loss" not in page and '"bits per byte"' in page and 'id="attention"' in page
    report.unlink()
    for options in ([], ["--run=runs/run"], ["--run=runs/run/checkpoints/best.ckpt"]):
        assert main(options) == 0
        assert "wrote" in capsys.readouterr().out
        assert report.read_text(encoding="utf-8") == page
        report.unlink()
    assert main(["--output=other.html"]) == 0
    # Elsewhere the page that holds the model does not stand beside it.
    assert Path("other.html").read_text(encoding="utf-8") == page.replace('"model":"model.html"', '"model":""')


MISTAKES = {
    "": "there is no run under runs/ with metrics.csv yet",
    "--run=nowhere": "there is no nowhere",
    "--run=here": "here is not a run folder with metrics.csv",
    "--run=here --output=report.pdf": "must end in .html",
    "--run=begun": "begun/samples.jsonl: Is a directory",
}


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_gets_one_sentence(tmp_path, here, capsys, typed):
    Path("here").mkdir()
    Path("begun/samples.jsonl").mkdir(parents=True)
    Path("begun/metrics.csv").write_text("step,train/loss\n1,2.5\n")
    assert MISTAKES[typed] in refused(main, capsys, *shlex.split(typed))
    assert len(list(tmp_path.rglob("*"))) == 4
