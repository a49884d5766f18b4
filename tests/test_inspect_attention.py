"""scripts/inspect_attention.py: pages and pictures of runs and prompts, and a sentence for every mistake."""

import shlex
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from data.tokenizers import byte_level
from model.gpt import GPT, GPTConfig
from model.inspection.reading import read
from model.inspection.recording import Recording, take_snapshot
from model.inspection.texts import Texts, repeated_tokens
from scripts.inspect_attention import main
from tests.command_lines import refused, tells
from tests.gpts import random_gpt, save_checkpoint
from tests.html_pages import Page
from tests.small_runs import csv_rows

TEXT = "for i in range(10):\n"


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with two runs, as training leaves them, the second the newer."""
    folder = tmp_path_factory.mktemp("workplace")
    make_run(folder / "runs" / "first", seed=0)
    make_run(folder / "runs" / "second", seed=1)
    return folder


@pytest.fixture(autouse=True)
def here(request, monkeypatch):
    monkeypatch.chdir(request.getfixturevalue("workplace"))


def make_run(run: Path, seed: int) -> None:
    gpt, tokenizer = small_gpt(seed), byte_level()
    tokens = tokenizer.encode(TEXT)
    drawn = repeated_tokens(range(256), (len(tokens) - 1) // 2, first=256)
    probes = {"text": Texts.of(tokens, tokenizer.label)}
    probes["repeated"] = Texts.of(drawn, tokenizer.label, kind="repeated")
    recording = Recording(probes, tokenizer=tokenizer.fingerprint, folder=run / "attention")
    for step in (0, 1, 2):
        recording.append(take_snapshot(gpt, step, recording))
    save_checkpoint(run / "checkpoints" / "best.ckpt", gpt)


def small_gpt(seed: int) -> GPT:
    return random_gpt(GPTConfig(vocab_size=257, context_length=32, num_layers=2, num_heads=3, embed_dim=24), seed)


def page_of(*arguments: str) -> Page:
    assert main([*arguments, "--output", "maps.html"]) == 0
    return Page(Path("maps.html"))


def test_a_run_becomes_a_page(capsys):
    assert main(["--run", "runs/first"]) == 0
    page = Path("runs/first/report.html")
    assert str(page) in capsys.readouterr().out
    data = Page(page).data
    assert data["title"] == "first" and [c["step"] for c in data["run"]["snapshots"]] == [0, 1, 2, 7]
    assert "".join(data["run"]["probes"][0]["labels"]) == TEXT == data["text"] and "status" not in data
    weights = read(small_gpt(0), byte_level().encode(TEXT)).maps
    np.testing.assert_allclose(Page(page).maps(), weights, atol=0.0045)


def test_a_prompt_is_shown_with_the_repeated_probe_of_the_recorded_run():
    text, probe = page_of("--checkpoint", "runs/first", "--prompt", "é</script>").data["run"]["probes"]
    assert text["labels"][:3] == ["\\xc3", "\\xa9", "<"]
    recorded = Recording.open(Path("runs/first/attention")).probes["repeated"]
    assert (probe["labels"], probe["period"]) == (recorded.labels[0], recorded.period)
    Path("alone.ckpt").write_bytes(Path("runs/first/checkpoints/best.ckpt").read_bytes())
    alone = page_of("--checkpoint", "alone.ckpt", "--prompt", "ab").data["run"]["probes"][1]
    assert alone["labels"] != recorded.labels[0] and alone["labels"][1:16] == alone["labels"][16:]


READERS = {
    ".html": lambda path: Page(path).data["title"] == "second",
    ".png": lambda path: min(imread(path).shape[:2]) > 150 and imread(path)[..., :3].std() > 0.05,
    ".svg": lambda path: ElementTree.parse(path).getroot().tag.endswith("svg"),
    ".pdf": lambda path: path.read_bytes().startswith(b"%PDF-"),
    ".csv": csv_rows,
}


ARGUMENTS = {
    "": (*READERS, ".SVG"),
    "--run runs/first --steps 1 --head 0.1 1.0": (".pdf", ".csv"),
    "--checkpoint runs/first --prompt 'ab\n' --head 0.0": (".png", ".csv"),
}


@pytest.mark.parametrize(
    ("arguments", "suffix"), [(choice, suffix) for choice, suffixes in ARGUMENTS.items() for suffix in suffixes]
)
def test_every_kind_of_file_can_be_written(arguments, suffix):
    assert main([*shlex.split(arguments), "--output", f"taken{suffix}"]) == 0
    assert READERS[suffix.lower()](Path(f"taken{suffix}"))


@pytest.mark.parametrize("opens", [True, False])
def test_the_written_file_is_opened_where_there_is_a_browser(opens, monkeypatch, capsys):
    opened, output = [], Path("opened.svg")
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or opens)
    assert main(["--run", "runs/first", "--output", str(output), "--open"]) == 0
    assert opened == [output.resolve().as_uri()]
    said = capsys.readouterr().out
    assert str(output) in said and ("no browser" in said) != opens and said.count("\n") == 1


def test_of_a_prompt_that_is_too_long_the_end_is_read_and_that_is_said(caplog):
    data = page_of("--checkpoint", "runs/first", "--prompt", "a" * 20 + "b \n" + "b" * 29).data
    assert "".join(data["run"]["probes"][0]["labels"]) == data["text"] == "b \n" + "b" * 29
    assert data["title"].startswith(f"“b {'b' * 29}”") and tells(caplog.text, "52 32")


def test_the_newest_run_is_the_default():
    assert page_of().data["title"] == "second"
    assert page_of("--prompt", "x = 1").data["title"].startswith("“x = 1” read by second")


def test_a_prompt_is_followed_over_the_kept_checkpoints(tmp_path):
    gpts = {0: small_gpt(0), 5: small_gpt(1)}
    for step, gpt in gpts.items():
        save_checkpoint(tmp_path / "followed" / "checkpoints" / f"step_{step:08d}.ckpt", gpt, step)
    save_checkpoint(tmp_path / "followed" / "checkpoints" / "best.ckpt", gpts[5], 5)
    prompt = ["--checkpoint", str(tmp_path / "followed"), "--prompt", "x = x + 1", "--steps", "5,0"]
    page = page_of(*prompt)
    data = page.data
    assert tells(data["title"], "x + 1 followed 0 5")
    assert page.json("manifest")["steps"] == [0, 5] and data["text"] == "x = x + 1"
    snapshots = data["run"]["snapshots"]
    assert [snapshot["step"] for snapshot in snapshots] == [0, 5]
    for number, snapshot in enumerate(snapshots):
        weights = read(gpts[snapshot["step"]], byte_level().encode("x = x + 1")).maps
        np.testing.assert_allclose(page.maps(snapshot=number), weights, atol=0.0045)


MISTAKES = [
    ("--run bare", "bare attention/scores.jsonl"),
    ("--prompt x", "prompt 2 1"),
    ("--output maps.jpg", "--output maps.jpg .html .png .svg"),
    ("--output folder.html", "folder.html directory"),
    ("--steps 0,1", "--steps --prompt"),
    ("--steps 0,x --prompt ab", "--steps '0,x'"),
    ("--steps 0,1 --output maps.png", "--steps one"),
    ("--run runs/first --steps 9 --output maps.png", "--steps 9 2"),
    ("--head 2.0 --output maps.png", "--head 0.0 1.2 2.0"),
    ("--head 1.0", "--head --output .png, .svg, .pdf, .csv"),
    ("--run begun --output a.png", "begun maps"),
    ("--experiments --prompt ''", "--experiments --run"),
    ("--experiments --open", "--experiments --run"),
]


@pytest.fixture(scope="module")
def mistakes(workplace):
    (workplace / "bare").mkdir()
    (workplace / "folder.html").mkdir()
    shutil.copytree(workplace / "runs" / "first", workplace / "begun")
    (workplace / "begun" / "attention" / "scores.jsonl").write_bytes(b"")


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=ascii)
def test_a_mistake_gets_one_sentence_and_leaves_nothing(arguments, message, mistakes, workplace, capsys):
    before = set(workplace.rglob("*"))
    assert tells(refused(main, capsys, *shlex.split(arguments)), message)
    assert set(workplace.rglob("*")) == before
