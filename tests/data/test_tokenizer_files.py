"""Tokenizers as files of Hugging Face's libraries: they encode alike there, and come back as they were."""

import json
import os
import random
from pathlib import Path

import pytest

from data.tokenizers import (
    END_OF_TEXT,
    GPT2_PATTERN,
    TOKENIZER,
    TOKENIZER_CONFIG,
    Tokenizer,
    byte_level,
    published,
    train_bpe,
)

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
def bpe():
    return train_bpe(mixed_lines(1000), 600)


@pytest.fixture(scope="module", params=[pytest.param("gpt2", marks=pytest.mark.slow), "bytes", "bpe"])
def stored(request, bpe, tmp_path_factory):
    """A tokenizer of each kind, and the folder with its files."""
    if request.param == "gpt2" and not os.environ.get("TIKTOKEN_CACHE_DIR"):
        pytest.skip("TIKTOKEN_CACHE_DIR names no folder with the published encodings")
    tokenizer = {"gpt2": lambda: published("gpt2"), "bytes": byte_level, "bpe": lambda: bpe}[request.param]()
    folder = tmp_path_factory.mktemp(request.param)
    for name, content in tokenizer.huggingface_files().items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return tokenizer, folder


@pytest.mark.slow
def test_autotokenizer_gives_a_thousand_lines_the_same_ids(stored):
    transformers = pytest.importorskip("transformers")
    tokenizer, folder = stored
    peer = transformers.AutoTokenizer.from_pretrained(folder)
    for line in mixed_lines(1000):
        ids = peer(line)["input_ids"]
        assert ids == tokenizer.encode(line), repr(line)
        assert peer.decode(ids) == line
    assert len(peer) == tokenizer.vocab_size
    assert peer.bos_token_id == peer.eos_token_id == tokenizer.end_of_text


def test_a_tokenizer_comes_back_as_it_was(stored):
    tokenizer, folder = stored
    assert Tokenizer.from_folder(folder).to_dict() == tokenizer.to_dict()


def test_tokenizer_json_is_as_the_library_itself_writes_it(stored):
    """It takes a missing part for its default and ignores a misspelled one."""
    tokenizers = pytest.importorskip("tokenizers")
    content = stored[0].huggingface_files()[TOKENIZER]
    theirs = json.loads(tokenizers.Tokenizer.from_str(json.dumps(content)).to_str())
    assert content.pop("model").items() <= theirs["model"].items()
    assert all(theirs[name] == value for name, value in content.items())


@pytest.mark.parametrize(
    ("pattern", "merged", "text", "ids"),
    [
        (r"\w+|\W", {b"bc": 257, b"abcd": 258}, "abcd", [258]),  # b and c are merged first; then nothing makes abcd
        (r"\w+|\W", {b"bc": 257, b"abcd": 258}, "xabcd", [ord("x"), ord("a"), 257, ord("d")]),
        (r"\p{N}{1,3}+|\P{N}+", {b"12": 257, b"34": 258}, "x1234", [ord("x"), 257, ord("3"), ord("4")]),  # as GPT-4's
    ],
    ids=["a whole piece that no merge reaches", "within a piece", "a possessive repetition"],
)
def test_rules_that_the_libraries_write_differently_are_the_same(pattern, merged, text, ids):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = Tokenizer("bpe", pattern, byte_level().ranks | merged, {END_OF_TEXT: 256})
    peer = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.huggingface_files()[TOKENIZER]))
    assert peer.encode(text).ids == tokenizer.encode(text) == ids


def test_what_published_folders_of_gpt2_hold_is_read(bpe, tmp_path):
    """A tokenizer.json that leaves the pattern to ByteLevel, and the older vocab.json with merges.txt."""
    as_gpt2 = Tokenizer("gpt2", GPT2_PATTERN, bpe.ranks, bpe.special_tokens)
    content = as_gpt2.huggingface_files()[TOKENIZER]
    vocab = content["model"]["vocab"] | {END_OF_TEXT: as_gpt2.end_of_text}
    content["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    newer, older = tmp_path / "newer", tmp_path / "older"
    newer.mkdir()
    older.mkdir()
    (newer / TOKENIZER).write_text(json.dumps(content))
    (older / "vocab.json").write_text(json.dumps(vocab))
    (older / "merges.txt").write_text("\n".join(["#version: 0.2", *content["model"]["merges"]]), encoding="utf-8")
    assert Tokenizer.from_folder(newer).to_dict() == Tokenizer.from_folder(older).to_dict() == as_gpt2.to_dict()


def test_another_name_of_the_token_before_documents_is_known_from_the_config(tmp_path):
    files = byte_level().huggingface_files()
    files[TOKENIZER]["added_tokens"][0]["content"] = "<|bos|>"
    files[TOKENIZER_CONFIG] = {"bos_token": {"content": "<|bos|>"}}
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert Tokenizer.from_folder(tmp_path).end_of_text == 256


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["model"].update(type="Unigram"), "no byte-pair encoding"),
        (lambda c: c.update(normalizer={"type": "NFKC"}), "changes the text"),
        (lambda c: c.update(pre_tokenizer={"type": "Whitespace"}), "splits text by Whitespace"),
        (lambda c: c["model"]["merges"].reverse(), "merge in the order of its ids"),
        (lambda c: c["model"]["vocab"].update({"▁the": 700}), "not written as bytes"),
        (lambda c: c["model"]["vocab"].pop("a"), "no"),
        (lambda c: c["added_tokens"].clear(), END_OF_TEXT.replace("|", r"\|")),
        (lambda c: c.pop("model"), "it has no 'model'"),
    ],
)
def test_a_tokenizer_that_cannot_be_expressed_says_why(change, message, bpe, tmp_path):
    content = bpe.huggingface_files()[TOKENIZER]
    change(content)
    (tmp_path / TOKENIZER).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"tokenizer in .* cannot be read: .*{message}"):
        Tokenizer.from_folder(tmp_path)


def test_a_damaged_or_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no tokenizer\.json, nor vocab\.json with merges\.txt"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / TOKENIZER).write_text("[")
    with pytest.raises(ValueError, match="cannot be read"):
        Tokenizer.from_folder(tmp_path)
