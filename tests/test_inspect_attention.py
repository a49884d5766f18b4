"""scripts/inspect_attention.py: pages, pictures and tables of runs and prompts, and a sentence for every mistake."""

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

from data.tokenizers import byte_level
from model.checkpoint import load_gpt
from model.inspection.reading import read
from model.inspection.recording import Recording
from model.inspection.texts import Texts
from scripts.inspect_attention import main
from tests.command_lines import check_mistakes, tells
from tests.html_pages import Page

RUN = Path("runs/run")


@pytest.fixture(scope="module")
def workplace(trained, tmp_path_factory):
    """A folder with a finished run."""
    folder = tmp_path_factory.mktemp("workplace")
    shutil.copytree(trained("--checkpoints.keep_steps=[0,3,4,8,12,99]"), folder / RUN)
    return folder


@pytest.fixture(autouse=True)
def here(workplace, monkeypatch):
    monkeypatch.chdir(workplace)


def page_of(*arguments):
    assert main([*arguments, "--output", "maps.html"]) == 0
    return Page(Path("maps.html"))


def test_without_options_it_writes_the_page_of_the_newest_run(capsys):
    assert main([]) == 0
    page = Page(RUN / "report.html")
    assert str(RUN / "report.html") in capsys.readouterr().out
    assert page.data["title"] == "run" and not page.data["status"]


def test_a_prompt_is_shown_with_the_repeated_probe_of_the_recorded_run():
    text, probe = page_of("--prompt", "é</script>").data["run"]["probes"]
    assert text["labels"][:3] == ["\\xc3", "\\xa9", "<"]
    recorded = Recording.open(RUN / "attention").probes["repeated"]
    assert (probe["labels"], probe["period"]) == (recorded.labels[0], recorded.period)
    shutil.copy(RUN / "checkpoints/best.ckpt", "alone.ckpt")
    alone = page_of("--checkpoint", "alone.ckpt", "--prompt", "ab").data["run"]["probes"][1]
    assert alone["labels"] != recorded.labels[0] and alone["labels"][1:8] == alone["labels"][8:]


WRITTEN = {  # what is typed, and how its file begins
    "--output taken.SVG": b"<?xml",
    "--run runs/run --steps 4 --head 0.1 1.0 --output taken.pdf": b"%PDF-",
    "--checkpoint runs/run --prompt 'ab\n' --head 0.0 --output taken.png": b"\x89PNG",
    "--checkpoint runs/run --prompt 'ab\n' --output taken.csv": b"run,step,layer",
}


@pytest.mark.parametrize("typed", WRITTEN)
def test_every_kind_of_file_can_be_written(typed):
    arguments = shlex.split(typed)
    assert main(arguments) == 0
    assert Path(arguments[-1]).read_bytes().startswith(WRITTEN[typed])


def test_the_film_of_a_run_is_an_animated_picture_of_each_step(capsys):
    assert main(["--film", "film.gif"]) == 0 and "film.gif" in capsys.readouterr().out
    milliseconds = [frame.info["duration"] for frame in ImageSequence.Iterator(Image.open("film.gif"))]
    assert len(milliseconds) == len(Recording.open(RUN / "attention").mapped)
    assert milliseconds[-1] > milliseconds[0]  # it stands still at the end


def test_the_end_of_a_prompt_that_is_too_long_is_read_with_a_warning(caplog):
    data = page_of("--prompt", "a" * 20 + "b \n" + "b" * 13).data
    assert "".join(data["run"]["probes"][0]["labels"]) == data["text"] == "b \n" + "b" * 13
    assert data["title"].startswith(f"“b {'b' * 13}” read by run") and tells(caplog.text, "36 16")


def test_the_page_of_a_prompt_has_maps_of_the_kept_checkpoints():
    page = page_of("--run", str(RUN), "--prompt", "x = x + 1", "--steps", "3,0")
    assert tells(page.data["title"], "x + 1 run 0 3") and page.data["text"] == "x = x + 1"
    assert page.json("manifest")["steps"] == [0, 3]
    for number, step in enumerate((0, 3)):
        gpt, _ = load_gpt(RUN / f"checkpoints/step_{step:08d}.ckpt")
        weights = read(gpt, Texts.of(byte_level().encode("x = x + 1"))).maps
        np.testing.assert_allclose(page.maps(snapshot=number), weights, atol=0.0045)


MISTAKES = {
    "--run bare": "bare attention/scores.jsonl",
    "--run runs/run --checkpoint runs/run": "--checkpoint --run",
    "--prompt x": "'x' 2 1",
    "--output maps.jpg": "--output maps.jpg .html .png .svg",
    "--output folder.html": "folder.html directory",
    "--steps 0,1": "--steps --prompt",
    "--steps 0,x --prompt ab": "--steps '0,x'",
    "--steps 0,1 --output maps.png": "--steps one",
    "--steps 9 --output maps.png": "--steps 9 8",
    "--head 2.0 --output maps.png": "--head 0.0 1.1 2.0",
    "--head 1.0": "--head --output .png, .svg, .pdf, .csv",
    "--run begun --output a.png": "begun maps",
    "--experiments --prompt ''": "--experiments --run",
    "--film film.png": "--film .gif",
    "--film film.gif --steps 0": "--film --run",
}


def test_every_mistake_gets_one_sentence_and_leaves_nothing(workplace, capsys):
    (workplace / "bare").mkdir()
    (workplace / "folder.html").mkdir()
    shutil.copytree(workplace / RUN, workplace / "begun")
    (workplace / "begun/attention/scores.jsonl").write_bytes(b"")
    before = set(workplace.rglob("*"))
    check_mistakes(main, capsys, MISTAKES)
    assert set(workplace.rglob("*")) == before
