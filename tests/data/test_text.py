"""Reading files of every format: every byte of the text is read once, in pieces of bounded size."""

import csv
import gzip
import itertools
import json
from functools import cache
from pathlib import Path

import pandas
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import data.text
from data import tokenizers
from data.tables import SEPARATORS, table_ending, table_texts
from data.text import WHOLE, passages_of, row_passages, text_passages, uniform_hash
from tests.command_lines import mistake

WORDS = ["word", "\n", "\n\n", "    indented", "é", "\u3000", "日本", "x = 1", "\r\n", "(", ")\n", "'s", "12345", "\t"]
texts = st.lists(st.sampled_from(WORDS), max_size=100).map("".join)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(data.text, "BLOCK", 16)


def documents(passages):
    """Joins passages to documents. No text here has a zero byte."""
    *found, rest = "".join(passage.text + "\0" * passage.ends_document for passage in passages).split("\0")
    assert rest == ""
    return found


def pieces_of(text, size):
    return [text[start : start + size] for start in range(0, len(text), size)]


@given(text=texts, size=st.integers(1, 40))
def test_a_long_document_is_cut_without_changing_its_tokens(text, size):
    passages = list(passages_of(pieces_of(text, size)))
    assert documents(passages) == ([text] if text else [])
    for pattern in (tokenizers.SPLIT_PATTERN, tokenizers.GPT2_PATTERN):
        tokenizer = merging(pattern)
        assert [t for p in passages for t in tokenizer.encode(p.text)] == tokenizer.encode(text)


@cache
def merging(pattern):
    """A tokenizer that merges all that the pattern does not split, so that a wrong cut changes the tokens."""
    ranks = {bytes([value]): value for value in range(256)}
    for word in ["\n\n", "\n ", "\n    ", "  ", "    ", ")\n", "\n\t", " (", "wo", "rd", "word", "\r\n", "\n\r", "12"]:
        for stop in range(2, len(word) + 1):
            ranks.setdefault(word[:stop].encode(), len(ranks))
    return tokenizers.Tokenizer("merging", pattern, ranks, {tokenizers.END_OF_TEXT: len(ranks)})


def test_text_without_a_place_to_cut_is_read_in_pieces_too_and_no_byte_order_mark_is_text(here, small_blocks):
    lines = ["a" * 10_000, "some words\n" * 1000]
    for line in lines:
        Path("a.txt").write_text(line, encoding="utf-8-sig")
        for passages in (list(text_passages(Path("a.txt"), WHOLE)), list(row_passages([line], WHOLE))):
            assert documents(passages) == [line]
            assert max(len(passage.text) for passage in passages) <= 2 * 16


@pytest.mark.usefixtures("small_blocks")
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(text="ends in a cut é", fraction=0.95)
@given(text=texts.filter(lambda text: len(text) > 10), fraction=st.floats(0.05, 0.95))
def test_two_shares_of_a_file_are_the_whole_file(tmp_path_factory, text, fraction):
    path = tmp_path_factory.mktemp("shares") / "text.txt"
    path.write_bytes(text.encode())
    head, tail = (documents(text_passages(path, share)) for share in ((0.0, fraction), (fraction, 1.0)))
    assert "".join(head + tail) == text
    assert len("".join(head).encode()) - int(len(text.encode()) * fraction) in range(4)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "content, offset",
    [
        (b"fine text, then \xff bad", 16),
        ("ends within a character é".encode()[:-1], 24),
        (b"0123456789abcde\xc3" + b"X and more", 15),
        (b"a" * 40 + b"\x80", 40),
    ],
)
def test_bytes_that_are_not_text_are_named_with_their_offset(here, content, offset):
    path = Path("broken.txt")
    path.write_bytes(content)
    with mistake(rf"broken.txt .* {offset}\b"):
        list(text_passages(path, WHOLE))


ROWS = [{"text": f"document {i}\nof é", "author": "me", "year": i} for i in range(600)]


def write_table(path, rows=ROWS):
    """Writes a table, compressed if its name ends so."""
    frame, ending = pandas.DataFrame(rows, columns=list(ROWS[0])), table_ending(path)
    if ending in SEPARATORS:
        frame.to_csv(path, sep=SEPARATORS[ending], index=False)
    elif ending == ".parquet":
        frame.to_parquet(path)
    elif ending == ".arrow":
        frame.to_feather(path)
    else:
        frame.to_json(path, orient="records", lines=True)


COMPRESSED = ["rows.jsonl.gz", "rows.jsonl.zst", "rows.jsonl.xz", "rows.csv.gz", "rows.csv.zst", "rows.csv.bz2"]
TABLES = [
    "rows.jsonl",
    "rows.ndjson",
    "rows.jsonlines",
    "rows.csv",
    "rows.tsv",
    "rows.parquet",
    "rows.arrow",
    *COMPRESSED,
]


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_each_row_of_a_table_is_a_document_and_reading_opens_no_connection(here, monkeypatch, name):
    asked, path = [], Path(name)
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *_, **__: asked.append(host) or [])
    write_table(path)
    assert list(table_texts(path, "text")) == [row["text"] for row in ROWS] and not asked
    with mistake(rf"{name} .*'body'.* 'text', 'author', 'year'"):
        list(table_texts(path, "body"))
    if table_ending(path) in SEPARATORS:  # in these formats everything is text
        assert list(table_texts(path, "year")) == [str(row["year"]) for row in ROWS]
    else:
        with mistake(r"'year' .*int.* row 0"):
            list(table_texts(path, "year"))


def test_the_rows_of_a_table_are_split_in_shares():
    whole = [row["text"] for row in ROWS]
    head, tail = (documents(row_passages(whole, share)) for share in ((0.0, 0.1), (0.1, 1.0)))
    assert sorted(head + tail) == sorted(whole) and 30 < len(head) < 90


@pytest.mark.parametrize("name, delimiter", [("a.TSV", "\t"), ("a.tsv.csv", ","), ("a.CSV.gz", ",")])
def test_the_last_ending_of_a_tables_name_decides_its_delimiter(here, name, delimiter):
    other = {",": "\t", "\t": ","}[delimiter]
    texts = [f"one{other} two", "NA", "", "12", 'a "quoted" word', "two\nlines"]
    with (gzip.open if name.endswith("gz") else open)(name, "wt", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, delimiter=delimiter).writerows([("text", "number"), *zip(texts, range(6), strict=True)])
    assert list(table_texts(Path(name), "text")) == texts


DAMAGED = [
    ("rows.csv", b"text\none, two\nthree\n"),
    ("rows.csv", b"text\n" + b"one\n" * (1001 if pandas.__version__ < "3" else 1000) + b"two, three\n"),
    ("rows.csv", b'text\n"one\n\ntwo'),
    ("rows.csv", b"text\ncaf\xe9\n"),
    ("rows.jsonl", b'{"text": "a"}\n{"text": oops\n'),
    ("rows.jsonl", b'{"text": "caf\xe9"}\n'),
    *((name, None) for name in ("rows.jsonl", "rows.parquet", "rows.arrow", *COMPRESSED)),
]


@pytest.mark.parametrize("name, content", DAMAGED)
def test_a_table_that_is_damaged_cut_short_or_would_lose_text_is_named(here, name, content):
    path = Path(name)
    if content is None:
        write_table(path, [{"text": str(number**5)} for number in range(20_000)])  # several blocks, if compressed
    path.write_bytes(content or path.read_bytes()[:-20])
    with mistake(name):
        list(table_texts(path, "text"))


OTHERS = {"int": 2024, "float": 0.5, "bool": True, "list": ["a"], "dict": {"type": "text", "text": "a"}}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_row_of_another_type_is_refused_and_the_rows_before_it_are_read_unchanged(here, kind):
    """Even after many rows: a reader that guesses types from the first rows would convert the others."""
    texts = [f'caf\u00e9 "{number}" \\ \n' * 100 for number in range(300)]
    rows = [*texts, OTHERS[kind], "a text"]
    Path("rows.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in rows))
    found = table_texts(Path("rows.jsonl"), "text")
    assert list(itertools.islice(found, 300)) == texts
    with mistake(rf"rows.jsonl.*'text'.* {kind}\b.* row 300\b"):
        next(found)


def test_other_columns_may_have_mixed_types_or_no_name_and_a_missing_text_is_empty(here):
    codes = ["1"] * 500 + ["x"]
    Path("rows.csv").write_text("\n".join([",code,text", *(f"0,{code},a text" for code in codes)]))
    assert list(table_texts(Path("rows.csv"), "code")) == codes
    rows = [{"text": "é", "meta": {"a": 1}, "parts": "x"}, {"text": None, "meta": 3, "parts": [{"text": "y"}]}]
    dated = {"text": "2024-01-31", "parts": "x" * 2**20}
    rows += [dated] * 10 + [{}, {"text": "a\ud83d", "parts": 1}]  # `datasets` reads 10 MB at once
    Path("rows.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    assert list(table_texts(Path("rows.jsonl"), "text")) == ["é", "", *[dated["text"]] * 10, "", "a?"]


def test_quote_marks_can_be_read_as_text(here):
    """In TSV they usually are."""
    texts = ['"one', "a word", 'two"', "x"] * 75
    Path("rows.tsv").write_text("\n".join(["text\tnumber", *(f"{text}\t1" for text in texts)]))
    assert list(table_texts(Path("rows.tsv"), "text", quotes=False)) == texts
    assert len(list(table_texts(Path("rows.tsv"), "text"))) < 300


def test_the_hash_that_splits_files_never_changes():
    """This hash decides the split of the default corpus on every machine."""
    assert uniform_hash("json/decoder.py") == 0.11393991729957655
