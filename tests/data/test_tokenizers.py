"""Tokenizers lose no text, read special tokens in a text as text, and come back unchanged when stored.

Files for Hugging Face's libraries encode alike there and come back too.
"""

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data import tokenizers
from data.tokenizers import END_OF_TEXT, GPT2_PATTERN, TOKENIZER, Tokenizer
from model.mistakes import Missing
from tests.command_lines import mistake

CODE = "def area(width, height):\n    return width * height\n\n\nclass Box:\n    pass\n" * 20


@pytest.fixture(scope="module")
def bpe():
    return tokenizers.train_bpe([CODE], 280)


@settings(max_examples=40)
@given(text=st.text(alphabet=st.characters(codec="utf-8")))
@example(END_OF_TEXT)
def test_no_text_is_lost_and_none_becomes_a_special_token(bpe, text):
    assert tokenizers.byte_level().encode_array(text).tolist() == list(text.encode())
    backwards = Tokenizer("bytes", r"[\s\S]", {bytes([255 - token]): token for token in range(256)}, {END_OF_TEXT: 256})
    for tokenizer in (bpe, tokenizers.byte_level(), backwards):
        tokens = tokenizer.encode(text)
        assert tokenizer.end_of_text == tokenizer.vocab_size - 1 and tokenizer.end_of_text not in tokens
        assert b"".join(map(tokenizer.token_bytes, tokens)) == text.encode()
        assert tokenizer.encode_array(text).tolist() == tokens
        assert tokenizer.decode(tokens) == text


def test_bpe_merges_a_newline_with_its_indentation(bpe):
    assert bpe.vocab_size == 280 and len(bpe.encode(CODE)) < len(CODE) / 2
    tokenizer = tokenizers.train_bpe(["x:\n        y\n        z" * 50], 263)
    assert "\n        " in [tokenizer.decode([token]) for token in tokenizer.encode("y\n        z")]


def test_bpe_reads_no_more_text_than_it_needs(monkeypatch):
    monkeypatch.setattr(tokenizers, "TRAINING_BYTES", 7)
    read = []
    texts = (read.append(text) or text for text in ("ééa", "ab", "never read"))  # five bytes, then two
    assert tokenizers.train_bpe(texts, 257).vocab_size == 257
    assert read == ["ééa", "ab"]


def test_incomplete_characters_and_unused_ids_are_replaced_in_text_and_escaped_in_labels(bpe):
    """A model's vocabulary may be rounded up to a size that multiplies faster, so a model may sample an unused id."""
    assert bpe.decode(bpe.encode("a\ud800b \ud83d\ude00")) == "a\ufffdb \U0001f600"  # a lone surrogate, and a pair
    tokenizer = tokenizers.byte_level()
    assert tokenizer.decode("é".encode()[:1]) == "\ufffd" and tokenizer.decode([97, 300, 98]) == "a\ufffdb"
    assert [tokenizer.label(token) for token in "aé".encode()] == ["a", "\\xc3", "\\xa9"]
    assert tokenizer.label(tokenizer.end_of_text) == END_OF_TEXT
    assert tokenizer.label(300) == "<300>"
    assert "".join(map(bpe.label, bpe.encode("def width"))) == "def width"


def test_a_tokenizer_is_stored_as_data(bpe):
    """Also with end-of-text between the ids of the merges, as in p50k_base."""
    gap = Tokenizer("gap", r"\w+|\W+", tokenizers.byte_level().ranks | {b"ar": 257}, {END_OF_TEXT: 256})
    for tokenizer in (bpe, tokenizers.byte_level(), gap):
        restored = Tokenizer.from_dict(json.loads(json.dumps(tokenizer.to_dict())))
        assert restored.encode(CODE) == tokenizer.encode(CODE)
        assert (restored.name, restored.fingerprint) == (tokenizer.name, tokenizer.fingerprint)


def test_the_fingerprint_differs_for_each_tokenizer_and_never_changes(bpe):
    """Cached tokens and the maps of a run are recognised by it, also after an update."""
    others = [tokenizers.byte_level(), tokenizers.train_bpe([CODE], 279), tokenizers.train_bpe([CODE[::-1]], 280)]
    assert len({tokenizer.fingerprint for tokenizer in [bpe, *others]}) == 4
    ranks = tokenizers.byte_level().ranks | {b"the": 257, b"th": 256}
    tokenizer = Tokenizer("any", r"\w+|\W", ranks, {END_OF_TEXT: 258})
    assert tokenizer.fingerprint == "e395baa192f42232fd476986a00a4d2f2ff2838b3e2398a50dfbf7352bab2d23"


def test_a_vocabulary_size_that_the_text_cannot_fill_is_named():
    with mistake(r"2000 .*--data.vocab_size \d+"):
        tokenizers.train_bpe(["abab"], 2000)


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"tokens": None}, "AttributeError"),
        ({"special_tokens": None}, "TypeError"),
        ({"pattern": "("}, "parenthesis"),
        ({"tokens": "YQ==\nYg=="}, "byte"),
        ({"tokens": "YQ="}, "padding"),
        ({"special_tokens": {}}, END_OF_TEXT),
        *(({"special_tokens": {END_OF_TEXT: token}}, "stored tokenizer") for token in (5, -1, 2**32, None)),
    ],
    ids=str,
)
def test_a_stored_tokenizer_that_cannot_work_is_refused(bpe, changes, reason):
    with mistake(reason):
        Tokenizer.from_dict(bpe.to_dict() | changes)


def test_an_encoding_that_cannot_be_downloaded_is_named_with_the_variable_of_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # nothing answers at this port
    with mistake(r"'r50k_base'.*TIKTOKEN_CACHE_DIR"):
        tokenizers.published("r50k_base")
    monkeypatch.setattr("tiktoken.load.read_file", lambda _: b"<html>please log in</html>")
    with mistake(r"'r50k_base'.*Hash mismatch.*TIKTOKEN_CACHE_DIR"):
        tokenizers.published("r50k_base")


# Files for Hugging Face's libraries


OTHER_SCRIPTS = (
    "Ωμέγα прощай 漢字かな 한국어 שלום السلام नमस्ते ไทย "
    "👩‍👩‍👧 🏳️‍🌈 😀 é ﬁ ſ İ ß \u2028\u00a0\u3000\t\r\x0b  'LL 'ſ 123456 ١٢ Ⅷ"
)


def mixed_lines(number):
    """Lines of Python, runs of signs and spaces, and characters of many scripts in random order."""
    draw = random.Random(0)
    code = Path(json.__file__).with_name("decoder.py").read_text(encoding="utf-8").splitlines(keepends=True)
    lines = [draw.choice(code) for _ in range(number // 2)]
    lines += ["".join(draw.choices(OTHER_SCRIPTS, k=40)) for _ in range(number // 4)]
    lines += ["".join(draw.choice(" \n-=a") * draw.randrange(12) for _ in range(8)) for _ in range(number // 4)]
    return [*lines, "", f"no {END_OF_TEXT} is made of text"]


@pytest.fixture(scope="module")
def mixed_bpe():
    return tokenizers.train_bpe(mixed_lines(1000), 600)


PUBLISHED = pytest.mark.skipif(
    not os.environ.get("TIKTOKEN_CACHE_DIR"), reason="TIKTOKEN_CACHE_DIR names no folder with the published encodings"
)


@pytest.fixture(scope="module", params=[pytest.param("gpt2", marks=[pytest.mark.slow, PUBLISHED]), "bytes", "bpe"])
def stored(request, mixed_bpe, tmp_path_factory):
    """A tokenizer of each kind, and the folder with its files."""
    tokenizer = mixed_bpe if request.param == "bpe" else tokenizers.published(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    for name, content in tokenizer.huggingface_files().items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return tokenizer, folder


@pytest.mark.slow
def test_a_stored_tokenizer_comes_back_and_autotokenizer_encodes_a_thousand_lines_alike(stored):
    tokenizer, folder = stored
    assert Tokenizer.from_folder(folder).to_dict() == tokenizer.to_dict()
    transformers = pytest.importorskip("transformers")
    peer = transformers.AutoTokenizer.from_pretrained(folder)
    for line in mixed_lines(1000):
        ids = peer(line)["input_ids"]
        assert ids == tokenizer.encode(line), repr(line)
        assert peer.decode(ids) == line
    assert len(peer) == tokenizer.vocab_size
    assert peer.bos_token_id == peer.eos_token_id == tokenizer.end_of_text


@pytest.mark.parametrize(
    "pattern, merged, text, ids",
    [
        (r"\w+|\W", {b"bc": 257, b"abcd": 258}, "abcd", [258]),  # b and c merge first; then no merge makes abcd
        (r"\w+|\W", {b"bc": 257, b"abcd": 258}, "xabcd", [ord("x"), ord("a"), 257, ord("d")]),
        (r"\p{N}{1,3}+|\P{N}+", {b"12": 257, b"34": 258}, "x1234", [ord("x"), 257, ord("3"), ord("4")]),  # as GPT-4's
    ],
)
def test_rules_that_the_libraries_write_differently_give_the_same_ids(pattern, merged, text, ids):
    library = pytest.importorskip("tokenizers")
    tokenizer = Tokenizer("bpe", pattern, tokenizers.byte_level().ranks | merged, {END_OF_TEXT: 256})
    peer = library.Tokenizer.from_str(json.dumps(tokenizer.huggingface_files()[TOKENIZER]))
    assert peer.encode(text).ids == tokenizer.encode(text) == ids


def test_the_tokenizer_files_published_with_gpt2_are_recognised(tmp_path, monkeypatch):
    """GPT-2's tokenizer.json leaves the pattern to ByteLevel. This test builds one of fewer tokens."""
    small = Tokenizer("gpt2", GPT2_PATTERN, tokenizers.train_bpe([CODE], 280).ranks, {END_OF_TEXT: 279})
    content = small.huggingface_files()[TOKENIZER]
    content["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    content["model"]["vocab"] |= {END_OF_TEXT: 279}
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    (tmp_path / TOKENIZER).write_text(json.dumps(content))
    with mistake(TOKENIZER):
        Tokenizer.from_folder(tmp_path)
    monkeypatch.setattr(tokenizers, "GPT2_FINGERPRINT", small.fingerprint)
    assert Tokenizer.from_folder(tmp_path).to_dict() == small.to_dict()


@PUBLISHED
def test_the_fingerprint_of_gpt2_is_that_of_the_published_encoding():
    gpt2 = tokenizers.published("gpt2")
    assert gpt2.fingerprint == tokenizers.GPT2_FINGERPRINT and gpt2.decode([50256]) == END_OF_TEXT


OTHERS = [
    lambda tokenizer, config: config.pop("glassgpt"),
    lambda tokenizer, config: tokenizer["model"]["vocab"].update({"\u2581the": 700}),
    lambda tokenizer, config: tokenizer["model"]["vocab"].update({"the": 5}),
    lambda tokenizer, config: tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | {"content": "word"}),
    lambda tokenizer, config: tokenizer.pop("model"),
]


@pytest.mark.parametrize("change", OTHERS)
def test_the_tokenizer_of_another_program_is_refused(change, mixed_bpe, tmp_path):
    files = mixed_bpe.huggingface_files()
    change(*files.values())
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    with mistake(TOKENIZER):
        Tokenizer.from_folder(tmp_path)


def test_a_damaged_or_missing_file_is_named(tmp_path):
    with pytest.raises(Missing, match=r"has no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / TOKENIZER).write_text("[")
    with mistake(TOKENIZER):
        Tokenizer.from_folder(tmp_path)
