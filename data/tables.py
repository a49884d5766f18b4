"""Reads the text in one column of tables and data sets: csv with pandas, everything else with `datasets`.

Of lines of JSON, `datasets` reads the lines only. Its JSON reader would take the type of every column from the first
10 MB, refuse a file in which any column has another type later, and make dates of texts such as 2024-01-31.
"""

import csv
import glob
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

from model.mistakes import Mistake, parsing

BATCH_ROWS = 1000  # rows to read at once
SEPARATORS = {".csv": ",", ".tsv": "\t"}
# Arguments of `datasets.load_dataset`, by the ending of a file's name.
FORMATS: dict[str, dict[str, Any]] = {
    ".json": {"path": "json"},
    **{ending: {"path": "text", "encoding": "utf-8-sig"} for ending in (".jsonl", ".jsonlines", ".ndjson")},
    ".parquet": {"path": "parquet", "batch_size": BATCH_ROWS},  # the default, the size of the first row group, may be 0
    ".arrow": {"path": "arrow"},
}
COMPRESSIONS = (".gz", ".zst", ".xz", ".bz2")

Batch = Mapping[str, Iterable]  # some rows of a table: the values in each column


def table_ending(path: Path) -> str | None:
    """Returns the ending of a table, such as ".csv" for "a.csv.gz". Returns None if `path` is plain text."""
    endings = [ending.lower() for ending in path.suffixes if ending.lower() not in COMPRESSIONS]
    return endings[-1] if endings and endings[-1] in SEPARATORS | FORMATS else None


def table_texts(path: Path, column: str, quotes: bool = True) -> Iterator[str]:
    """Returns the text in `column` of each row of a table file. Raises Mistake as `column_texts` does.

    Args:
        quotes: whether quote marks enclose fields in csv and tsv files; False: they are part of the text.
    """
    ending = table_ending(path)
    with parsing(path):
        if path.suffix.lower() == ".zst":
            _read_all(path)
        if ending in SEPARATORS:
            batches = _csv_batches(path, SEPARATORS[ending], quotes)
        else:
            files = [glob.escape(str(path))]
            load = import_datasets().load_dataset
            rows = load(**FORMATS[ending], data_files=files, split="train", streaming=True)
            batches = rows.iter(BATCH_ROWS)
            if FORMATS[ending]["path"] == "text":
                batches = map(_json_rows, batches)
    return column_texts(reading(batches, parsing(path)), column, str(path))


def _csv_batches(path: Path, separator: str, quotes: bool) -> Iterator[Any]:
    """Returns the rows as data frames of strings. With types, the text 007 would become the number 7.

    A row with more cells than the header is refused. pandas 2, on Python 3.10, does not notice it where a batch begins.
    """
    import pandas

    warnings.filterwarnings("error", message="Length of header or names")  # raised, because pandas then drops cells
    return pandas.read_csv(
        path,
        sep=separator,
        quoting=csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE,
        dtype=str,
        na_filter=False,
        index_col=False,
        chunksize=BATCH_ROWS,
    )


def _json_rows(lines: Batch) -> Batch:
    """Returns the columns of the rows that lines of JSON describe, None where a row has no value."""
    rows = []
    for line in filter(str.strip, lines["text"]):
        with parsing(f"the row {line:.80}"):
            rows.append(dict(json.loads(line)))
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _read_all(path: Path) -> None:
    """Reads a zstd file to its end. Raises an error if it is truncated, which pandas and `datasets` do not notice."""
    import pyarrow

    with pyarrow.input_stream(str(path), compression="zstd") as stream:
        while stream.read(2**20):
            pass


def reading(batches: Iterable[Batch], errors: AbstractContextManager) -> Iterator[Batch]:
    """Yields the batches. They are read inside `errors`, which can turn errors of reading into a Mistake."""
    with errors:
        yield from batches


def column_texts(batches: Iterable[Batch], column: str, label: str) -> Iterator[str]:
    """Yields the text in `column` of each row, "" where it is empty. Half a character, as in JSON, becomes ?.

    label: what messages call the source of the rows.

    Raises Mistake if `column` does not exist or does not hold text.
    """
    row = 0
    for batch in batches:
        advice = f"set --data.text_column to one of {', '.join(map(repr, batch))}"
        if column not in batch:
            raise Mistake(f"{label} has no column {column!r}: {advice}")
        for text in batch[column]:
            if text is not None and not isinstance(text, str):
                kind = type(text).__name__
                raise Mistake(f"{label}: column {column!r} holds {kind}, not text, in row {row}: {advice}")
            yield (text or "").encode(errors="replace").decode()
            row += 1


def import_datasets() -> ModuleType:
    """Imports `datasets`, which takes seconds. Silences its log, since it also raises every error that it logs."""
    import datasets
    import huggingface_hub

    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # otherwise it tells the Hub of every table, even a local one
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    huggingface_hub.logging.set_verbosity(huggingface_hub.logging.CRITICAL)
    return datasets
