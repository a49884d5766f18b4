"""A data set of the Hugging Face Hub, or a local folder that `datasets` can load."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data.tables import TABLES, column_texts, import_datasets, table_ending
from data.text import WHOLE, Corpus, Passage, file_stamp, row_passages
from model.checks import Mistake

# How data sets call the split to validate on. "test" is not among them: it is for the final evaluation.
_VALIDATION_NAMES = ("validation", "valid", "val", "dev")
_NETWORK = {"httpx", "httpx2", "httpcore", "requests", "urllib3", "aiohttp", "huggingface_hub"}


@dataclass
class HubCorpus(Corpus):
    """A data set by its name ("roneneldan/TinyStories"), or a folder of parquet, jsonl or arrow files.

    Each row is one document. Validates on `dataset_validation_split`, or else on the data set's own validation split,
    or else on `validation_fraction` of the rows of `dataset_split`. With `streaming`, rows are never stored.
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
        """Raises Mistake where no data set is named, or a folder does not exist."""
        if self.dataset is None:
            raise Mistake("data.corpus hub needs to know which: set --data.dataset NAME_OR_FOLDER")
        folder = Path(self.dataset).expanduser()
        if self.dataset.startswith((".", "/", "~")) and not folder.is_dir():
            raise Mistake(f"--data.dataset {self.dataset}: there is no such folder")
        self.name = folder.name
        files = sorted(folder.rglob("*")) if folder.is_dir() else []
        self.identity = {**asdict(self), "files": [file_stamp(file) for file in files if file.is_file()]}

    def passages(self, split: str) -> Iterator[Passage]:
        """Raises Mistake where the Hub cannot be reached, or a split or column is missing."""
        with self._reading():
            by_name = self._load()
        own = next((name for name in _VALIDATION_NAMES if name in by_name), self.dataset_split)
        names = {"train": self.dataset_split, "validation": self.dataset_validation_split or own}
        for name in names.values():
            if name not in by_name:
                raise Mistake(f"data set {self.dataset!r} has no split {name!r}: it has {', '.join(by_name)}")
            if by_name[name].info.builder_name == "text":
                raise Mistake(
                    f"data set {self.dataset!r} holds plain text, which would be read line by line and lose its line "
                    "ends: name the files themselves, as in --data.files 'my/**/*.txt'"
                )
        share = WHOLE
        if names["validation"] == names["train"]:
            cut = self.validation_fraction
            share = (0.0, cut) if split == "validation" else (cut, 1.0)
        yield from row_passages(self._texts(by_name[names[split]]), share)

    def _texts(self, rows: Any) -> Iterator[str]:
        with self._reading():
            yield from column_texts(rows, self.text_column, f"data set {self.dataset!r}")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """What `datasets` raises becomes one sentence that says what to do. For a block that only reads."""
        errors = import_datasets().exceptions
        try:
            yield
        except errors.DatasetNotFoundError as error:  # or asks for a login
            raise Mistake(f"{error} If it asks for a login: hf auth login") from error
        except Exception as error:
            if cause := _network_error(error):
                reason = (str(cause).splitlines() or [type(cause).__name__])[0]
                raise Mistake(
                    f"cannot reach the Hugging Face Hub for {self.dataset!r}: offline, set --data.dataset to a folder "
                    "of parquet, jsonl or arrow files, or train on --data.corpus stdlib, which is on every machine "
                    f"({reason})"
                ) from error
            if isinstance(error, (OSError, ValueError, errors.DatasetsError)) and not isinstance(error, Mistake):
                raise Mistake(f"cannot read data set {self.dataset!r}: {error.__cause__ or error}") from error
            raise

    def _load(self) -> dict[str, Any]:
        datasets = import_datasets()
        folder = Path(self.dataset).expanduser()
        if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
            saved = datasets.load_from_disk(str(folder))
            return saved if isinstance(saved, dict) else {self.dataset_split: saved}
        # A local folder is read in place: without streaming, `datasets` would copy it into its cache.
        name, streaming, options = self.dataset, self.streaming, {}
        if folder.is_dir():
            name, streaming = str(folder), True
            endings = {ending for path in folder.rglob("*") if (ending := table_ending(path))}
            if endings == {".parquet"}:
                options = {"batch_size": TABLES[".parquet"]["batch_size"]}
        return datasets.load_dataset(
            name, self.dataset_config, revision=self.dataset_revision, streaming=streaming, **options
        )


def _network_error(error: BaseException | None) -> BaseException | None:
    """The error of the network that is this one or has led to it, or None.

    The clients that `datasets` goes through have errors of their own, which differ from version to version.
    """
    while error is not None:
        modules = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
        if isinstance(error, (ConnectionError, TimeoutError)) or not _NETWORK.isdisjoint(modules):
            return error
        error = error.__cause__ or error.__context__
    return None
