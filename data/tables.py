"""Reading tables and data sets with the library `datasets`: row by row."""

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

BATCH_ROWS = 1000  # which are read at once; by itself `datasets` takes as many as a first group has, which may be none
# How `datasets` reads a file, by the ending of its name; every other file is plain text.
_CSV = {"path": "csv", "encoding": "utf-8-sig", "na_filter": False, "index_col": False, "chunksize": BATCH_ROWS}
TABLES: dict[str, dict[str, Any]] = {
    ".csv": _CSV,
    ".tsv": _CSV | {"sep": "\t"},
    ".jsonl": {"path": "json"},
    ".json": {"path": "json"},
    ".parquet": {"path": "parquet", "batch_size": BATCH_ROWS},
    ".arrow": {"path": "arrow"},
}
COMPRESSIONS = (".gz", ".zst")

_log = logging.getLogger(__name__)


def table_ending(path: Path) -> str | None:
    """What `path` ends in, such as ".csv", without the ending of a compression; None where it is plain text."""
    endings = [ending.lower() for ending in path.suffixes if ending.lower() not in COMPRESSIONS]
    return endings[-1] if endings and endings[-1] in TABLES else None


def table_texts(path: Path, column: str, quotes: bool = True) -> Iterator[str]:
    """The texts of a jsonl, csv, parquet or arrow file, row by row. Raises Mistake as `column_texts`.

    Args:
        quotes: quote marks enclose fields of csv and tsv; otherwise they are text.
    """
    datasets, ending = import_datasets(), table_ending(path)
    options = TABLES[ending]
    load = partial(datasets.load_dataset, **options, data_files=[glob.escape(str(path))], split="train", streaming=True)
    with parsing(path):
        if path.suffix.lower() == ".zst":  # which `datasets` takes for a whole file where it was cut short
            _read_all(path)
        if options["path"] == "csv":
            load = partial(load, quoting=csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE)
            # pandas guesses types: 007 is text here.
            strings = {name: datasets.Value("string") for name in next(iter(load()), {})}
            load = partial(load, features=datasets.Features(strings))
        rows = load()
    is_warned = ending != ".tsv" or not quotes
    for text in column_texts(tables_of(rows, parsing(path)), column, str(path)):
        if not is_warned and "\n" in text and "\t" in text:  # a quote mark may have swallowed the rows after it
            advice = "If quote marks are text in this file: --data.quotes false"
            _log.warning("%s: the field %r holds line ends and tabs. %s", path, text[:40], advice)
            is_warned = True
        yield text


def _read_all(path: Path) -> None:
    """Raises where a file compressed by zstd was cut short."""
    import pyarrow

    with pyarrow.input_stream(str(path), compression="zstd") as stream:
        while stream.read(2**20):
            pass


def tables_of(rows: Any, reads: AbstractContextManager) -> Iterator[Any]:
    """The rows of a `datasets.Dataset` or `IterableDataset` as tables of pyarrow, read within that context."""
    with reads:
        yield from rows.with_format("arrow").iter(batch_size=256)


def column_texts(tables: Iterator[Any], column: str, label: str) -> Iterator[str]:
    """The texts of a column of `tables_of`, row by row; "" where a row has none.

    Raises Mistake where `column` does not exist or does not hold text.
    """
    number = 0
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
                raise Mistake(f"{label}: column {column!r} holds {kind}, not text, in row {number}: {advice}")
            yield text or ""
            number += 1


def _values(column: Any) -> list:
    """The values of a pyarrow column.

    Where rows differ in type, `datasets` makes the whole column one of JSON's source, strings included.
    """
    import pyarrow

    values = column.to_pylist()
    if isinstance(column.type, pyarrow.JsonType):
        return [value if value is None else json.loads(value) for value in values]
    return values


def import_datasets() -> ModuleType:
    """`datasets`, which takes seconds to import, silenced: the errors that it also logs are raised here."""
    import datasets
    import huggingface_hub

    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # or the Hub is told of each table, a local one too
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    huggingface_hub.logging.set_verbosity(huggingface_hub.logging.CRITICAL)
    warnings.filterwarnings("error", message="Length of header or names")  # pandas would leave out cells
    return datasets
