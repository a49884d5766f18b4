"""Reading tables and data sets with the library `datasets`: row by row."""

import glob
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from model.checks import Mistake, parsing

# How `datasets` reads a file, by the ending of its name; every other file is plain text.
_CSV = {"path": "csv", "encoding": "utf-8-sig", "na_filter": False, "index_col": False, "chunksize": 1000}
TABLES: dict[str, dict[str, Any]] = {
    ".csv": _CSV,
    ".tsv": _CSV | {"sep": "\t"},
    ".jsonl": {"path": "json"},
    ".json": {"path": "json"},
    ".parquet": {"path": "parquet"},
    ".arrow": {"path": "arrow"},
}
COMPRESSIONS = (".gz", ".zst")


def table_ending(path: Path) -> str | None:
    """What `path` ends in, such as ".csv", without the ending of a compression; None where it is plain text."""
    endings = [ending.lower() for ending in path.suffixes if ending.lower() not in COMPRESSIONS]
    return endings[-1] if endings and endings[-1] in TABLES else None


def table_texts(path: Path, column: str) -> Iterator[str]:
    """The texts of a jsonl, csv, parquet or arrow file, row by row. Raises Mistake as `column_texts`."""
    import pyarrow

    datasets, options = import_datasets(), TABLES[table_ending(path)]
    load = partial(datasets.load_dataset, **options, data_files=[glob.escape(str(path))], split="train", streaming=True)
    with parsing(path):
        if path.suffix.lower() == ".zst":  # which `datasets` takes for a whole file where it was cut short
            with pyarrow.input_stream(str(path), compression="zstd") as stream:
                while stream.read(2**20):
                    pass
        rows = load()
        if options["path"] == "csv":  # of which pandas guesses types: 007 is text here
            text = {name: datasets.Value("string") for name in next(iter(rows), {})}
            rows = load(features=datasets.Features(text))
    yield from column_texts(rows, column, str(path))


def column_texts(rows: Any, column: str, label: str) -> Iterator[str]:
    """The texts of a `datasets.Dataset` or `IterableDataset`, row by row; "" where a row has none.

    Raises Mistake where the rows are damaged, `column` does not exist or does not hold text.
    """
    number = 0
    for table in _batches(rows, label):
        advice = f"set --data.text_column to one of {', '.join(table.column_names)}"
        if column not in table.column_names:
            raise Mistake(f"{label} has no column {column!r}: {advice}")
        with parsing(label):
            texts = table[column].to_pylist()
        for text in texts:
            if text is not None and not isinstance(text, str):
                kind = type(text).__name__
                raise Mistake(f"{label}: column {column!r} holds {kind}, not text, in row {number}: {advice}")
            yield text or ""
            number += 1


def _batches(rows: Any, label: str) -> Iterator[Any]:
    """The rows as tables of pyarrow. Raises Mistake where they are damaged."""
    with parsing(label):
        yield from rows.with_format("arrow").iter(batch_size=256)


def import_datasets() -> ModuleType:
    """`datasets`, which takes seconds to import, silenced: the errors that it also logs are raised here."""
    import datasets
    import huggingface_hub

    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # or the Hub is told of each table, a local one too
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    huggingface_hub.logging.set_verbosity(huggingface_hub.logging.CRITICAL)
    warnings.filterwarnings("error", message="Length of header or names")  # pandas would leave out cells
    return datasets
