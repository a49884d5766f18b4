"""The API for notebooks returns what independent computations give, for a run and for a folder in GPT-2's format."""

import copy
import html
import json
import math
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from data.tokenizers import byte_level
from model import glass as module
from model import open_run
from model.exchange.huggingface import to_huggingface
from model.glass import recording_of
from model.inspection.heads import measure_heads
from model.inspection.parts import replaced
from model.mistakes import Mistake
from model.pages.page import run_page
from tests.command_lines import tells
from tests.gpts import CONFIGS, induction_gpt, random_gpt, save_checkpoint
from tests.html_pages import Page
from tests.model.pages.model_pages import LETTERS
from tests.model.pages.model_pages import recording_of as recording_of_letters
from tests.notebooks import code_cells, text_of
from tests.notebooks import run as run_cells
from tests.programs import REPOSITORY

TEXT = "the model reads"


@pytest.fixture(scope="module")
def run(trained):
    return trained("--checkpoints.keep_steps=[4,8]")


@pytest.fixture(scope="module")
def glass(run):
    return open_run(run)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A Glass of a folder in GPT-2's format, with random weights."""
    folder = tmp_path_factory.mktemp("gpt2") / "folder"
    to_huggingface(random_gpt(replace(CONFIGS["gpt2"], vocab_size=257)), folder, byte_level())
    return open_run(folder)


@pytest.fixture(scope="module")
def learned():
    """A Glass of a hand-made model whose heads follow patterns, as in a trained one."""
    glass = module.Glass(induction_gpt(), byte_level(), "learned")
    glass.recorded = recording_of_letters(*LETTERS)
    return glass


def of(glass, **options):
    """The recording that a page shows of the text, read with these options."""
    return recording_of([(glass, glass.read(TEXT, **options))])


def test_a_run_has_its_steps_its_recording_and_pages_and_can_write(glass):
    assert glass.steps == [4, 8] and glass.at(8).step == 8
    assert glass.at(glass.step).step == glass.step  # the best checkpoint can be opened by its step too
    assert glass.recorded.steps[-1] == 12
    ended, whole, other = (
        glass.write("the ", 40, seed=5, temperature=99.0, **options)
        for options in ({}, {"stop_token": None}, {"stop_token": glass.tokenizer.encode("e")[0]})
    )
    assert whole.startswith(ended) and len(whole) > len(ended) and "e" not in other
    assert "<iframe" in glass.read(TEXT)._repr_html_() and "<iframe" in glass._repr_html_()


def test_leaving_a_part_out_changes_the_loss_equally_on_every_path(glass):
    """As recorded in training, in a table, in a reading, and on the page. inspection/test_parts.py edits weights."""
    recorded = glass.recorded.at(glass.step).ablation["text"]
    [shown] = of(glass).snapshots
    assert shown.ablation["text"] is recorded
    tokens = [*glass.recorded.windows["text"].tokens]
    assert max(abs(rise) for rise, _ in recorded.values()) > 1e-2
    for found in (glass.ablate(), glass.ablate(tokens)):
        assert [*found] == sorted(found, key=lambda part: -found[part].rise)
        for part, change in recorded.items():
            assert found[part] == pytest.approx(tuple(change), abs=1e-4), part
    for part, (rise, _) in [*recorded.items()][::4]:  # every fourth, because each takes a reading of each text
        rises = [glass.read(text, without=[part]).loss - glass.read(text).loss for text in tokens]
        assert np.mean(rises) == pytest.approx(rise, abs=1e-4), part


def test_a_patched_head_has_its_output_of_the_other_text_and_the_reading_a_page(gpt2):
    plain = gpt2.read(TEXT)
    other = gpt2.read("which word comes")
    patched = gpt2.patch(TEXT, "which word comes", head=(0, 1), position=-1, source=3)
    assert patched.title.startswith(plain.title) and tells(patched.title, f"head 0.1 token {len(TEXT) - 1}")
    assert_close(patched.heads[0, 1, -1], other.heads[0, 1, 3])
    assert_close(patched.logits[:-1], plain.logits[:-1])
    assert not torch.allclose(patched.logits[-1], plain.logits[-1], atol=1e-3)
    assert_close(gpt2.patch(TEXT, TEXT, head=(0, 1), position=5).logits, plain.logits)
    assert gpt2.repeated_probe().length <= len(TEXT) and patched.title in html.unescape(patched._repr_html_())


def test_head_scores_of_an_edited_reading_are_those_of_the_edited_model(glass):
    """A patch is of its own text only, so its scores are those of the plain model."""
    plain, edited = (of(glass, without=without) for without in ((), "feed-forward 0"))
    with replaced(glass.gpt, *glass.read(TEXT, without="feed-forward 0").edit):
        expected = measure_heads(glass.gpt, glass.recorded.windows).scores
    patched = recording_of([(glass, glass.patch(TEXT, "which model", head=(0, 0), position=5))])
    for name, scores in edited.snapshots[0].scores.items():
        np.testing.assert_allclose(scores, expected[name], atol=1e-5)
        np.testing.assert_array_equal(patched.snapshots[0].scores[name], plain.snapshots[0].scores[name])
    assert not np.allclose(expected["entropy"], plain.snapshots[0].scores["entropy"], atol=1e-5)
    assert edited.snapshots[0].ablation is None  # it was measured on the plain model


def test_a_reading_has_no_page_after_its_model_has_changed(run):
    """Its head scores would be those of another model than its maps."""
    glass = open_run(run)
    reading = glass.read(TEXT)
    with torch.no_grad():
        glass.gpt.lm_head.weight *= 2
    assert "<iframe" not in reading._repr_html_()
    assert "<iframe" in glass.read(TEXT)._repr_html_()


def test_token_ids_and_heads_may_be_given_in_any_form(glass):
    ids = glass.tokenizer.encode(TEXT)
    for form in (ids, tuple(ids), torch.tensor(ids), np.array(ids), [torch.tensor(id) for id in ids]):
        assert glass.read(form).ids.tolist() == ids
    expected = glass.patch(TEXT, "which model", head=(1, 0), position=5).logits
    for head in ([1, 0], np.array([1, 0]), torch.tensor([1, 0])):
        assert torch.equal(glass.patch(TEXT, "which model", head=head, position=np.int64(5)).logits, expected)


def test_threads_that_share_a_model_read_what_each_would_read_alone(glass):
    texts = ["the model", "a text and", "which word", "learns"]
    asked = [(text, without) for text in texts for without in ((), "head 0.1", "feed-forward 1")]

    def told(text, without):
        reading = glass.read(text, without=without)
        return [reading.maps, reading.logits, reading.heads, reading.residual]

    expected = [told(*question) for question in asked]
    ids = torch.tensor([glass.tokenizer.encode(TEXT)])
    alone = glass.gpt(ids)
    with ThreadPoolExecutor(4) as threads:
        readings = [threads.submit(told, *question) for question in asked * 3]
        while not all(reading.done() for reading in readings):
            assert torch.equal(glass.gpt(ids), alone)  # another thread calls the model itself
        found = [reading.result() for reading in readings]
    for one, other in zip(found, expected * 3, strict=True):
        assert all(map(torch.equal, one, other))
    copies = [copy.deepcopy(glass.gpt), pickle.loads(pickle.dumps(glass.gpt))]  # nothing is left on the model
    assert all(torch.equal(one(torch.tensor([[5, 6]])), glass.gpt(torch.tensor([[5, 6]]))) for one in copies)


def test_a_model_trained_within_documents_reads_within_documents(run):
    """Each end-of-text begins a document, as in training."""
    glass = open_run(run)
    glass.document_masking = True
    ids = torch.tensor([5, 256, *glass.tokenizer.encode("the"), 256, *glass.tokenizer.encode("the")])
    reading = glass.read(ids)
    with torch.no_grad():
        expected = glass.gpt(ids[None], document_ids=(ids == 256).cumsum(0)[None])[0]
    assert_close(reading.logits, expected, atol=1e-6, rtol=1e-6)
    assert open_run(run).ablate([ids])["head 0.0"].rise != glass.ablate([ids])["head 0.0"].rise


MISTAKES = {  # what a user writes, and names and figures of the message
    "glass.at(5)": "5",
    "glass.read('')": "1 0",
    "glass.recorded.at(5)": "5 0 12",
    "glass.recorded.maps(5)": "5",
    "glass.read([300])": "300",
    "glass.read([0.5])": "[0.5] (T,)",
    "glass.read('the').attribution(of=-5)": "of 0 256 -5",
    "glass.read('the').attribution(of=1.5)": "of 1.5",
    "glass.read('the').attribution(99)": "-3 2 99",
    "glass.read('the').top(at='x')": "at x",
    "glass.read('the').top(at=None)": "at None",
    "glass.patch('the', 'and', head=(0, 0), position=None)": "position None",
    "glass.ablate([])": "2 [] 0",
    "glass.ablate(3)": "2 3",
    "glass.ablate([[5]])": "[5] 2 1",
    "glass.patch('the', 'the', head=(7, 0), position=0)": "7.0",
    "glass.patch('the', 'the', head=(0, 0), position=0, source=9)": "source 9",
    "glass.read('the').top(count=5000)": "count 1 257 5000",
    "glass.write('the', top_k=5.0)": "top_k 5.0",
    "glass.write('the', max_new_tokens=2.5)": "max_new_tokens 2.5",
    "glass.write('the', temperature='hot')": "temperature hot",
    "glass.write('the', seed=-1)": "seed -1",
    "glass.write(None)": "prompt None",
    "glass.read('a', without=3)": "without 3",
    "glass.read('a', without='head 0.9')": "head 0.0 0.9",
    "glass.patch('the', 'and', head=3, position=0)": "head 3",
    "glass.patch('the', 'and', head=(0,), position=0)": "head (0,)",
    "open_run(3)": "path 3",
    "open_run('lost/last.ckpt')": "lost/last.ckpt runs/NAME",
    "open_run(glass.path, step='8')": "step whole 8",
    "open_run(glass.path, other_code='x')": "other_code warn refuse accept x",
    "open_run(glass.path, device='toaster')": "device toaster cpu",
    "open_run(glass.path, device='xpu')": "device xpu cpu",
}


def test_every_mistake_gets_a_sentence(glass):
    for written, names in MISTAKES.items():
        with pytest.raises(Mistake) as caught:
            eval(written, {"glass": glass, "open_run": open_run})
        assert tells(str(caught.value), names), f"{written}: {caught.value}"


@pytest.mark.parametrize("token", [0, ord("a"), 256])
def test_any_single_token_is_a_text(learned, token):
    """For a model whose heads follow patterns."""
    reading = learned.read([token])
    assert math.isnan(reading.loss) and reading.surprise.shape == (0,) and reading.figures["rank"] == [None]
    assert sum(reading.attribution().values()) == pytest.approx(reading.logits.max().item(), abs=1e-4)
    assert "<iframe" in reading._repr_html_()


def test_a_text_ends_at_the_end_of_text_token_and_not_at_its_letters(learned, monkeypatch):
    letters = learned.tokenizer.encode("x = '<|endoftext|>' # end")
    drawn = [torch.tensor([token]) for token in [*letters, 256, 120]]
    monkeypatch.setattr(module, "stream", lambda *_, **options: iter(drawn))
    assert learned.write("y", 99) == "x = '<|endoftext|>' # end"
    tokens = torch.tensor([[120, 256, *letters, 256, 121]])
    recording = replace(learned.recorded, probes=learned.recorded.probes | {"text": learned.texts(tokens)})
    page = run_page("page", recording, models=[(0, learned.gpt)], tokenizer=learned.tokenizer)
    assert Page(page).data["text"] == "x = '<|endoftext|>' # end"


def test_weights_that_are_not_numbers_are_named_as_the_cause(learned, caplog, tmp_path):
    gpt = copy.deepcopy(learned.gpt)
    with torch.no_grad():
        gpt.blocks[0].attention.output_proj.weight[0, 0] = math.nan
    for made, warned in ((learned.gpt, False), (gpt, True)):
        save_checkpoint(tmp_path / "x.ckpt", made)
        glass = open_run(tmp_path / "x.ckpt")
        assert tells(caplog.text, "diverged not numbers") == warned
    page = html.unescape(glass.read("a text")._repr_html_())
    assert "not numbers: the model diverged" in page


def test_a_long_text_is_cut_with_a_warning_and_parts_are_named_with_or_without_a_list(glass, caplog):
    long = "the model reads a text and learns"
    assert "".join(glass.read(long).tokens) == long[-glass.gpt.config.context_length :]  # as generate.py does
    assert "context" in caplog.text
    plain, without, listed = (glass.read("a text", without=parts) for parts in ((), "head 0.0", iter(["head 0.0"])))
    assert listed.loss == without.loss != plain.loss
    assert without.title == f"{plain.title}, without head 0.0" and tells(plain.title, f"{glass.name} step {glass.step}")


def test_the_walkthrough_runs_from_its_first_cell_to_its_last(run, here):
    """In a folder with one run."""
    (here / "runs").mkdir()
    (here / "runs/first").symlink_to(run, target_is_directory=True)
    notebook = json.loads((REPOSITORY / "scripts/walkthrough.ipynb").read_text(encoding="utf-8"))
    assert not any(cell["outputs"] for cell in code_cells(notebook)), "the notebook is kept without outputs"
    printed = "".join(text_of(outputs) for outputs in run_cells(notebook))
    [head] = re.findall(r"(head \d\.\d) puts \d+% of its weight there", printed)
    assert f"bits without {head}, " in printed
