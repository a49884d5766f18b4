"""The page that holds the model, in a real browser: what a person types, breaks and patches, against PyTorch."""

import math
import random
import re
from dataclasses import replace
from urllib.parse import parse_qs

import pytest
import torch

from data.tokenizers import byte_level
from model.generation import generate
from model.gpt import GPT, GPTConfig
from model.inspection.ablation import ablation, part_means
from model.inspection.experiments import try_all
from model.inspection.probes import Probe, draw_repeated_probe
from model.inspection.recorder import capture
from model.inspection.survey import windows_of
from model.pages.live import model_page
from tests.gpts import random_gpt, repeating_gpt
from tests.model.pages.browsing import click, in_page, number_in, point_at, press, put, settle, slide, unnamed

pytestmark = pytest.mark.slow

TOKENIZER = byte_level()
CONFIG = GPTConfig(vocab_size=257, context_length=32, num_layers=2, num_heads=2, embed_dim=16, value_embeddings=True)
OPENING = "blacksmithblacksmithbla"
PRINTABLE = range(32, 127)


def plain_gpt(seed: int, config: GPTConfig = CONFIG) -> GPT:
    """A random GPT with weights that bfloat16 has exactly, which writes printable ASCII."""
    gpt = random_gpt(config, seed)
    with torch.no_grad():
        for weight in gpt.parameters():
            weight.copy_(weight.bfloat16())
        for token in set(range(257)) - set(PRINTABLE):
            gpt.head.weight[token] = 0
    return gpt


GPTS = [plain_gpt(seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The page of two snapshots."""
    return write_page(tmp_path_factory.mktemp("live") / "model.html", GPTS)


@pytest.fixture(scope="module")
def slow_page(tmp_path_factory):
    """A page whose model takes long enough to be interrupted."""
    config = replace(CONFIG, num_layers=4, num_heads=4, embed_dim=96, context_length=64)
    path = tmp_path_factory.mktemp("slow") / "model.html"
    return write_page(path, [plain_gpt(seed, config) for seed in (0, 1)])


def write_page(path, gpts):
    tokens = TOKENIZER.encode(OPENING)
    repeated = draw_repeated_probe(range(256), 10, TOKENIZER.label, first=256)
    probes = {"text": Probe(tokens, list(OPENING)), "repeated": repeated}
    page, _ = model_page("tiny", list(zip((0, 8), gpts, strict=True)), TOKENIZER, probes, tokens)
    path.write_text(page, encoding="utf-8")
    return path


@pytest.fixture
def open_page(open_file, written):
    def open_(path=written, **window):
        page = open_file(path, **window)
        settle(page)
        return page

    return open_


def type_text(page, text: str) -> None:
    page.locator("#box").fill(text)
    settle(page)


def predictions(gpt: GPT, text: str) -> tuple[list[float], torch.Tensor]:
    """The bits that each token but the first costs, and the probabilities of the next one."""
    tokens = torch.tensor([TOKENIZER.encode(text)])
    with torch.no_grad():
        logs = gpt(tokens)[0].log_softmax(-1)
    bits = -logs[:-1].gather(1, tokens[0, 1:, None])[:, 0] / math.log(2)
    return bits.tolist(), logs[-1].exp()


def shown_next(page) -> list[tuple[str, float]]:
    rows = page.locator("#next button").evaluate_all(
        "rows => rows.map((row) => "
        "[row.querySelector('bdi').textContent, parseFloat(row.querySelector('i').style.width)])"
    )
    return [(text.replace("·", " "), width / 100) for text, width in rows]


def assert_next(page, probabilities: torch.Tensor, count: int = 8) -> None:
    top, ids = probabilities.topk(count)
    shown = shown_next(page)
    assert [text for text, _ in shown] == [chr(token) for token in ids]
    assert [share for _, share in shown] == pytest.approx(top.tolist(), abs=1e-3)


def depths(page) -> list[float]:
    return page.locator("#coloured span").evaluate_all(
        "spans => spans.map((span) => Number(span.style.getPropertyValue('--depth')))"
    )


def test_what_is_typed_is_read_as_pytorch_reads_it(open_page):
    page = open_page()
    assert page.title() == "tiny: the model" and page.locator("#box").input_value() == OPENING
    assert page.locator("#parity.good").inner_text() == "✓ as PyTorch computes it"
    known = page.locator("#attribution-what").inner_text()  # it opens where the next token is
    assert known.startswith("Reading 21 “\u2068l\u2069”, what comes next is “\u2068a\u2069”.")
    for text in (OPENING, "def f(x):", "def f(x): return"):
        type_text(page, text)
        bits, probabilities = predictions(GPTS[-1], text)
        assert page.locator("#coloured span").all_inner_texts() == list(text)
        assert depths(page) == pytest.approx([0, *(min(1, cost / 10) for cost in bits)], abs=2e-3)
        assert_next(page, probabilities)
        loss = sum(bits) / len(bits) * math.log(2)
        assert page.locator("#cost").inner_text() == f"{len(text)} tokens, loss {loss:.2f} nats per token"
        # The views of the recorded page show this text too.
        assert "".join(page.locator("#tokens span").all_inner_texts()) == text
        assert page.locator(".lens tbody tr").count() == 5
        last = page.locator(".lens tbody tr").last.locator("td")
        assert last.count() == len(text)
        shown = shown_next(page)[0][0].replace(" ", "·")
        assert last.last.inner_text() == shown
        weights = capture(GPTS[-1], TOKENIZER.encode(text)).weights
        click(page.locator(".thumb").nth(3))
        in_map = in_page(page, "render", f"shown.panes[0].value({len(text) - 1}, 2)")
        assert in_map == pytest.approx(weights[1, 1, -1, 2].item(), abs=4e-3)


def test_after_the_last_token_the_logit_of_the_likeliest_is_told(open_page):
    page = open_page()
    for text in ("def f", "d"):
        type_text(page, text)
        _, probabilities = predictions(GPTS[-1], text)
        likeliest = chr(probabilities.argmax()).replace(" ", "·")
        told = f"the likeliest to come next is “\u2068{likeliest}\u2069” ({probabilities.max():.2f});"
        assert told in page.locator("#attribution-what").inner_text()
        with torch.no_grad():
            capped = GPTS[-1](torch.tensor([TOKENIZER.encode(text)]))[0, -1].max().item()
        logit = CONFIG.logit_soft_cap * math.atanh(capped / CONFIG.logit_soft_cap)
        total = number_in(page.locator("#parts tfoot td").last.inner_text())
        assert total == pytest.approx(logit, abs=0.006)
    # Two steps that expect different tokens have no logit that could be compared.
    expected = [predictions(gpt, "d")[1].argmax() for gpt in GPTS]
    assert expected[0] != expected[1]
    both = open_page(hash_="#typed=d&step=8&against=0.0&token=0")
    assert "B expects another token" in both.locator("#attribution-what").inner_text()
    assert both.locator("#parts thead").count() == 0


def test_the_address_has_what_was_chosen_and_says_what_it_leaves_out(open_page):
    page = open_page()
    type_text(page, "ab " * 700)
    page.wait_for_url(re.compile("typed="))
    fields = parse_qs(page.url.partition("#")[2])
    assert not fields.keys() & {"theme", "scale", "order", "direction", "temperature"}
    assert len(fields["typed"][0]) == 2000
    assert "holds the last 2,000 characters of the text only" in page.locator("#window").inner_text()
    for theme in ("dark", "light"):
        click(page.locator("#theme"))
        assert ("theme=dark" in page.url) == (theme == "dark") and "theme=light" not in page.url
        again = open_page(hash_=f"#{page.url.partition('#')[2]}")
        assert again.locator("html").get_attribute("data-theme") == theme
        assert again.locator("#editor").evaluate("box => !box.scrollTop && box.scrollHeight > box.clientHeight")
    type_text(page, "ab")
    assert page.locator("#window").inner_text() == ""


def test_a_click_on_a_next_token_writes_it(open_page):
    page = open_page()
    for _ in range(2):
        before = page.locator("#box").input_value()
        expected = shown_next(page)[1][0]
        click(page.locator("#next button").nth(1))
        assert page.locator("#box").input_value() == before + expected


HOSTILE = '<img src=x onerror="alert(1)"></script>'


TYPED = {  # what is said of it, and how many tokens are read
    "": ("The box is empty", 1),
    "x" * 10_000: ("The model reads 32 tokens at once: of these 10,000 it reads the last 32 (grey: not read).", 32),
    "ab\n" + HOSTILE: ("of these 42 it reads the last 32", 32),
    "é😀\udc00\n\u202eabc": ("", 16),
}


@pytest.mark.parametrize("place", ["token", "square"])
def test_what_is_pointed_at_can_be_deleted(open_page, place):
    page = open_page()
    if place == "token":
        page.locator("#tokens span").last.hover()
    else:
        point_at(page, 15, 14)
    for text in (OPENING[:4], "x"):
        type_text(page, text)
        assert "".join(page.locator("#tokens span").all_inner_texts()) == text
        assert page.locator("#notes").inner_text() == ""


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (1366, 768), (1100, 700)])
def test_all_next_tokens_and_the_controls_are_in_sight_with_notes_of_any_length(open_page, width, height):
    page = open_page(width=width, height=height)
    for text in ("a", "", "def f(x):\n    return x\n" * 100):
        type_text(page, text)
        panel = page.locator("#typing").bounding_box()
        for last in ("#next li:last-child", "#write"):
            box = page.locator(last).bounding_box()
            assert box["y"] + box["height"] <= panel["y"] + panel["height"], (last, text[:9])
        assert page.locator("#coming").evaluate("list => list.scrollHeight <= list.clientHeight")


def test_any_text_can_be_typed(open_page):
    page = open_page()
    for text, (said, count) in TYPED.items():
        put(page.locator("#box"), text)
        assert said in page.locator("#window").inner_text()
        assert page.locator("#editor").evaluate("box => box.scrollTop + box.clientHeight > box.scrollHeight - 2")
        assert page.locator("#tokens span").count() == count
        assert page.locator("#typing img, #text img, .lens img").count() == 0
        valid = text.replace("\udc00", "\ufffd")
        shown = page.locator("#coloured").evaluate("box => box.textContent").replace("\udc00", "\ufffd")
        assert shown == valid + "\u200b"
        with torch.no_grad():
            logits = GPTS[-1](torch.tensor([(TOKENIZER.encode(valid) or [256])[-32:]]))
        assert_next(page, logits[0, -1].softmax(-1))


def test_a_part_that_is_switched_off_is_missed_as_in_pytorch(open_page):
    page = open_page()
    tokens = torch.tensor(TOKENIZER.encode(OPENING))
    _, changes = ablation(GPTS[-1], tokens, part_means(GPTS[-1], tokens[None]))
    page.get_by_role("button", name="switch off", exact=True).click()
    for layer, head in ((0, 1), (1, 0)):
        thumb = page.locator(".thumb").nth(2 * layer + head)
        click(thumb)
        assert "switched off" in thumb.get_attribute("aria-label")
        assert number(page) == pytest.approx(changes["heads"][layer][head], abs=0.006)
        assert page.locator("#next u").count() == 8
        click(thumb)
    click(page.get_by_role("button", name="feed-forward 1"))
    assert number(page) == pytest.approx(changes["feed_forward"][1], abs=0.006)
    click(page.get_by_role("button", name="value embeddings 1"))  # and another
    assert page.locator("#damage").inner_text().startswith("Off: feed-forward 1 and value embeddings 1.")
    click(page.get_by_role("button", name="nothing", exact=True))
    address, both = page.url.partition("#")[2], number(page)
    again = open_page(hash_=f"#{address}")
    assert number(again) == both
    click(again.get_by_role("button", name="switch all on"))
    assert again.locator("#damage b").count() == 0
    assert_next(again, predictions(GPTS[-1], OPENING)[1])


def number(page) -> float:
    return told_change(page.locator("#damage b").inner_text())


def told_change(words: str) -> float:
    """The number that "rises by 0.25", "falls by 0.25" or "stays" tells."""
    verb, _, size = words.partition(" by ")
    return {"rises": 1, "falls": -1, "stays": 0}[verb] * float(size or 0)


def test_it_writes_what_pytorch_writes_until_it_is_stopped(open_page):
    page = open_page(hash_="#temperature=0")
    page.locator("#box").press("Control+Enter")
    page.locator("#speed", has_text="wrote 200 at").wait_for()
    settle(page)
    prompt = torch.tensor([TOKENIZER.encode(OPENING)])
    tokens = generate(GPTS[-1], prompt, 200, temperature=0)[0].tolist()
    assert page.locator("#box").input_value() == TOKENIZER.decode(tokens)
    # The second time it is stopped at once.
    text = page.locator("#box").input_value()
    page.evaluate("() => { for (const _ of 'ab') document.getElementById('write').click() }")
    page.locator("#speed", has_text="wrote 0 at").wait_for()
    settle(page)
    assert page.locator("#box").input_value() == text
    assert page.locator("#write").inner_text() == "▶ write on"


def test_a_patch_moves_the_logit(open_page):
    page = open_page()
    page.locator("#other-text").fill(OPENING[::-1])
    page.locator("#patched b").wait_for()
    # The page opens at the last token but one, from which nothing leads on after the last layer.
    page.locator(".thumb").nth(2).click()
    page.locator("#patched", has_text="stays at").wait_for()
    assert "No later layer reads this head there" in page.locator("#patched").inner_text()
    page.evaluate("() => { for (const _ of 'ab') document.getElementById('patch-all').click() }")  # begun and cancelled
    assert page.locator("#patch-progress").is_hidden() and page.locator("#patch-matrix").is_hidden()
    page.locator("#patch-all").click()
    page.locator("#patch-note", has_text="Point at a square").wait_for()
    matrix = page.locator("#patch-matrix")
    matrix.focus()
    for key in ["ArrowDown"] * 2 + ["ArrowRight"] * 30:  # head 1.0, at the last token
        matrix.press(key)
    told = page.locator("#patch-note").inner_text()
    assert told.startswith("head 1.0 at token 22")
    change = number_in(re.search(r"[+−]?[\d.]+$", told)[0])
    matrix.press("Enter")
    settle(page)
    page.locator("#patched", has_text=f"{abs(change):.2f} to").wait_for()
    told = page.locator("#patched").inner_text()
    assert told_change(page.locator("#patched b").inner_text()) == change != 0
    patched = number_in(re.search(r" to (−?\d+\.\d+)\.", told)[1])
    target = page.locator("#patch-target").input_value()
    with torch.no_grad():
        plain = GPTS[-1](torch.tensor([TOKENIZER.encode(OPENING)]))[0, -1, int(target)].item()
    assert patched - change == pytest.approx(plain, abs=0.011)


def test_the_slider_changes_the_model_that_answers(open_page):
    page = open_page(hash_="#typed=ab&step=8")
    for at in (1, 0):
        slide(page, at)
        assert page.locator("#slide-a output").inner_text() == f"step {[0, 8][at]}"
        assert_next(page, predictions(GPTS[at], "ab")[1])
    page.locator("#compare").click()  # step 0 against itself; then against the other
    page.locator("#slide-b input").press("End")
    type_text(page, "abc")
    likeliest = [chr(predictions(gpt, "abc")[1].argmax()) for gpt in GPTS]
    # What comes next, on both sides.
    of_both = [predictions(gpt, "abc")[1] for gpt in GPTS]
    rows = page.locator("#next button").evaluate_all(
        "rows => rows.map((row) => [row.querySelector('bdi').textContent,"
        " ...[...row.querySelectorAll('i')].map((i) => parseFloat(i.style.width))])"
    )
    assert {text.replace("·", " ") for text, *_ in rows} >= set(likeliest)
    for text, *shares in rows:
        expected = [float(share[ord(text.replace("·", " "))]) for share in of_both]
        for found, share in zip(shares, expected, strict=True):
            assert found / 100 == pytest.approx(share, abs=1e-3) or found == 0  # not among the listed ones
    assert [table.locator("tbody td").last.inner_text() for table in page.locator(".lens:visible").all()] == likeliest
    assert page.locator("#slide-a output").inner_text() == "step 0"


PANELS = ("#tokens", "#sentences", "#reading", "#top", "#evidence", "#next", "#coloured", "#cost", "#damage", "#worse")
PANELS += ("#lenses", "#parts", "#attribution-what", "#attribution-badge", "#patched")
PANELS += ("#patch-matrix", "#parity", "#notes")
SHOWN = """(panels) => Object.fromEntries([
  ...panels.map((panel) => [panel, document.querySelector(panel)])
    .map(([panel, one]) => [panel, one.checkVisibility() ? one.innerText : ""]),
  ...panels.map((panel) => [`colours of ${panel}`, [...document.querySelectorAll(`${panel} [style]`)]
    .filter((one) => one.checkVisibility()).map((one) => one.getAttribute("style")).filter(Boolean).join("|")]),
  ...[...document.querySelectorAll(".thumb canvas, #panes canvas:not(.over)")]
    .map((canvas, i) => [`picture ${i}`, canvas.toDataURL()])])"""
# What a person does, and for how many milliseconds they wait then: they never wait for the page.
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
    part: () => any($("#switches").children).click(),
    "text B": () => input($("#other-text"), random < 0.2 ? "" : "black" + Math.floor(1e6 * random)),
    "patch all": () => $("#patch").hidden || $("#patch-all").click(),
    weighting: () => $("#weightings").children[Math.round(random)].click(),
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
OFTEN = ("type", "step", "compare", "patch all")


@pytest.mark.parametrize("seed", range(2))
def test_whatever_a_person_does_the_panels_end_as_on_a_fresh_page(open_page, slow_page, seed):
    page, draws = open_page(path=slow_page, hash_="#b=blackboard"), random.Random(seed)
    names = [*page.evaluate(ACTIONS, []), *3 * OFTEN]
    chosen = [(draws.choice(names), draws.random(), draws.choice([0, 0, 10, 70, 180])) for _ in range(50)]
    page.evaluate(ACTIONS, chosen)
    if page.locator("#write").get_attribute("aria-pressed") == "true":
        page.locator("#write").click()
    settle(page)
    page.evaluate("import('browser/state.js').then(({ save }) => save())")
    fresh = open_page(path=slow_page, hash_=f"#{page.url.partition('#')[2]}")
    if page.locator("#patch-matrix").is_visible():
        click(fresh.locator("#patch-all"))
    found, expected = (one.evaluate(SHOWN, list(PANELS)) for one in (page, fresh))
    assert {name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)} == set()
    assert found["#notes"] == "" and page.locator("#parity.good").count() == 1


def test_patches_that_a_step_interrupts_are_not_announced_as_done(open_page, slow_page):
    page = open_page(path=slow_page, hash_="#b=blackboard&temperature=0")
    page.evaluate("""() => new Promise((done) => {  // in the page, so that a slow driver is not too late
      const note = document.getElementById("patch-note");
      const watch = new MutationObserver(() => {
        if (!note.textContent.includes("of 16 heads")) return;
        watch.disconnect();
        document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft", bubbles: true }));
        done();
      });
      watch.observe(note, { childList: true, characterData: true, subtree: true });
      document.getElementById("patch-all").click();
    })""")
    settle(page)
    assert page.locator("#patch-note").inner_text() == "" and page.locator("#patch-matrix").is_hidden()
    assert page.locator("#live").inner_text() == "" and page.locator("#notes").inner_text() == ""
    page.locator("#write").click()
    page.locator("#speed", has_text="wrote 200 at").wait_for()


def test_the_panels_follow_while_it_writes_and_its_speed_leaves_with_the_text(open_page, slow_page):
    page = open_page(path=slow_page, hash_="#temperature=0")
    page.evaluate("""() => {
      window.followed = 0;
      const writes = () => document.getElementById("write").ariaPressed === "true";
      const count = () => (window.followed += writes());
      new MutationObserver(count).observe(document.getElementById("cost"), { childList: true });
    }""")
    page.locator("#write").click()
    page.locator("#speed", has_text="wrote").wait_for()
    assert page.evaluate("window.followed") > 0
    settle(page)
    click(page.locator(".thumb").first)
    assert page.locator("#speed").inner_text().startswith("wrote")
    page.locator("#box").press("End")
    page.locator("#box").press("x")
    settle(page)
    assert page.locator("#speed").inner_text() == ""


def test_it_is_used_with_the_keyboard_alone(open_page):
    page = open_page(theme="dark")
    page.locator("#box").focus()
    page.keyboard.type("xs")  # are text in the box, and keys elsewhere
    settle(page)
    assert page.locator("#box").input_value() == OPENING + "xs" and page.locator("#damage b").count() == 0
    press(page, "Escape", "ArrowDown", "x")
    head = page.locator('.thumb[aria-pressed="true"]')
    assert "switched off" in head.get_attribute("aria-label") and number(page)
    press(page, "x")
    assert page.locator("#damage b").count() == 0
    assert not unnamed(page, "all.filter((e) => e.checkVisibility())")


@pytest.mark.parametrize(("width", "height"), [(400, 860), (1366, 768)])
def test_nothing_is_wider_than_the_window(open_page, width, height):
    page = open_page(width=width, height=height, touch=width < 500)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


CUT = "file has been cut short"
SINE = "This page cannot run this model: it does not know the activation sine."  # the browser is not to blame


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda page: page[: page.index("importmap") + 5000], CUT),
        (lambda page: page[: page.index('id="weights-0"') - 30], CUT),
        (lambda page: page[: page.index('id="weights-1"') + 500], CUT),
        (lambda page: page.replace(f'"activation":"{CONFIG.activation}"', '"activation":"sine"'), SINE),
    ],
    ids=["cut in the program", "cut before the weights", "cut in the weights", "unknown activation"],
)
def test_a_page_that_cannot_run_says_why(open_file, written, tmp_path, change, told):
    path = tmp_path / "broken.html"
    path.write_text(change(written.read_text(encoding="utf-8")), encoding="utf-8")
    page = open_file(path)
    page.locator("#notes", has_text=told).wait_for()
    assert told == SINE or not page.locator("#main").is_visible()


def test_every_experiment_shows_on_the_page_what_was_predicted(open_page, tmp_path):
    gpt, path = repeating_gpt(), tmp_path / "experiments.html"
    draw = random.Random(0)
    recorded = ["".join(draw.sample("abcdefghijklmnopqrstuvwxyz", 8)) * 8 for _ in range(16)]
    texts = [Probe(TOKENIZER.encode(text), list(text)) for text in recorded]
    tokens = texts[0].tokens
    repeated = draw_repeated_probe(range(97, 123), 20, TOKENIZER.label)
    probes = {"text": texts[0], "repeated": repeated}
    windows = windows_of({"text": texts, "repeated": [repeated]})

    def page_of(*snapshots):
        html, _ = model_page("tiny", snapshots, TOKENIZER, probes, tokens, windows)
        path.write_text(html, encoding="utf-8")
        return open_page(path)

    untrained = GPT(gpt.config).eval()
    page = page_of((0, untrained), (8, gpt))
    buttons = page.locator("#tries button")
    titles = buttons.all_inner_texts()
    assert "A made-up word, twice" in titles and 2 <= len(titles) <= 6
    effects, _ = try_all(gpt, TOKENIZER, texts, part_means(gpt, torch.tensor([tokens])))
    for effect, button in zip(effects, buttons.all(), strict=True):
        click(button)
        assert page.locator("#box").input_value() == effect.trial.text
        assert effect.look in page.locator("#experiment").inner_text()
        click(page.locator("#experiment button", has_text=effect.change))
        assert page.locator("#box").input_value() == effect.trial.changed
        assert in_page(page, "render", "shown.off") == effect.off
        predicted, shown = page.locator("#predicted b").all_inner_texts()
        assert shown == predicted and page.locator("#experiment").inner_text().count(effect.question) == 1
        before, after = (float(figure.rstrip("%")) / 100 for figure in shown.split(" → "))
        assert (before, after) == pytest.approx(effect.shares, abs=0.006)
        click(page.locator("#experiment button"))  # undoes the change
        assert in_page(page, "render", "shown.off") == [] and effect.look in page.locator("#experiment").inner_text()
    click(buttons.nth(titles.index("A made-up word, twice")))
    assert "head 0.1 (layer 0, head 1) on the map: to" in page.locator("#experiment").inner_text()
    click(page.locator("#experiment button"))
    type_text(page, "another text")
    assert page.locator("#experiment").inner_text() == "head 0.1 is still off. begin this experiment again"
    click(buttons.nth(titles.index("Nothing at all")))
    assert "No single head to look at here" in page.locator("#experiment").inner_text()
    nowhere = page_of((0, untrained)).locator("#tries")
    assert nowhere.locator("button").count() == 0
    assert "A made-up word, twice (right on only 0 of 60 texts)" in nowhere.inner_text()
