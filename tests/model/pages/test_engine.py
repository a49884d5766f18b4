"""The page's engine, run in node, computes what PyTorch and the tokenizer compute."""

import json
import math
import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose

from data.tokenizers import END_OF_TEXT, Tokenizer, byte_level, published, train_bpe
from model.generation import generate
from model.gpt import ACTIVATIONS
from model.inspection import reading
from model.inspection.parts import part_means, replaced
from model.inspection.reading import read
from model.inspection.texts import Texts
from model.pages import template, weights
from tests.by_hand import ByHand
from tests.gpts import CONFIGS, GPT2, MODERN, TOKENS, random_gpt
from tests.measurements import raised
from tests.model.pages.model_pages import GPTS, PROBE, TOKENIZER, pack, page_of
from tests.model.pages.test_views_in_node import run_node

pytestmark = pytest.mark.slow

OTHER = TOKENS.flip(0)
# The same with ends of texts: three documents, which are read apart where training read them apart.
ended = TOKENS.clone()
ended[[0, 5, 9]] = TOKENIZER.end_of_text
DOCUMENTS = Texts.of(ended, document_ids=(ended == TOKENIZER.end_of_text).cumsum(0)[None])
TARGET = 7  # the token whose logit the patches are measured by
# Every activation that the page's network has.
NETWORK = Path(weights.__file__).with_name("browser").joinpath("formulas.js").read_text(encoding="utf-8")
ACTIVATED = {name: replace(MODERN, activation=name) for name in ACTIVATIONS if f"\n  {name}: (x) =>" in NETWORK}
ARCHITECTURES = (
    CONFIGS
    | ACTIVATED
    | {
        "gpt2, exact": replace(MODERN, **GPT2 | {"activation": "gelu_exact", "bias": False, "tie_embeddings": False}),
        "rotary, no QK-norm": replace(MODERN, qk_norm=False, embedding_norm=False, value_embeddings=True, num_layers=2),
        "QK-norm, learned": replace(MODERN, position="learned", tie_embeddings=True, window=5, logit_soft_cap=9.0),
        "odd sizes": replace(
            MODERN, embed_dim=30, num_heads=3, num_kv_heads=1, feed_forward_dim=21, activation="swiglu"
        ),
    }
)
SQUARE = {"query": 9, "key": 7}
OFF = [["head 0.0"], ["feed-forward 0", "head 0.0", "token embedding"]]


def questions(packed):
    """The questions that every model is asked."""
    layers, heads = (packed.manifest["config"][name] for name in ("num_layers", "num_heads"))
    whole = {"snapshot": 0, "tokens": TOKENS.tolist()}
    asks = [
        ("parity", whole),
        ("read", whole | {"tokens": whole["tokens"][:5]}),  # then the whole text, as if the user typed on
        ("read", whole),
        *(("read", whole | {"off": off, "deep": False}) for off in OFF),
        ("write", whole | {"temperature": 0, "count": 30}),
        ("square", whole | SQUARE | {"layer": layers - 1, "head": heads - 1}),
        ("patchAll", whole | {"other": OTHER.tolist(), "target": TARGET}),
    ]
    return {"manifest": packed.manifest, "texts": packed.blocks, "asks": asks}


def in_node(asked):
    """The answers of engine.mjs."""
    return json.loads(run_node(Path(__file__).with_name("engine.mjs"), content=json.dumps(asked)))


@pytest.fixture(scope="module")
def packed():
    """Each architecture in bfloat16, one also in int8, and some with a probe of several documents."""
    packed = {name: pack(random_gpt(config, std=0.15)) for name, config in ARCHITECTURES.items()}
    for name in ("tables", "gpt2"):
        gpt = random_gpt(replace(CONFIGS[name], vocab_size=TOKENIZER.vocab_size), std=0.15)
        packed[f"{name}, documents"] = pack(gpt, probe=DOCUMENTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "EXACT_BYTES", 0)
        packed["int8"] = pack(random_gpt(CONFIGS["tables"], std=0.15))
    return packed


def test_node_computes_what_pytorch_computes(packed, monkeypatch, subtests):
    """One of the models also without WebAssembly's SIMD."""
    monkeypatch.setattr(reading, "DIGITS", ".9g")
    plain = questions(packed["tables"]) | {"simd": False}
    answered, [plainly] = in_node([("models", [*map(questions, packed.values())]), ("models", [plain])])
    for name, answers in zip([*packed, "tables"], [*answered, plainly], strict=True):
        with subtests.test(name):
            check(answers, packed[name].gpt)


@torch.no_grad()
def check(answers, gpt):
    """Asserts that the answers to `questions` are those of PyTorch."""
    logits, taken = gpt(TOKENS[None])[0], read(gpt, Texts.of(TOKENS))
    changed = [without(gpt, off) for off in OFF]
    written = generate(gpt, TOKENS[None], 30, temperature=0)[0, len(TOKENS) :].tolist()
    after, other = [], read(gpt, Texts.of(OTHER)).heads  # (L, H, T, K)
    patched = [*np.ndindex(*other.shape[:3])][::11]  # every head, at different tokens
    for layer, head, at in patched:
        with replaced(gpt, {f"head {layer}.{head}": other[layer, head, at]}, at):
            after.append(gpt(TOKENS[None])[0, -1])
    parity, _, answered, *others, write, square, patches = answers
    assert parity["error"] < 1e-4
    for answer, expected in zip((answered, *others), (logits, *changed), strict=True):
        nats = [bits * math.log(2) for bits in answer["figures"]["bits"][:-1]]
        loss = F.cross_entropy(expected[:-1], TOKENS[1:]).item()
        assert np.mean(nats) == pytest.approx(loss, abs=1e-4)
        likeliest = expected[-1].softmax(-1).topk(20)
        assert [token for token, _ in answer["next"]] == likeliest.indices.tolist()
        shares = [probability for _, probability in answer["next"]]
        assert_allclose(shares, likeliest.values, atol=1e-5)
    check_details(answered, taken)
    likeliest, cap = logits[-1].max().item(), gpt.config.logit_soft_cap  # the parts add up to the uncapped logit
    added = sum(answered["figures"]["attribution_of_likeliest"])
    assert added == pytest.approx(cap * math.atanh(likeliest / cap) if cap else likeliest, abs=1e-3)
    assert write == written
    check_square(square, ByHand(gpt, TOKENS.tolist()))
    rows = [patches[layer * gpt.config.num_heads + head]["patched"][at] for layer, head, at in patched]
    expected = [[one[TARGET], one.softmax(-1)[TARGET]] for one in (logits[-1], *after)]
    assert_allclose([patches[0]["plain"], *rows], expected, atol=1e-4)


def check_details(answered, expected):
    """Asserts that maps and details are those of a reading."""
    rows, columns = np.tril_indices(len(TOKENS))
    maps = expected.maps.numpy()[:, :, rows, columns]
    assert_allclose(np.array(answered["weights"]).reshape(maps.shape), 255 * maps**0.5, atol=0.51)
    found, measured = answered["figures"], dict(expected.figures)
    assert all(found[name] == measured.pop(name) for name in ("parts", "sublayers"))
    for name, numbers in {**measured, **measured["lens"]}.items():
        if name not in ("lens", "attribution_error", "tokens"):  # None where there is no number
            told = np.array((found | found["lens"])[name], float)
            assert_allclose(told, np.array(numbers, float), atol=1e-4, rtol=1e-4)
    assert found["attribution_error"] < 1e-3


def check_square(square, exact):
    """Asserts that scores, their sources, weights and what the value adds are those of the formula."""
    query, key, head, seen = SQUARE["query"], SQUARE["key"], exact.config.num_heads - 1, exact.layers[-1]
    visible = seen["mask"][query]
    assert square["first"] == visible.nonzero()[0]
    assert_allclose(square["scores"], seen["scores"][head, query, visible], atol=1e-4)
    assert_allclose(square["weights"], seen["weights"][head, query, visible], atol=1e-5)
    written = exact.written(exact.config.num_layers - 1)
    expected = {part: raised(exact, head, x, query, key) for part, x in written.items()}
    found, largest = dict(square["sources"]), sorted(map(abs, expected.values()), reverse=True)
    assert found == pytest.approx({part: expected[part] for part in found}, abs=1e-4)
    assert_allclose([abs(share) for share in found.values()], largest[: len(found)], atol=1e-4)
    output = exact.weights[f"blocks.{exact.config.num_layers - 1}.attention.output_proj.weight"]
    added = output[:, -exact.config.head_dim :] @ seen["values"][-1, key] * seen["weights"][head, query, key]
    normed = exact.share_of_norm(added, seen["stream after the block"][query], "final_norm")
    changes = exact.weights["lm_head.weight"] @ normed
    largest = changes.topk(5)
    assert [token for token, _ in square["pushes"]] == largest.indices.tolist()
    assert_allclose([change for _, change in square["pushes"]], largest.values, atol=1e-4)


def without(gpt, off):
    """The logits (T, V) when the parts in `off` give their mean."""
    means = part_means(gpt, PROBE)
    with replaced(gpt, {name: means[name] for name in off}):
        return gpt(TOKENS[None])[0]


# Text on which tokenizers may differ: white space, case, digits, composed and rare characters, special tokens.
PIECES = ["'s", "'LL", "'ſtop", "don't", "def f(x):", "12345", "½Ⅳ٣", "<|endoftext|>", "x_1", "...", "abab", "aaaaaaa"]
PIECES += ["    ", "\n\n\t", "\r\n", " ", "\u0085", "\ufeff", "\u00a0", "\u3000", "\u2028", "\x1c", "\x00", "\u200b"]
PIECES += ["\u212a", "İ", "ß", "ﬀ", "Ü", "e\u0301", "漢字かな", "हिन्दी", "。", "🙂", "👩\u200d👧"]
PIECES += ["\U0001f1e9\U0001f1ea", "\ud800", "\udc00", "\ud83d\ude42"]  # a flag; halves of a surrogate pair, and both


def tokenizers():
    text = Path(template.__file__).read_text() + "ſtop " * 100
    # A merge that needs a pair with a higher id than its own, which byte-pair training never makes.
    ranks = {bytes([value]): value for value in range(256)} | {b"aba": 256, b"ab": 257}
    by_hand = Tokenizer("by hand", r"\S+|\s+", ranks, {END_OF_TEXT: 258})
    found = [byte_level(), train_bpe([text], 400), by_hand]
    return [*found, published("gpt2")] if os.environ.get("TIKTOKEN_CACHE_DIR") else found


def test_the_pages_tokenizer_gives_the_same_ids_and_labels():
    draw = random.Random(0)
    texts = ["".join(draw.choices(PIECES + [" "] * 9, k=draw.randrange(12))) for _ in range(1000)]
    texts += Path(__file__).read_text().splitlines()
    all_ = tokenizers()
    stored = [pack(random_gpt(MODERN), tokenizer=one).manifest["tokenizer"] for one in all_]
    asked = [("tokenizer", {"stored": one, "texts": texts, "ids": [*range(402)]}) for one in stored]
    for tokenizer, answer in zip(all_, in_node(asked), strict=True):
        assert answer["ids"] == [tokenizer.encode(text) for text in texts]
        assert answer["labels"] == [tokenizer.label(token) for token in range(402)]
        assert answer["endOfText"] == tokenizer.end_of_text


def test_tokens_are_drawn_with_their_probabilities():
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, 1.5, -30.0])
    sharp = logits.where(logits > 0.5, -math.inf) / 0.5
    cases = [(logits, {"temperature": 1}), (sharp, {"temperature": 0.5, "topK": 3})]
    asked = {"logits": logits.tolist(), "count": 100_000}
    draws = in_node([("draws", asked | {"options": options}) for _, options in cases])
    for drawn, (scores, _) in zip(draws, cases, strict=True):
        # The standard deviation of a share is below 0.002, so 0.015 is never chance.
        assert_allclose(np.bincount(drawn, minlength=6) / 100_000, scores.softmax(-1), atol=0.015)


DROPPED = """async ([{ manifest, texts }, tokens]) => {
  const { startEngine } = await import("browser/engine.js");
  const engine = await startEngine(manifest, texts, () => {}, () => {});
  const [written, rows] = [[], []];
  const enough = new AbortController();
  const onValue = (id) => written.push(id) > 20 && enough.abort();
  const writing = engine.ask("write", { snapshot: 0, tokens, count: 1e9 }, { onValue, signal: enough.signal });
  const patches = { snapshot: 0, tokens, other: tokens.toReversed(), target: 7 };
  await engine.ask("patchAll", patches, { onValue: (row) => rows.push(row) });
  const dropped = (await writing) === undefined;
  return [written.length, rows.length, dropped];
}"""


def test_the_engine_stops_working_on_a_question_that_is_dropped(open_file):
    data, page = pack(random_gpt(CONFIGS["one layer"])), open_file(page_of(*GPTS))
    answer = page.evaluate(DROPPED, [{"manifest": data.manifest, "texts": data.blocks}, TOKENS.tolist()])
    assert answer == [21, 1, True]


def test_reading_gets_a_tenth_of_the_time_while_the_model_writes():
    """So panels that follow the text hardly slow the writing. Patches of all heads wait until the others are done."""
    (turns,) = in_node([("turns", {"names": ["patchAll", "write", "read"], "steps": 1100})])
    assert turns[:1] == ["write"] and turns.count("read") == pytest.approx(100, abs=1) and "patchAll" not in turns


def test_a_typed_letter_reads_one_token_for_each_step_and_text():
    """Even when two steps are compared, a part is switched off, and a second text is read."""
    config = replace(MODERN, num_layers=2)
    data = pack(*(random_gpt(config, seed) for seed in (0, 1)))
    letters = []
    for typed in (TOKENS.tolist()[:length] for length in (6, 7, 8)):
        for snapshot in (0, 1):
            for tokens, off, text in ((typed, [], "A"), (typed, ["head 0.0"], "A"), (OTHER.tolist(), [], "B")):
                letters.append(("read", {"snapshot": snapshot, "tokens": tokens, "off": off, "text": text}))
    ((answers,),) = in_node([("models", [{"manifest": data.manifest, "texts": data.blocks, "asks": letters}])])
    assert [answer["work"] for answer in answers] == [6, 6, 12] * 2 + [1, 1, 0] * 4


def test_the_parity_badge_detects_a_wrong_reference(packed):
    """A page that compared itself only with itself would not."""
    data = packed["modern"]
    manifest = data.manifest | {"reference": data.manifest["reference"] | {"start": 0}}
    asked = questions(replace(data, manifest=manifest)) | {"asks": [("parity", {"snapshot": 0})]}
    (((wrong,),),) = in_node([("models", [asked])])
    assert wrong["error"] > 0.1
