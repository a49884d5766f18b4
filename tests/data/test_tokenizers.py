"""Tokenizers: they lose no text, treat special tokens in a text as text, and come back unchanged when stored."""

import io
from string import ascii_lowercase

import pytest
import tiktoken
import tiktoken.registry
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from data import tokenizers
from data.tokenizers import END_OF_TEXT, Tokenizer

CODE = "def area(width, height):\n    return width * height\n\n\nclass Box:\n    pass\n" * 20


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return tokenizers.train_bpe([CODE], 280)


@given(text=st.text(alphabet=st.characters(codec="utf-8")))
@example(END_OF_TEXT)
def test_no_text_is_lost_and_none_becomes_a_special_token(bpe: Tokenizer, text: str):
    assert tokenizers.byte_level().encode(text) == list(text.encode())
    for tokenizer in (bpe, tokenizers.byte_level()):
        tokens = tokenizer.encode(text)
        assert tokenizer.end_of_text == tokenizer.vocab_size - 1 and tokenizer.end_of_text not in tokens
        assert b"".join(map(tokenizer.token_bytes, tokens)) == text.encode()
        assert tokenizer.encode_array(text).tolist() == tokens
        assert tokenizer.decode(tokens) == text


@given(text=st.text())
@example(ascii_lowercase + " É\n1A")
def test_letters_are_tokens_and_all_else_is_left_out(text: str):
    tokenizer = Tokenizer.from_dict(tokenizers.published("letters").to_dict())
    assert tokenizer.vocab_size == 27
    assert tokenizer.decode(tokenizer.encode(text)) == "".join(c for c in text if c in ascii_lowercase)


@pytest.mark.parametrize(
    ("text", "read", "lost"), [("Smith 42", "mith", 4), ("é a", "a", 3), ("abc", "abc", 0), ("\n", "", 0), ("", "", 0)]
)
def test_what_a_tokenizer_leaves_out_of_a_prompt_is_told(bpe: Tokenizer, caplog, text: str, read: str, lost: int):
    letters = tokenizers.published("letters")
    assert bpe.encode_prompt(text) == bpe.encode(text) and not caplog.messages
    assert letters.encode_prompt(text) == letters.encode(text) == letters.encode(read)
    told = [f"The model's tokenizer, 'letters', leaves out {lost} bytes of the text and reads '{read}'."]
    assert caplog.messages == (told if lost else [])
    with pytest.raises(ValueError, match=r"tokenizer, 'letters', has no token for anything in '42 \?'"):
        letters.encode_prompt("42 ?")


@pytest.mark.parametrize("text", ["a\ud800b", "\ud83d\ude00"])
def test_surrogates_are_read_as_tiktoken_reads_them(bpe: Tokenizer, text: str):
    assert bpe.encode(text) == bpe.encoding.encode_ordinary(text)


def test_bpe_learns_merges(bpe: Tokenizer):
    assert bpe.vocab_size == 280
    assert len(bpe.encode(CODE)) < len(CODE) / 2


def test_bpe_reads_no_more_text_than_it_needs(monkeypatch):
    monkeypatch.setattr(tokenizers, "TRAINING_BYTES", 7)
    read = []
    texts = (read.append(text) or text for text in ("ééa", "ab", "never read"))  # five bytes, and two
    assert tokenizers.train_bpe(texts, 257).vocab_size == 257
    assert read == ["ééa", "ab"]


def test_newline_and_indentation_are_one_piece():
    tokenizer = tokenizers.train_bpe(["x:\n        y\n        z" * 50], 263)
    assert "\n        " in [tokenizer.decode([token]) for token in tokenizer.encode("y\n        z")]


def test_half_a_character_and_an_unused_id_decode_to_a_replacement_character():
    """A model's vocabulary may be rounded up to a size that multiplies faster, and it may sample any id."""
    assert tokenizers.byte_level().decode("é".encode()[:1]) == "\ufffd"
    assert tokenizers.byte_level().decode([97, 300, 98]) == "a\ufffdb"


def test_labels_escape_parts_of_a_character(bpe: Tokenizer):
    tokenizer = tokenizers.byte_level()
    assert [tokenizer.label(token) for token in "aé".encode()] == ["a", "\\xc3", "\\xa9"]
    assert tokenizer.label(tokenizer.end_of_text) == END_OF_TEXT
    assert tokenizer.label(300) == "<300>"
    assert "".join(map(bpe.label, bpe.encode("def width"))) == "def width"


def test_a_tokenizer_is_stored_in_a_checkpoint_as_data(bpe: Tokenizer):
    for tokenizer in (bpe, tokenizers.byte_level()):
        buffer = io.BytesIO()
        torch.save({"tokenizer": tokenizer.to_dict()}, buffer)
        buffer.seek(0)
        restored = Tokenizer.from_dict(torch.load(buffer, weights_only=True)["tokenizer"])
        assert restored.encode(CODE) == tokenizer.encode(CODE)
        assert restored.fingerprint == tokenizer.fingerprint
        assert (restored.name, restored.vocab_size) == (tokenizer.name, tokenizer.vocab_size)


def test_gaps_between_ids_are_kept():
    """As in p50k_base, where end-of-text is in the middle of the merges."""
    ranks = {bytes([value]): value for value in range(256)} | {b"ab": 257}
    restored = Tokenizer.from_dict(Tokenizer("gap", r"\w+|\W+", ranks, {END_OF_TEXT: 256}).to_dict())
    assert restored.encode("abc") == [257, ord("c")]
    assert restored.vocab_size == 258


def test_fingerprint_tells_tokenizers_apart(bpe: Tokenizer):
    others = [tokenizers.byte_level(), tokenizers.train_bpe([CODE], 279), tokenizers.train_bpe([CODE[::-1]], 280)]
    assert len({tokenizer.fingerprint for tokenizer in [bpe, *others]}) == 4
    assert tokenizers.train_bpe([CODE], 280).fingerprint == bpe.fingerprint


def test_the_fingerprint_is_that_of_every_earlier_version():
    """By it, tokens in a cache and the maps of a run are known again after an update."""
    ranks = tokenizers.byte_level().ranks | {b"the": 257, b"th": 256}
    tokenizer = Tokenizer("any", r"\w+|\W", ranks, {END_OF_TEXT: 258})
    assert tokenizer.fingerprint == "e395baa192f42232fd476986a00a4d2f2ff2838b3e2398a50dfbf7352bab2d23"


def test_mistakes_are_named(bpe: Tokenizer, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"unknown tokenizer 'gpt5': write one of bpe, bytes, letters, gpt2"):
        tokenizers.published("gpt5")
    with pytest.raises(ValueError, match=r"repeats something .*: lower --data.vocab_size"):
        tokenizers.train_bpe(["x" * 2**17], 273)  # the last token has 2^16 bytes
    with pytest.raises(ValueError, match=r"vocab_size 2000 is too large.*--data.vocab_size (\d+) or less"):
        tokenizers.train_bpe(["abab"], 2000)
    with pytest.raises(ValueError, match="not a stored tokenizer"):
        Tokenizer.from_dict({})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokens": 3}, "TypeError"),
        ({"tokens": None}, "TypeError"),
        ({"special_tokens": None}, "AttributeError"),
        ({"pattern": "("}, "parenthesis"),
        ({"tokens": slice(0, 300)}, "it has no token for the byte 0x64"),
        ({"tokens": slice(0, -1)}, "its tokens are cut short"),
        ({"special_tokens": {}}, "has no <|endoftext|>"),
        *(
            ({"special_tokens": {END_OF_TEXT: token}}, f"its <|endoftext|> cannot have the id {token}")
            for token in (-1, 5, 2**32, None)
        ),
    ],
    ids=str,
)
def test_a_stored_tokenizer_that_cannot_work_is_refused(bpe: Tokenizer, changes: dict, reason: str):
    state = bpe.to_dict()
    if isinstance(changes.get("tokens"), slice):
        changes = {"tokens": state["tokens"][changes["tokens"]]}
    with pytest.raises(ValueError) as refused:
        Tokenizer.from_dict(state | changes)
    assert reason in str(refused.value)


def test_a_published_encoding_is_built_from_the_constructor_in_tiktokens_registry(monkeypatch):
    arguments = {
        "name": "small",
        "pat_str": r"[\s\S]",
        "mergeable_ranks": {bytes([value]): value for value in range(256)},
        "special_tokens": {END_OF_TEXT: 256},
    }
    tiktoken.list_encoding_names()  # fills the registry
    constructors = tiktoken.registry.ENCODING_CONSTRUCTORS
    assert constructors and "gpt2" in constructors, "tiktoken keeps its constructors elsewhere: adapt `published`"
    monkeypatch.setitem(constructors, "small", lambda: arguments)
    tokenizer = tokenizers.published("small")
    assert tokenizer.fingerprint == tokenizers.byte_level().fingerprint
    assert tokenizer.encode("ab") == [97, 98]


def test_failed_download_says_what_to_set(tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # the port where nothing answers
    with pytest.raises(ConnectionError, match=r"cannot download the encoding 'r50k_base'.*TIKTOKEN_CACHE_DIR"):
        tokenizers.published("r50k_base")
