"""The page that holds a model, in a real browser: what a user types, switches off and patches, against PyTorch."""

import math
import random
import re
from dataclasses import replace

import pytest
import torch

from model.generation import generate
from model.gpt import GPT
from model.inspection.experiments import try_all
from model.inspection.parts import losses_without_each, part_means, replaced, rises
from model.inspection.reading import read
from model.inspection.recording import take_snapshot
from model.inspection.texts import Texts
from model.pages.page import run_page
from tests.command_lines import tells
from tests.gpts import repeating_gpt
from tests.model.pages.browsing import (
    address,
    click,
    in_page,
    number_in,
    point_at,
    press,
    put,
    settle,
    shares,
    slide,
    unnamed,
    until,
    wait_for,
)
from tests.model.pages.model_pages import (
    CONFIG,
    GPTS,
    LETTERS,
    OPENING,
    TOKENIZER,
    page_of,
    plain_gpt,
    recording_of,
    windows,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def page(open_page):
    return open_page(page_of(*GPTS))


@pytest.fixture(scope="module")
def slow_page():
    """A page whose model takes long enough to be interrupted."""
    config = replace(CONFIG, num_layers=4, num_heads=4, embed_dim=128, context_length=256)
    return page_of(*(plain_gpt(seed, config) for seed in (0, 1)))


def type_text(page, text):
    page.fill("#box", text)
    settle(page)


@torch.no_grad()
def logits_of(gpt, text):
    """The logits (T, V) of the last 32 tokens of a text, or of end-of-text if it is empty."""
    return gpt(torch.tensor([(TOKENIZER.encode(text) or [TOKENIZER.end_of_text])[-32:]]))[0]


# The listed next tokens, each with its probability on every side.
NEXT = """[...document.querySelectorAll("#next button")].map((row) => [
  row.querySelector("bdi").textContent.replace("·", " "),
  ...[...row.querySelectorAll("i")].map((bar) => parseFloat(bar.style.width) / 100)])"""


def assert_next(page, text, gpt=GPTS[-1]):
    """Asserts that the listed tokens are those that the model gives after a text."""
    top, ids = logits_of(gpt, text)[-1].softmax(-1).topk(8)
    shown = page.evaluate(NEXT)
    assert [text for text, _ in shown] == [chr(token) for token in ids]
    assert [share for _, share in shown] == pytest.approx(top.tolist(), abs=1e-3)


def test_typed_and_clicked_text_gets_the_figures_of_pytorch(page):
    assert page.title() == "tiny" and page.input_value("#box") == OPENING
    assert "PyTorch" in page.inner_text("#parity.good")
    assert_next(page, OPENING)
    for text in (OPENING, "def f(x):", "def f(x): return"):
        type_text(page, text)
        reading = read(GPTS[-1], Texts.of(TOKENIZER.encode(text)))
        assert page.locator("#tokens span").all_inner_texts() == list(text)
        assert_next(page, text)
        assert tells(page.inner_text("#cost"), f"{len(text)} {reading.loss:.2f} {reading.loss / math.log(2):.2f}")
        click(page, ".thumb >> nth=3")
        point_at(page, len(text) - 1, 2)
        percent = 100 * reading.maps[1, 1, -1, 2].item()
        assert f"gives {percent:.{int(percent < 9.95)}f}%" in page.inner_text("#readout")
    for _ in range(2):
        text += page.evaluate(NEXT)[1][0]
        click(page, "#next button >> nth=1")
        assert page.input_value("#box") == text
        assert_next(page, text)


@torch.no_grad()
def test_the_bars_show_the_current_tokens_probabilities_with_temperature_and_top_k(page):
    type_text(page, "def f(x): return")
    in_page(page, "render", "change({ token: 9 })")
    settle(page)
    shown = dict(page.evaluate(NEXT))
    expected = logits_of(GPTS[-1], "def f(x): return")[9].softmax(-1)
    assert "r" in shown  # the true next token is listed
    assert shown == pytest.approx({text: expected[ord(text)].item() for text in shown}, abs=5e-3)
    assert page.locator("#next button:enabled").count() == 0  # a token can be clicked only at the end
    type_text(page, "def g")
    put(page, "#temperature", 0.5)
    page.select_option("#top-k", "5")
    settle(page)
    values, ids = logits_of(GPTS[-1], "def g")[-1].topk(5)
    drawn = {text: share for text, share in page.evaluate(NEXT) if share}
    expected = zip(map(chr, ids), (values / 0.5).softmax(-1).tolist(), strict=True)
    assert drawn == pytest.approx(dict(expected), abs=1e-3)


def test_no_text_is_lost_and_undo_takes_back_each_change(page):
    """Undo takes back pasted, clicked and written text; the browser's "back" redoes it and stays on the page."""
    box = page.locator("#box")
    long = "0123456789ab" * 1000
    type_text(page, long)
    assert box.input_value() == long and page.inner_text("#cost").startswith("32 tokens")
    assert "12,000" in page.inner_text("#window")
    texts = [OPENING, long]
    click(page, "#next button >> nth=0")
    texts.append(box.input_value())
    put(page, "#temperature", 0)
    box.press("Control+Enter")
    wait_for(page, "#speed", "wrote 200")
    put(page, "#temperature", 1)
    written = generate(GPTS[-1], torch.tensor([TOKENIZER.encode(texts[-1])]), 200, temperature=0)
    texts.append(TOKENIZER.decode(written[0].tolist()))
    assert box.input_value() == texts[-1]
    for text in texts[-2::-1]:
        press(page, "Control+z")
        assert box.input_value() == text
        assert_next(page, text)
    assert page.is_disabled("#undo")
    for text in texts[1:]:
        page.go_back()
        settle(page)
        assert box.input_value() == text
    box.press("End")
    page.keyboard.type("abc")  # without a pause: one change to undo
    settle(page)
    click(page, "#undo")
    page.evaluate("() => { for (const _ of 'ab') document.getElementById('write').click() }")  # and stops
    wait_for(page, "#speed", "wrote 0")
    assert box.input_value() == texts[-1]


def test_any_text_can_be_typed_and_is_shown_as_text(page):
    typed = {  # what the note contains, and the number of tokens that are read
        "": ("empty", 1),
        "x" * 10_000: ("10,000", 32),
        'ab\n<img src=x onerror="alert(1)"></script>': ("42", 32),
        "é😀\udc00\n\u202eabc": ("", 16),
        "\ufeffab\u200b": ("", 8),
    }
    for text, (part, count) in typed.items():
        put(page, "#box", text)
        note = page.inner_text("#window")
        assert part in note if part else note == ""
        assert page.locator("#tokens [data-odd]").count() == sum(char in "\u202e\udc00\ufeff\u200b" for char in text)
        assert page.locator("#editor").evaluate("box => box.scrollTop + box.clientHeight > box.scrollHeight - 2")
        assert in_page(page, "render", "shown.labels.length") == count
        assert page.locator("#text img, .lens img").count() == 0
        assert page.locator("#tokens").evaluate("box => box.textContent") == text + "\u200b"
        assert_next(page, text.replace("\udc00", "\ufffd"))
    type_text(page, "ab שלום c")
    for span in page.locator("#tokens span").all():
        span.click(force=True)
        settle(page)
        assert in_page(page, "state", "state.token") == int(span.get_attribute("data-index"))


def test_switching_parts_off_changes_the_loss_as_in_pytorch(page, open_page):
    text = Texts.of(TOKENIZER.encode(OPENING))
    losses = losses_without_each(GPTS[-1], text, part_means(GPTS[-1], text))
    expected = {part: change.rise for part, change in rises(losses).items()}
    press(page, "ArrowDown", "x")  # the next head
    thumb = page.locator(".thumb.off")
    name = thumb.get_attribute("aria-label")
    assert "switched off" in name
    layer, head = re.findall(r"\d", name)[:2]
    assert damage(page) == pytest.approx(expected[f"head {layer}.{head}"], abs=0.006)
    click(page, ".thumb.off")
    assert page.is_hidden("#damage b")
    click(page, "#grid [aria-label='feed-forward 1']")
    assert damage(page) == pytest.approx(expected["feed-forward 1"], abs=0.006)
    click(page, "#grid [aria-label='value embeddings 1']")  # and another
    assert not unnamed(page)
    again = open_page(page_of(*GPTS), hash_=f"#{page.url.partition('#')[2]}")
    assert damage(again) == damage(page) != pytest.approx(expected["feed-forward 1"], abs=0.006)
    for where in ("#damage", "#changed"):
        assert "feed-forward 1 and value embeddings 1" in again.locator(where).inner_text()
    click(again, "#as-trained")
    assert again.is_hidden("#damage b")


def damage(page):
    """The change of the loss that the page tells."""
    return number_in(page.inner_text("#damage b"))


def test_a_patched_head_changes_the_logit_as_in_pytorch(page):
    click(page, "text=Patch it")
    page.fill("#other-text", "two")
    settle(page)
    assert "A has 23 tokens and B 3" in page.inner_text("#patch-note")
    page.fill("#other-text", OPENING[::-1])
    settle(page)
    page.evaluate("() => { for (const _ of 'ab') document.getElementById('patch-all').click() }")  # starts and cancels
    assert page.inner_text("#patch-note") == "" and page.is_hidden("#patch-matrix")
    page.click("#patch-all")
    wait_for(page, "#patch-note", "square")
    matrix = page.locator("#patch-matrix")
    matrix.focus()
    press(matrix, *["ArrowDown"] * 2, *["ArrowRight"] * 30)  # head 1.0, at the last token
    told = page.inner_text("#patch-note")
    assert told.startswith("head 1.0 at token 22")
    given = read(GPTS[-1], Texts.of(TOKENIZER.encode(OPENING[::-1]))).heads[1, 0, -1]
    plain = logits_of(GPTS[-1], OPENING)
    with replaced(GPTS[-1], {"head 1.0": given}, 22):
        change = logits_of(GPTS[-1], OPENING) - plain
    expected = change[-1, int(page.input_value("#patch-target"))].item()
    assert number_in(told.split()[-1]) == pytest.approx(expected, abs=0.011) != 0
    press(matrix, "Enter")
    assert (address(page)["head"], address(page)["token"]) == ("1.0", "22")


def test_the_slider_selects_the_step_whose_weights_answer(page):
    type_text(page, "ab")
    for at in (1, 0):
        slide(page, at)
        assert page.inner_text("#slide-a output") == f"step {[0, 8][at]}"
        assert page.locator("#parity.good").count() == 1
        assert_next(page, "ab", GPTS[at])
    page.click("#compare")  # step 0 beside itself, then beside the other
    page.locator("#slide-b input").press("End")
    type_text(page, "abc")
    of_both = torch.stack([logits_of(gpt, "abc")[-1].softmax(-1) for gpt in GPTS])
    shown = {ord(text): found for text, *found in page.evaluate(NEXT)}
    assert {*of_both.argmax(-1).tolist()} <= shown.keys()
    for token, found in shown.items():
        assert found == pytest.approx(of_both[:, token].tolist(), abs=1e-3)


def test_a_step_without_weights_shows_the_recorded_text_and_its_button_as_pressed(open_page):
    recording = recording_of(OPENING, has_film=True)
    recording.append(take_snapshot(GPTS[0], 4, recording, TOKENIZER.label))
    models = [(8 * i, gpt) for i, gpt in enumerate(GPTS)]
    page = open_page(run_page("tiny", recording, models=models, tokenizer=TOKENIZER))

    def shown():
        return page.inner_text("#probes [aria-pressed=true]"), page.inner_text("#cost").split()[0]

    def assert_shown_instead(recorded, *sliders):
        before = shown()
        for slider in sliders:
            slide(page, 1, slider)
        assert shown()[0] == recorded != before[0] == "your text"
        click(page, "#window button >> nth=-1")
        assert shown() == before

    type_text(page, in_page(page, "state", "data.film.text"))
    assert_shown_instead("word", "#slide-a")
    type_text(page, "ab")
    click(page, "#compare")
    assert_shown_instead("recorded", "#slide-b")
    assert_shown_instead("recorded", "#slide-a", "#slide-b")


def test_the_focus_stays_at_its_place_when_what_had_it_is_drawn_anew_or_goes(page):
    click(page, "text=Break it")
    press(page, "x")
    for part in ("reading", "square", "worse", "changed", "parts", "measured-at"):
        press(page.locator(f"#{part} button").first, "Enter")
        place = page.evaluate("document.activeElement.parentElement.closest('[id]').id")
        assert place == {"square": "panes", "changed": "slide-a"}.get(part, part)


PANELS = """#tokens #sentences #reading #next #cost #damage #worse #changed
    #lenses #parts #attribution-what #attribution-badge #patch-matrix #parity #notes"""
SHOWN = """(panels) => Object.fromEntries([
  ...panels.map((panel) => [panel, document.querySelector(panel)])
    .map(([panel, one]) => [panel, one.checkVisibility() ? one.innerText : ""]),
  ...panels.map((panel) => [`colours of ${panel}`, [...document.querySelectorAll(`${panel} [style]`)]
    .filter((one) => one.checkVisibility()).map((one) => one.getAttribute("style")).filter(Boolean).join("|")]),
  ...[...document.querySelectorAll(".thumb canvas, #map")]
    .map((canvas, i) => [`picture ${i}`, canvas.toDataURL()])])"""
# Runs actions of a user, each with the milliseconds until the next; the user does not wait for the page.
ACTIONS = """async (chosen) => {
  const $ = (selector) => document.querySelector(selector);
  const any = (nodes) => nodes[Math.floor(random * nodes.length)];
  let random;
  const input = (node, value) => ((node.value = value), node.dispatchEvent(new Event("input")));
  const letters = "abcdefgh ():=\\n";
  const actions = {
    type: () => $("#box").readOnly || input($("#box"), $("#box").value + any(letters)),
    erase: () => $("#box").readOnly || input($("#box"), $("#box").value.slice(0, -Math.ceil(5 * random))),
    step: () => input($("#slide-a input"), Math.round(random)),
    "other step": () => $("#slide-b").hidden || input($("#slide-b input"), Math.round(random)),
    compare: () => $("#compare").click(),
    head: () => any(document.querySelectorAll("#grid .thumb")).click(),
    part: () => ($("#panels").children[1].click(), any(document.querySelectorAll("#grid .part")).click()),
    patching: () => $("#panels").children[2].click(),
    "text B": () => input($("#other-text"), random < 0.2 ? "" : "black" + Math.floor(1e6 * random)),
    "patch all": () => $("#patch").hidden || $("#patch-all").click(),
    write: () => $("#write").click(),
    next: () => $("#next").children[0]?.firstChild.click(),
    token: () => any($("#tokens").children).click(),
  };
  for (const [name, number, pause] of chosen) {
    random = number;
    actions[name]();
    await new Promise((done) => setTimeout(done, pause));
  }
  return Object.keys(actions);
}"""


def test_after_any_actions_the_panels_show_what_a_fresh_page_shows(open_page, slow_page):
    page, draws = open_page(slow_page, hash_="#b=blackboard"), random.Random(6)
    names = [*page.evaluate(ACTIONS, []), *3 * ("type", "step", "compare", "patch all")]
    chosen = [(draws.choice(names), draws.random(), draws.choice([0, 0, 10, 70, 180])) for _ in range(50)]
    page.evaluate(ACTIONS, chosen)
    if page.get_attribute("#write", "aria-pressed") == "true":
        page.click("#write")
    settle(page)
    page.evaluate("import('browser/state.js').then(({ save }) => save())")
    fresh = open_page(slow_page, hash_=f"#{page.url.partition('#')[2]}")
    if page.is_visible("#patch-matrix"):
        click(fresh, "#patch-all")
    found, expected = (one.evaluate(SHOWN, PANELS.split()) for one in (page, fresh))
    assert {name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)} == set()
    assert found["#notes"] == "" and page.locator("#parity.good").count() == 1


SAID = """(told) => [document.getElementById("notes")?.innerText, getComputedStyle(document.body, "::before").content]
  .some((one) => one?.includes(told))"""


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda page: page[: page.index("importmap") + 5000], "cut short"),
        (lambda page: page[: page.index('id="block-') + 500], "cut short"),
        (lambda page: page[: page.index('id="weights-1"') + 500], "cut short"),
        (lambda page: page.replace(f'"activation":"{CONFIG.activation}"', '"activation":"sine"'), "sine"),
    ],
    ids=["cut in the program", "cut in the maps", "cut in the weights", "unknown activation"],
)
def test_a_damaged_page_says_what_is_wrong(open_file, change, message):
    page = open_file(change(page_of(*GPTS)))
    until(page, SAID, message)
    for part in ("#box", "#writing", "#try"):
        assert page.locator(part).is_hidden()


def test_every_experiment_has_the_predicted_probabilities_on_the_page(open_page):
    gpt = repeating_gpt()
    untrained, recorded = GPT(gpt.config).eval(), windows(*LETTERS)["text"]
    page = open_page(page_of(untrained, gpt, texts=LETTERS))
    effects, _ = try_all(gpt, TOKENIZER, recorded)
    assert page.locator("#tries button").all_inner_texts() == [effect.title for effect in effects]
    for effect in effects:
        click(page, f"#tries >> text={effect.title}")
        assert page.input_value("#box") == effect.trial.text
        assert effect.look in page.inner_text("#experiment")
        click(page, "#experiment button")
        assert page.input_value("#box") == effect.trial.changed
        assert in_page(page, "render", "shown.off") == effect.off
        predicted, shown = page.locator("#predicted b").all_inner_texts()
        assert shown == predicted and shares(shown) == pytest.approx(effect.shares, abs=0.006)
        assert effect.question in page.inner_text("#experiment")
        click(page, "#experiment button")  # undoes the change
        assert in_page(page, "render", "shown.off") == [] and effect.look in page.inner_text("#experiment")
    click(page, "#tries >> text=A made-up word, twice")
    click(page, "#experiment button")
    type_text(page, "another text")
    assert in_page(page, "render", "shown.off") == [] and page.is_hidden("#changed")
    nowhere = open_page(page_of(untrained, texts=LETTERS))
    assert nowhere.locator("#tries button").count() == 0
    assert tells(nowhere.inner_text("#tries"), "made-up word 0% 60")
