"""Reading files: every byte of the text, once, in pieces of bounded size, in every format."""

import csv
import io
import itertools
import json
import re
from functools import cache
from pathlib import Path

import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from data import readers, tokenizers
from data.readers import WHOLE, Passage, passages_of, row_passages, text_passages, uniform_hash
from data.tables import table_ending, table_texts
from model.checks import Mistake

WORDS = ["word", "\n", "\n\n", "    indented", "é", "\u3000", "日本", "x = 1", "\r\n", "(", ")\n", "'s", "12345", "\t"]
texts = st.lists(st.sampled_from(WORDS), max_size=100).map("".join)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 16)


def documents(passages) -> list[str]:
    """Joins passages to documents; no text has a zero byte."""
    *found, rest = "".join(passage.text + "\0" * passage.ends_document for passage in passages).split("\0")
    assert rest == ""
    return found


def table_passages(path: Path, column: str, share=WHOLE):
    return row_passages(table_texts(path, column), share)


def pieces_of(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


@given(text=texts, size=st.integers(1, 40))
def test_a_long_document_is_cut_without_changing_its_tokens(text: str, size: int):
    passages = list(passages_of(pieces_of(text, size), blocks=False))
    assert documents(passages) == ([text] if text else [])
    for pattern in (tokenizers.SPLIT_PATTERN, tokenizers.GPT2_PATTERN):
        tokenizer = merging(pattern)
        assert [t for p in passages for t in tokenizer.encode(p.text)] == tokenizer.encode(text)


@pytest.mark.parametrize("blocks", [False, True])
def test_a_long_text_is_never_held_whole_and_a_block_that_fits_is_one_passage(blocks: bool):
    pieces = ["some words\n" * 1000 + "\n" * blocks for _ in range(20)]
    longest = max(len(passage.text) for passage in passages_of(iter(pieces), blocks))
    assert longest <= 2 * len(pieces[0])
    block = "some words\n" * 1000
    assert [one.text for one in passages_of(pieces_of(block, 100), blocks=True)] == [block.rstrip()]


@cache
def merging(pattern: str) -> tokenizers.Tokenizer:
    """Merges everything that the split pattern leaves together, so that a wrong cut changes the tokens."""
    ranks = {bytes([value]): value for value in range(256)}
    for word in ["\n\n", "\n ", "\n    ", "  ", "    ", ")\n", "\n\t", " (", "wo", "rd", "word", "\r\n", "\n\r", "12"]:
        for stop in range(2, len(word) + 1):
            ranks.setdefault(word[:stop].encode(), len(ranks))
    return tokenizers.Tokenizer("merging", pattern, ranks, {tokenizers.END_OF_TEXT: len(ranks)})


@given(text=texts, size=st.integers(1, 40))
def test_blocks_do_not_depend_on_how_the_file_is_read(text: str, size: int):
    found = documents(passages_of(pieces_of(text, size), blocks=True))
    assert found == documents(passages_of([text], blocks=True))
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(not readers._BLANK_LINES.search(block) for block in found)


def test_blocks_keep_the_indentation_of_their_first_line(tmp_path: Path):
    path = tmp_path / "poem.txt"
    path.write_text("\n\nfirst\n  line\n \t\n\n    second\n\n\n")
    assert list(text_passages(path, blocks=True)) == [Passage("first\n  line", True), Passage("    second", True)]


def test_a_file_or_a_cell_without_line_ends_is_cut_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(readers, "BLOCK_BYTES", 64)
    monkeypatch.setattr(readers, "MAX_PASSAGE_CHARS", 256)
    line = "a" * 10_000
    for name, content in (("a.txt", line), ("a.csv", f"text\n{line}\n"), ("a.jsonl", json.dumps({"text": line}))):
        (tmp_path / name).write_text(content)
    texts = [text_passages(tmp_path / "a.txt", blocks) for blocks in (False, True)]
    for found in (*texts, *(table_passages(tmp_path / name, "text") for name in ("a.csv", "a.jsonl"))):
        assert documents(passages := list(found)) == [line]
        assert max(len(passage.text) for passage in passages) <= 256 + 64


@pytest.mark.usefixtures("small_blocks")
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(text="ends in a cut é", fraction=0.95, blocks=False)
@example(text="x" + "é" * 40 + "\n \nsecond block\n\nthird", fraction=0.1, blocks=True)
@example(text="x" * 32 + "\nsame block\n\nthird", fraction=0.01, blocks=True)
@example(text="first\n" * 10 + "\n \n\n", fraction=0.75, blocks=True)
@given(text=texts.filter(lambda text: len(text) > 10), fraction=st.floats(0.05, 0.95), blocks=st.booleans())
def test_two_shares_are_the_whole_file(tmp_path_factory, text: str, fraction: float, blocks: bool):
    """However far the next block is from the cut; where there is none, a sentence says what to set."""
    path = tmp_path_factory.mktemp("shares") / "text.txt"
    path.write_bytes(text.encode())
    whole = documents(text_passages(path, blocks))
    rest = text.encode()[int(len(text.encode()) * fraction) :]
    shares = (0.0, fraction), (fraction, 1.0)
    if blocks and not re.search(rb"\n[ \t]*\r?\n\s*\S", rest):
        for share in shares:
            with pytest.raises(Mistake, match=r"text.txt .*\d+%.*--data.documents file"):
                list(text_passages(path, blocks, share))
        return
    head, tail = (documents(text_passages(path, blocks, share)) for share in shares)
    if blocks:
        assert head + tail == whole
    else:
        assert "".join(head + tail) == "".join(whole)
        assert len("".join(head).encode()) - int(len(text.encode()) * fraction) in range(4)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("content", "offset"),
    [
        (b"fine text, then \xff bad", 16),
        ("ends within a character é".encode()[:-1], 24),
        (b"0123456789abcde\xc3" + b"X and more", 15),
        (b"looks like text \0 but is not", 16),
        (b"a" * 40 + b"\x80", 40),
    ],
)
def test_bytes_that_are_not_text_are_named_with_their_offset(tmp_path: Path, content: bytes, offset: int):
    path = tmp_path / "broken.txt"
    path.write_bytes(content)
    for blocks in (False, True):
        with pytest.raises(Mistake, match=rf"broken.txt .* {offset}\b"):
            list(text_passages(path, blocks))


def write_packed(path: Path, content: bytes) -> None:
    """Compressed as the path ends, if it does."""
    compression = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix.lower())
    with pyarrow.output_stream(str(path), compression=compression) as stream:
        stream.write(content)


ROWS = [{"text": f"document {i}\nof é", "author": "me", "year": i} for i in range(600)]


def write_table(path: Path) -> None:
    table = pyarrow.Table.from_pylist(ROWS)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif path.suffix in (".csv", ".tsv"):
        pyarrow.csv.write_csv(table, path, pyarrow.csv.WriteOptions(delimiter="\t" if path.suffix == ".tsv" else ","))
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        with pyarrow.ipc.new_stream(str(path), table.schema) as stream:
            stream.write_table(table)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "compression"),
    [
        *itertools.product(["rows.jsonl", "rows.csv", "rows.tsv"], ["", ".gz", ".zst"]),
        *itertools.product(["rows.parquet", "rows.arrow"], [""]),  # which are compressed inside
    ],
)
def test_tables_are_one_document_a_row(tmp_path: Path, table: str, compression: str):
    name = table + compression
    path = tmp_path / name
    write_table(tmp_path / table)
    write_packed(path, (tmp_path / table).read_bytes())
    whole = [row["text"] for row in ROWS]
    assert documents(table_passages(path, "text")) == whole
    tail = documents(table_passages(path, "text", (0.0, 0.1)))
    assert sorted(tail + documents(table_passages(path, "text", (0.1, 1.0)))) == sorted(whole)
    assert 30 < len(tail) < 90
    with pytest.raises(Mistake, match=rf"{name} .*'body'.* text, author, year"):
        list(table_passages(path, "body"))
    if ".csv" in name or ".tsv" in name:  # where everything is text
        assert documents(table_passages(path, "year")) == [str(row["year"]) for row in ROWS]
    else:
        with pytest.raises(Mistake, match=r"'year' .*int.* row 0"):
            list(table_passages(path, "year"))


def test_a_local_table_is_read_without_the_network(tmp_path: Path, monkeypatch):
    asked = []
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *_, **__: asked.append(host) or [])
    write_table(tmp_path / "rows.arrow")
    assert list(table_passages(tmp_path / "rows.arrow", "text")) and not asked


def test_the_ending_says_whether_a_file_is_a_table():
    kinds = {".json": "a.json a.JSON.gz", ".csv": "a.csv a.b.csv.zst a.tsv.csv", ".tsv": "a.tsv A.TSV a.csv.TSV.GZ"}
    kinds |= {".jsonl": "a.jsonl", ".parquet": "a.parquet", ".arrow": "a.arrow.GZ"}
    for kind, names in {**kinds, None: "a.txt a.json.txt README a.gz json"}.items():
        assert {name: table_ending(Path(name)) for name in names.split()} == dict.fromkeys(names.split(), kind)


@pytest.mark.parametrize(("name", "delimiter"), [("a.TSV", "\t"), ("a.tsv.csv", ","), ("a.CSV.gz", ",")])
def test_a_tables_last_ending_decides_its_delimiter(tmp_path: Path, name: str, delimiter: str):
    other = {",": "\t", "\t": ","}[delimiter]
    texts = [f"one{other} two", "NA", "", "12", 'a "quoted" word', "two\nlines"]
    content = io.StringIO(newline="")
    csv.writer(content, delimiter=delimiter).writerows([("number", "text"), *enumerate(texts)])
    write_packed(tmp_path / name, content.getvalue().encode())
    assert documents(table_passages(tmp_path / name, "text")) == [text for text in texts if text]


@pytest.mark.parametrize("name", ["rows.txt", "rows.csv", "rows.csv.gz"])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, name: str):
    path = tmp_path / name
    write_packed(path, "text\nwords\n".encode("utf-8-sig"))
    found = table_passages(path, "text") if ".csv" in name else text_passages(path)
    assert [passage.text for passage in found] == ["words" if ".csv" in name else "text\nwords\n"]


DAMAGED = [
    ("rows.csv", b"text\none, two\nthree\n"),
    ("rows.csv", b"text\none\ntwo, three\n"),
    ("rows.csv", b"text\n" + b"one\n" * 1000 + b"two, three\n"),
    ("rows.csv", b'text\n"one\n\ntwo'),
    ("rows.csv", b"text\ncaf\xe9\n"),
    ("rows.jsonl", b'{"text": "a"}\n{"text": oops\n'),
    ("rows.jsonl", b'{"text": "caf\xe9"}\n'),
    *((f"rows.{kind}", None) for kind in ("jsonl", "jsonl.gz", "jsonl.zst", "csv.gz", "csv.zst", "parquet", "arrow")),
]


@pytest.mark.parametrize(("name", "content"), DAMAGED)
def test_a_table_that_is_damaged_cut_short_or_would_lose_text_is_named(tmp_path: Path, name: str, content):
    path = tmp_path / name
    if content is None:
        plain = path if table_ending(path) == path.suffix else path.with_suffix("")
        write_table(plain)
        write_packed(path, plain.read_bytes())
    path.write_bytes(content or path.read_bytes()[:-20])
    with pytest.raises(Mistake, match=name):
        list(table_passages(path, "text"))


def test_a_column_of_numbers_that_becomes_text_and_one_without_a_name_do_not_disturb(tmp_path: Path):
    rows = [f"{number},{number if number < 500 else 'x'},text {number}" for number in range(1000)]
    (tmp_path / "rows.csv").write_text("\n".join([",code,text", *rows]))
    assert documents(table_passages(tmp_path / "rows.csv", "text")) == [f"text {number}" for number in range(1000)]
    assert documents(table_passages(tmp_path / "rows.csv", "code"))[499:501] == ["499", "x"]


def test_hash_is_the_same_everywhere():
    """This value decides the split of the default corpus on every machine."""
    assert uniform_hash("json/decoder.py") == 0.11393991729957655
