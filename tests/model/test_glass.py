"""The library of a notebook: what it returns is what independent computations give, on a run and on GPT-2's format."""

import html
import json
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from data.tokenizers import byte_level
from model import open_run
from model.exchange.huggingface import to_huggingface
from model.glass import recording_of
from model.gpt import GPTConfig
from model.inspection.heads import measure_heads
from model.inspection.parts import replaced
from model.mistakes import Mistake
from tests.gpts import GPT2, huggingface_gpt2, random_gpt
from tests.notebooks import code_cells, text_of
from tests.notebooks import run as run_cells
from tests.small_runs import REPOSITORY

TEXT = "the model reads"


@pytest.fixture(scope="module")
def run(trained):
    return trained("--checkpoints.keep_steps=[4,8]")


@pytest.fixture(scope="module")
def glass(run):
    return open_run(run)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """Opened in a folder of GPT-2's format, with random weights."""
    gpt = random_gpt(GPTConfig(vocab_size=257, context_length=16, num_layers=2, num_heads=2, embed_dim=16, **GPT2))
    folder = tmp_path_factory.mktemp("gpt2") / "folder"
    to_huggingface(gpt, folder, byte_level())
    return open_run(folder)


def of(glass, **options):
    """What a page shows of the text, read with these options."""
    return recording_of([(glass, glass.read(TEXT, **options))])


def test_a_run_has_its_kept_steps_what_was_recorded_and_pages_and_writes(glass):
    assert glass.steps == [4, 8] and glass.at(8).step == 8
    assert glass.at(glass.step).step == glass.step  # the best checkpoint is there by its step too
    assert glass.recorded.steps[-1] == 12
    assert len(glass.write("the ", max_new_tokens=5, temperature=0.8)) > 0
    assert "<iframe" in glass.read(TEXT)._repr_html_() and "<iframe" in glass._repr_html_()


def test_readings_are_those_of_transformers(gpt2):
    reading = gpt2.read(TEXT)
    with torch.no_grad():
        result = huggingface_gpt2(gpt2.gpt)(reading.ids[None], output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(reading.maps, torch.cat(result.attentions), rtol=0, atol=1e-5)
    torch.testing.assert_close(reading.logits, result.logits[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(reading.residual[[0, 2]], torch.cat(result.hidden_states[:2]), rtol=1e-4, atol=1e-4)
    assert reading.loss == pytest.approx(F.cross_entropy(result.logits[0, :-1], reading.ids[1:]).item(), rel=1e-4)


def test_a_part_that_is_left_out_costs_the_same_on_every_path(glass):
    """As recorded while it was trained, as asked for in a table and a reading, and as on the page of the text.

    inspection/test_parts.py has edited weights.
    """
    recorded = glass.recorded.at(glass.step).ablation["text"]
    windows = glass.recorded.windows["text"]
    [shown] = of(glass).snapshots
    assert shown.ablation["text"] is recorded
    tokens = [*windows.tokens]
    on_windows = glass.ablate()
    on_texts = glass.ablate(tokens)
    whole = torch.tensor([glass.read(text).loss for text in tokens])
    assert max(abs(rise) for rise, _ in recorded.values()) > 1e-2
    assert [*on_windows] == sorted(on_windows, key=lambda part: -on_windows[part].rise)
    for part, change in recorded.items():
        assert on_windows[part] == pytest.approx(tuple(change), abs=1e-4), part
        assert on_texts[part] == pytest.approx(tuple(change), abs=1e-4), part
        rises = torch.tensor([glass.read(text, without=[part]).loss for text in tokens]) - whole
        assert (rises.mean(), rises.std() / len(rises) ** 0.5) == pytest.approx(tuple(change), abs=1e-4), part


def test_a_patched_head_gives_what_it_gives_in_the_other_text_and_the_reading_has_a_page(gpt2):
    plain = gpt2.read(TEXT)
    other = gpt2.read("which word comes")
    patched = gpt2.patch(TEXT, "which word comes", head=(0, 1), position=5, source=3)
    torch.testing.assert_close(patched.heads[0, 1, 5], other.heads[0, 1, 3])
    torch.testing.assert_close(patched.logits[:5], plain.logits[:5])
    assert not torch.allclose(patched.logits[5:], plain.logits[5:], atol=1e-3)
    torch.testing.assert_close(gpt2.patch(TEXT, TEXT, head=(0, 1), position=-1).logits, plain.logits)
    patched = gpt2.patch(TEXT, "which word comes", head=(0, 1), position=-1)  # where the repeated probe is no longer
    assert gpt2.repeated_probe().length <= len(TEXT) and "<iframe" in patched._repr_html_()
    with pytest.raises(Mistake, match="step 5"):
        gpt2.at(5)


def test_what_heads_do_in_an_edited_reading_is_told_of_the_edited_model(glass):
    """And of a patch, which is of its own text only, as in the plain model."""
    plain, edited = (of(glass, without=without) for without in ((), "feed-forward 0"))
    with replaced(glass.gpt, glass.read(TEXT, without="feed-forward 0").replacing):
        expected = measure_heads(glass.gpt, glass.recorded.windows).scores
    patched = recording_of([(glass, glass.patch(TEXT, "which model", head=(0, 0), position=5))])
    for name, scores in edited.snapshots[0].scores.items():
        np.testing.assert_allclose(scores, expected[name], atol=1e-5)
        np.testing.assert_array_equal(patched.snapshots[0].scores[name], plain.snapshots[0].scores[name])
    assert not np.allclose(expected["entropy"], plain.snapshots[0].scores["entropy"], atol=1e-5)
    assert edited.snapshots[0].ablation is None  # what was measured is not of this model
    for kind, told in patched.readings(glass.step).items():
        assert (told.figures == plain.readings(glass.step)[kind].figures) is (kind == "repeated")


def test_a_page_of_a_reading_is_not_made_with_a_model_that_has_changed_since(run):
    """Its heads would be told of another model than its maps."""
    glass = open_run(run)
    reading = glass.read(TEXT)
    assert "<iframe" in reading._repr_html_()
    with torch.no_grad():
        glass.gpt.head.weight *= 2
    assert "<iframe" not in (told := reading._repr_html_()) and "read it again" in told
    assert "<iframe" in glass.read(TEXT)._repr_html_()


def test_the_page_of_a_reading_has_its_text_whatever_its_caller_writes_into_the_ids(glass):
    reading = glass.read(TEXT)
    reading.ids.zero_()
    assert recording_of([(glass, reading)]).probes["text"].labels[0] == reading.tokens


def test_token_ids_are_one_text_in_any_form(glass):
    ids = glass.tokenizer.encode(TEXT)
    for form in (ids, tuple(ids), torch.tensor(ids), np.array(ids), [torch.tensor(id) for id in ids]):
        assert glass.read(form).ids.tolist() == ids
    assert glass.ablate(ids)["head 0.0"].rise == glass.ablate(TEXT)["head 0.0"].rise
    heads = ([1, 0], np.array([1, 0]), torch.tensor([1, 0]), (1, 0))
    first, *others = [glass.patch(TEXT, "which model", head=head, position=np.int64(5)).logits for head in heads]
    assert all(torch.equal(first, other) for other in others)


def test_a_model_that_was_trained_within_documents_reads_within_documents(run):
    """As with the ids that training gives: an end-of-text begins a document."""
    glass = open_run(run)
    glass.document_masking = True
    ids = torch.tensor([5, 256, *glass.tokenizer.encode("the"), 256, *glass.tokenizer.encode("the")])
    reading = glass.read(ids)
    with torch.no_grad():
        expected = glass.gpt(ids[None], document_ids=(ids == 256).cumsum(0)[None])[0]
    torch.testing.assert_close(reading.logits, expected, atol=1e-6, rtol=1e-6)
    assert open_run(run).ablate(ids)["head 0.0"].rise != glass.ablate(ids)["head 0.0"].rise


def test_a_reading_says_what_is_not_as_in_the_model(glass):
    plain = glass.read(TEXT)
    assert glass.name in plain.title and f"step {glass.step}" in plain.title
    assert glass.read(TEXT, without="head 0.1").title == f"{plain.title}, without head 0.1"
    patched = glass.patch(TEXT, "which word", head=(0, 1), position=2)
    assert "head 0.1" in patched.title and "token 2" in patched.title
    assert patched.title in html.unescape(patched._repr_html_())


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda glass: glass.at(5), "no checkpoint of step 5"),
        (lambda glass: glass.read(""), "is no text of at least one token"),
        (lambda glass: glass.read([300]), "must lie in"),
        (lambda glass: glass.read([0.5]), r"\[0.5\] is no text of at least one token, nor its ids \(T,\)"),
        (lambda glass: glass.read("the").attribution(of=-5), "of, .* must be a whole number from 0 to 256, not -5"),
        (lambda glass: glass.read("the").attribution(of=1.5), "of, .* must be a whole number .*, not 1.5"),
        (lambda glass: glass.read("the").attribution(99), "in this text, must be a whole number from -3 to 2, not 99"),
        (lambda glass: glass.read("the").top(at=None), "must be a whole number .*, not None"),
        (lambda glass: glass.ablate([5]), "at least two tokens"),
        (lambda glass: glass.patch("the", "the", head=(7, 0), position=0), "no part 'head 7.0': it has"),
        (lambda glass: glass.patch("the", "the", head=(0, 0), position=0, source=9), "source, .*, not 9"),
    ],
)
def test_a_mistake_gets_a_sentence(glass, ask, sentence):
    with pytest.raises(Mistake, match=sentence):
        ask(glass)


def test_a_list_of_texts_is_read_one_by_one_each_up_to_the_context_with_a_warning(glass, caplog):
    long = "the model reads a text and learns"
    assert "".join(glass.read(long).tokens) == long[-glass.gpt.config.context_length :]  # as when it writes
    assert "the model's context" in caplog.text
    without = glass.read("a text", without="head 0.0").loss  # one part needs no list
    first, second = glass.read([glass.tokenizer.encode("the model"), "a text"], without=iter(["head 0.0"]))
    assert "".join(first.tokens) == "the model" and second.loss == without != glass.read("a text").loss


def test_the_walkthrough_runs_from_its_first_cell_to_its_last(run, here):
    """In a folder with one run."""
    (here / "runs").mkdir()
    (here / "runs" / "first").symlink_to(run, target_is_directory=True)
    notebook = json.loads((REPOSITORY / "scripts" / "walkthrough.ipynb").read_text(encoding="utf-8"))
    assert not any(cell["outputs"] for cell in code_cells(notebook)), "the notebook is kept without outputs"
    printed = "".join(text_of(outputs) for outputs in run_cells(notebook))
    [head] = re.findall(r"(head \d\.\d) puts \d+% of its weight there", printed)
    assert f"bits without {head}, " in printed
