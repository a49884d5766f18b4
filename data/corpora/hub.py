"""A data set from the Hugging Face Hub, or from a local folder that the `datasets` library can load."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data.tables import BATCH_ROWS, column_texts, import_datasets, reading
from data.text import WHOLE, Corpus, Passage, file_stamp, row_passages
from model.mistakes import Mistake

# Usual names of a validation split. "test" is left out: that split is for the final evaluation.
_VALIDATION_NAMES = ("validation", "valid", "val", "dev")


@dataclass
class HubCorpus(Corpus):
    """A data set by its name on the Hub ("roneneldan/TinyStories"), or a folder of parquet, jsonl or arrow files.

    Each row is one document. The validation split is `dataset_validation_split`, or else the data set's own validation
    split, or else `validation_fraction` of the rows of `dataset_split`. With `streaming`, their text is not stored.

    Cached tokens stay in use when the data set changes on the Hub, unless `dataset_revision` names another commit.
    """

    dataset: str | None
    dataset_config: str | None
    dataset_split: str
    dataset_validation_split: str | None
    dataset_revision: str | None
    text_column: str
    streaming: bool
    validation_fraction: float

    def __post_init__(self):
        """Raises Mistake if no data set is named."""
        if not self.dataset:
            raise Mistake("data.corpus hub needs to know which data set: set --data.dataset to its name or folder")
        self.folder = folder = Path(os.path.expanduser(self.dataset))
        self.name = folder.name
        files = [file_stamp(file) for file in sorted(folder.rglob("*")) if file.is_file()]
        self.identity = {**asdict(self), "files": files}

    def passages(self, split: str) -> Iterator[Passage]:
        """Raises Mistake if the Hub cannot be reached, or if a split or column is missing."""
        with self._reading():
            by_name = self._load()
        default = next((name for name in _VALIDATION_NAMES if name in by_name), self.dataset_split)
        names = {"train": self.dataset_split, "validation": self.dataset_validation_split or default}
        for name in names.values():
            if name not in by_name:
                raise Mistake(f"data set {self.dataset!r} has no split {name!r}: it has {', '.join(by_name)}")
            if by_name[name].info.builder_name == "text":
                raise Mistake(
                    f"data set {self.dataset!r} holds plain text, and would be read line by line without its line "
                    "breaks: set --data.files to the text files instead, such as --data.files 'my/**/*.txt'"
                )
        share = WHOLE
        if names["validation"] == names["train"]:
            cut = self.validation_fraction
            share = (0.0, cut) if split == "validation" else (cut, 1.0)
        batches = reading(by_name[names[split]].iter(BATCH_ROWS), self._reading())
        yield from row_passages(column_texts(batches, self.text_column, f"data set {self.dataset!r}"), share)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turns any error raised in the block into a Mistake that says what to do. The block must only use `datasets`.

        It catches every exception: the network clients that `datasets` uses raise other ones in every version.
        """
        try:
            yield
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise Mistake(
                f"cannot read data set {self.dataset!r} ({type(error).__name__}: {reason}). If it needs a login, run "
                "hf auth login. Offline, set --data.dataset to a folder of parquet, jsonl or arrow files, or set "
                "--data.corpus stdlib, which is on every machine. In a folder, --data.files also reads jsonl files "
                "with columns that change their types"
            ) from error

    def _load(self) -> dict[str, Any]:
        datasets = import_datasets()
        is_local = self.folder.is_dir()
        source = str(self.folder) if is_local else self.dataset
        builder = datasets.load_dataset_builder(source, self.dataset_config, revision=self.dataset_revision)
        if builder.name == "parquet":
            builder.config.batch_size = BATCH_ROWS  # the default, the size of the first row group, may be 0
        # Streaming reads a local folder in place. Otherwise `datasets` would copy it into its cache.
        if self.streaming or is_local:
            return builder.as_streaming_dataset()
        builder.download_and_prepare()
        return builder.as_dataset()
