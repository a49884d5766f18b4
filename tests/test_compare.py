"""scripts/compare.py: a table, files of every kind, a sentence for every mistake; and the sweep file."""

import shutil
from pathlib import Path

import pytest
import yaml
from matplotlib.image import imread

from model.runs.configs import parse
from scripts.compare import main
from tests.command_lines import call, check_mistakes, tells
from tests.html_pages import Page
from tests.programs import REPOSITORY
from tests.small_runs import column, csv_rows


@pytest.fixture
def runs(trained, here):
    """Runs of two learning rates. They are copies of one run with another config."""
    runs = []
    for rate in ("0.01", "0.02"):
        run = Path(shutil.copytree(trained(), f"runs/{rate}"))
        config = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(config.replace("  learning_rate: 0.01\n", f"  learning_rate: {rate}\n"))
        runs.append(run)
    return runs


def test_the_table_has_a_row_for_each_variant_and_every_kind_of_file_can_be_written(runs, capsys):
    for axis, kind in [("steps", "pdf"), ("tokens", "png"), ("seconds", "svg"), ("flops", "HTML"), ("steps", "csv")]:
        status, out, _ = call(main, capsys, "--x", axis, "--output", f"runs.{kind}")
        assert status == 0 and sum("learning_rate 0.0" in line for line in out.splitlines()) == 2
    assert Path("runs.pdf").read_bytes().startswith(b"%PDF-") and imread("runs.png")[..., :3].std() > 0.05
    first, second = csv_rows("runs.csv")
    assert float(first["val/loss"]) == column(runs[0], "val/loss")[12] and float(second["difference"]) == 0
    svg, page = Path("runs.svg").read_text(), Path("runs.HTML").read_text()
    assert tells(svg, "seconds val/loss 0.01 0.02") and tells(page, "flops val/loss 0.01 0.02")
    assert "<svg" in page and not Page(page).suspicious and not Page(page).scripts
    assert tells(call(main, capsys, runs[0], "--to", "99")[1], f"{float(first['val/loss']):.4f} minutes 99")


MISTAKES = {
    "nowhere": "nowhere",
    "--output runs.jpg": "--output runs.jpg .svg .html",
    "--to low": "--to 'low'",
    "--fit": "4 sizes",
    "--x metres": "--x 'metres'",
}


def test_mistakes_get_one_sentence_and_write_nothing(runs, capsys):
    before = sorted(Path().rglob("*"))
    check_mistakes(main, capsys, MISTAKES)
    assert sorted(Path().rglob("*")) == before


def test_each_parameter_of_the_sweep_is_an_option_of_training(parser):
    sweep = yaml.safe_load((REPOSITORY / "configs/wandb/sweep.yaml").read_text(encoding="utf-8"))
    choices = {name: choice.get("values", [choice.get("value")]) for name, choice in sweep["parameters"].items()}
    assert (REPOSITORY / sweep["program"]).is_file() and (REPOSITORY / choices["config"][0]).is_file()
    for name, values in choices.items():
        for value in values:
            assert name in parse(parser, [f"--{name}={value}"])
