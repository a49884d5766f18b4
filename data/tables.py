"""Reads tables and data sets row by row, with the `datasets` library."""

import csv
import glob
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from model.mistakes import Mistake, parsing

BATCH_ROWS = 1000  # rows that `datasets` reads at once; its default, the size of the first row group, may be 0
# Arguments of `datasets.load_dataset`, by the ending of a file's name. A file with any other ending is plain text.
_CSV = {"path": "csv", "encoding": "utf-8-sig", "na_filter": False, "index_col": False, "chunksize": BATCH_ROWS}
TABLES: dict[str, dict[str, Any]] = {
    ".csv": _CSV,
    ".tsv": _CSV | {"sep": "\t"},
    **{ending: {"path": "json"} for ending in (".json", ".jsonl", ".jsonlines", ".ndjson")},
    ".parquet": {"path": "parquet", "batch_size": BATCH_ROWS},
    ".arrow": {"path": "arrow"},
}
COMPRESSIONS = (".gz", ".zst", ".xz", ".bz2")

_log = logging.getLogger(__name__)


def table_ending(path: Path) -> str | None:
    """Returns the ending of a table, a key of TABLES: ".csv" for "a.csv.gz". Returns None if `path` is plain text."""
    endings = [ending.lower() for ending in path.suffixes if ending.lower() not in COMPRESSIONS]
    return endings[-1] if endings and endings[-1] in TABLES else None


def table_texts(path: Path, column: str, quotes: bool = True) -> Iterator[str]:
    """Yields the text in `column` of each row of a table file (see TABLES). Raises Mistake as `column_texts` does.

    Args:
        quotes: whether quote marks enclose fields in csv and tsv files; False: they are part of the text.
    """
    datasets, ending = import_datasets(), table_ending(path)
    options = TABLES[ending]
    load = partial(datasets.load_dataset, **options, data_files=[glob.escape(str(path))], split="train", streaming=True)
    with parsing(path):
        if path.suffix.lower() == ".zst":  # `datasets` does not notice that a file is truncated
            _read_all(path)
        if options["path"] == "csv":
            load = partial(load, quoting=csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE)
            # Otherwise pandas guesses types, and the text 007 becomes the number 7.
            strings = {name: datasets.Value("string") for name in next(iter(load()), {})}
            load = partial(load, features=datasets.Features(strings))
        rows = load()
    is_warned = ending != ".tsv" or not quotes
    for text in column_texts(tables_of(rows, parsing(path)), column, str(path)):
        if not is_warned and "\n" in text and "\t" in text:  # after a stray quote mark, rows are read as one field
            message = "%s: field %r has line breaks and tabs; if quote marks are text here, set --data.quotes false"
            _log.warning(message, path, text[:40])
            is_warned = True
        yield text


def _read_all(path: Path) -> None:
    """Reads a zstd file to its end. Raises an error if the file is truncated."""
    import pyarrow

    with pyarrow.input_stream(str(path), compression="zstd") as stream:
        while stream.read(2**20):
            pass


def tables_of(rows: Any, errors: AbstractContextManager) -> Iterator[Any]:
    """Yields the rows of a `datasets.Dataset` or `IterableDataset` as pyarrow tables.

    errors: a context manager; rows are read inside it, so that it can turn errors of reading into a Mistake.
    """
    with errors:
        yield from rows.with_format("arrow").iter(batch_size=256)


def column_texts(tables: Iterator[Any], column: str, label: str) -> Iterator[str]:
    """Yields the text in `column` of each row, "" where it is empty.

    label: what messages call the source of the tables.

    Raises Mistake if `column` does not exist or does not hold text.
    """
    row = 0
    for table in tables:
        names = [name if name == name.strip() else repr(name) for name in table.column_names]
        advice = f"set --data.text_column to one of {', '.join(names)}"
        if column not in table.column_names:
            raise Mistake(f"{label} has no column {column!r}: {advice}")
        with parsing(label):
            texts = _values(table[column])
        for text in texts:
            if text is not None and not isinstance(text, str):
                kind = type(text).__name__
                raise Mistake(f"{label}: column {column!r} holds {kind}, not text, in row {row}: {advice}")
            yield text or ""
            row += 1


def _values(column: Any) -> list:
    """Returns the values of a pyarrow column.

    If the rows of a column differ in type, `datasets` turns all of its values, even strings, into JSON source, which is
    parsed here.
    """
    import pyarrow

    values = column.to_pylist()
    if isinstance(column.type, pyarrow.JsonType):
        return [value if value is None else json.loads(value) for value in values]
    return values


def import_datasets() -> ModuleType:
    """Imports `datasets`, which takes seconds. Silences its log, since it also raises every error that it logs."""
    import datasets
    import huggingface_hub

    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # otherwise it tells the Hub of every table, even a local one
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    huggingface_hub.logging.set_verbosity(huggingface_hub.logging.CRITICAL)
    warnings.filterwarnings("error", message="Length of header or names")  # raised, because pandas then drops cells
    return datasets
