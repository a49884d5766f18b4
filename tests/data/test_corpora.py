"""Corpora: the text of each split, and the sentence for every mistake in naming it."""

import os
import re
import sys
import sysconfig
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest
from jsonargparse import ArgumentParser

from data import corpora, datamodule
from data.corpora import CORPORA, CorpusOptions
from data.corpora.hub import HubCorpus
from data.datamodule import TextDataModule
from data.text import SPLITS, Corpus, Passage
from model.mistakes import Mistake


def build(name: str, **options) -> Corpus:
    return corpora.build(name, CorpusOptions(**options))


def hub_corpus(dataset: str, **options) -> Corpus:
    return build("hub", dataset=dataset, **options)


def texts(corpus: Corpus, split: str) -> list[str]:
    return [passage.text for passage in corpus.passages(split)]


def write_files(folder: Path, count: int) -> list[Path]:
    paths = [folder / f"part{number:03d}.txt" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_text(f"text number {number}\n")
    return paths


@pytest.mark.parametrize("name", CORPORA)
def test_every_corpus_has_two_splits_and_the_same_text_each_time(name, tmp_path: Path):
    write_files(tmp_path, 20)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "rows.jsonl").write_text('{"text": "one row"}\n' * 100)
    options = {"files": {"files": f"{tmp_path}/*.txt"}, "hub": {"dataset": f"{tmp_path}/set"}}.get(name, {})
    one, again = (build(name, **options) for _ in range(2))
    for split in SPLITS:
        passages = [list(islice(corpus.passages(split), 100)) for corpus in (one, again)]
        assert passages[0] == passages[1] != []
    assert one.identity == again.identity


def test_stdlib_is_source_without_tests_split_by_file():
    root = Path(sysconfig.get_paths()["stdlib"])
    train, validation = ([path.relative_to(root) for path in paths] for paths in build("stdlib").files.values())
    folders = {part for path in train + validation for part in path.parts[:-1]}
    assert not folders & {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
    assert not any(path.name.startswith("_sysconfigdata") for path in train + validation)
    assert {Path("argparse.py"), Path("json", "decoder.py")} < set(train + validation)
    assert len(train) + len(validation) == len({*train, *validation}) > 400
    assert 0.05 < len(validation) / len(train + validation) < 0.15
    assert all(paths == sorted(paths, key=Path.as_posix) for paths in (train, validation))


def test_the_split_of_a_file_does_not_depend_on_the_other_files(tmp_path: Path):
    paths = write_files(tmp_path, 200)
    before = set(build("files", files=[f"{tmp_path}/*.txt"]).files["validation"])
    assert 5 < len(before) < 40
    for path in paths[::2]:
        path.unlink()
    assert set(build("files", files=[f"{tmp_path}/*.txt"]).files["validation"]) == before & set(paths[1::2])


@pytest.mark.parametrize("build", [lambda: build("files", files=["text.jsonl"]), lambda: hub_corpus(".")])
def test_texts_of_one_name_size_and_date_in_two_folders_are_two(tmp_path: Path, monkeypatch, build):
    """As archives unpack them: each has tokens of its own in the cache."""
    identities = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        Path("text.jsonl").write_text(f'{{"text": "{name}"}}')
        os.utime("text.jsonl", (10**9, 10**9))
        identities.append(build().identity)
    assert identities[0] != identities[1]


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("fraction", [0.01, 0.99])
def test_few_files_leave_no_split_empty(tmp_path: Path, count: int, fraction: float):
    paths = write_files(tmp_path, count)
    corpus = build("files", files=[f"{tmp_path}/*.txt"], validation_fraction=fraction)
    train, validation = (texts(corpus, split) for split in SPLITS)
    assert train and validation
    assert sorted(train + validation) == sorted(path.read_text() for path in paths)


def test_a_file_of_several_names_is_read_once_and_one_that_validates_is_never_trained_on(tmp_path: Path):
    paths = write_files(tmp_path, 20)
    for path in paths:
        path.with_name(f"soft {path.name}").symlink_to(path)
    corpus = build("files", files=[f"{tmp_path}/*.txt", f"{tmp_path}/part*"])
    assert sorted(texts(corpus, "train") + texts(corpus, "validation")) == sorted(path.read_text() for path in paths)
    for name in ("soft part003.txt", f"../{tmp_path.name}/part003.txt"):
        corpus = build("files", files=[f"{tmp_path}/*.txt"], validation_files=[f"{tmp_path}/{name}"])
        assert texts(corpus, "validation") == ["text number 3\n"] and corpus.name == tmp_path.name
        assert sorted(texts(corpus, "train")) == sorted(path.read_text() for path in paths if path != paths[3])


def test_what_exists_is_not_read_as_a_pattern(tmp_path: Path):
    for name in ("a[1].txt", "a1.txt"):
        (tmp_path / name).write_text(f"text of {name}")
    assert build("files", files=[str(tmp_path / "a[1].txt")]).name == "a[1]"
    assert build("files", files=[str(tmp_path / "a[0-9].txt")]).name == "a1"
    with pytest.raises(Mistake, match=r"is a folder: write '(.*)' to read") as mistake:
        build("files", files=[str(tmp_path)])
    build("files", files=[re.search("'(.*)'", str(mistake.value))[1]])  # what the sentence advises


def test_missing_and_empty_files_are_named(here: Path):
    write_files(here, 1)
    Path("empty.txt").touch()
    Path("link.txt").symlink_to("gone.txt")
    for files, validation_files, sentence in (
        ("nothing/*.txt", None, r"nothing/\*.txt"),
        ("part*", "nothing/*.txt", "--data.validation_files"),
        ("part*", "part*", "train"),
        ("empty.txt", None, "empty.txt"),
        ("*.txt", None, r"link.txt"),
    ):
        with pytest.raises(Mistake, match=sentence):
            build("files", files=files, validation_files=validation_files)


ROWS = [{"text": f"row {number}", "label": number} for number in range(300)]


def save(folder: Path, kind: str, splits: dict[str, list[dict]]) -> None:
    """A data set as `datasets` finds or saves it."""
    import datasets

    folder.mkdir()
    made = {name: datasets.Dataset.from_list(rows) for name, rows in splits.items()}
    if kind == "saved":
        datasets.DatasetDict(made).save_to_disk(folder)
        return
    for name, part in made.items():
        (part.to_json if kind == "jsonl" else part.to_parquet)(folder / f"{name}.{kind}")


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
def test_hub_reads_local_folders(tmp_path: Path, kind: str):
    save(tmp_path / "own", kind, {"train": ROWS, "validation": ROWS[:5]})
    corpus = hub_corpus(str(tmp_path / "own"))
    assert texts(corpus, "train") == [row["text"] for row in ROWS]
    assert texts(corpus, "validation") == [row["text"] for row in ROWS[:5]]
    save(tmp_path / "none", kind, {"train": ROWS})
    corpus = hub_corpus(str(tmp_path / "none"), validation_fraction=0.2)
    train, validation = (texts(corpus, split) for split in SPLITS)
    assert sorted(train + validation) == sorted(row["text"] for row in ROWS)
    assert 40 < len(validation) < 80


def test_hub_mistakes_are_named_and_an_unreachable_hub_says_what_to_do_offline(tmp_path: Path, monkeypatch):
    import datasets
    import huggingface_hub

    with pytest.raises(Mistake, match=r"\./nowhere"):
        hub_corpus("./nowhere")
    save(tmp_path / "set", "jsonl", {"train": ROWS})
    with pytest.raises(Mistake, match=r"'body'.* text, label"):
        texts(hub_corpus(str(tmp_path / "set"), text_column="body"), "train")
    with pytest.raises(Mistake, match=r"'training'.* train"):
        texts(hub_corpus(str(tmp_path / "set"), dataset_split="training"), "train")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    sentence = r"cannot read data set 'nobody/nothing' .*Offline, set --data.dataset"
    for streaming in (False, True):
        with pytest.raises(Mistake, match=sentence):
            texts(hub_corpus("nobody/nothing", streaming=streaming), "train")


def test_what_datasets_raises_is_one_sentence_and_a_full_memory_is_not(monkeypatch: pytest.MonkeyPatch):
    """Clients of the network have errors of their own kinds, which may have any name."""
    refused = type("Refused", (Exception,), {"__module__": "client.exceptions"})("no route\nto the host")
    for error, told in ((refused, Mistake), (MemoryError(), MemoryError)):

        def load(self, error=error):
            raise error

        monkeypatch.setattr(HubCorpus, "_load", load)
        with pytest.raises(told) as caught:
            texts(hub_corpus("nobody/nothing"), "train")
        assert told is MemoryError or re.search(r"'nobody/nothing' .*Refused: no route.*stdlib", str(caught.value))


@pytest.mark.parametrize("own", ["validation", "valid", "val", "dev"])
def test_hub_validates_on_the_data_sets_own_split_but_never_on_its_test_split(monkeypatch, own: str):
    import datasets

    splits = {name: datasets.Dataset.from_list([{"text": name}]) for name in ("train", "test", own)}
    monkeypatch.setattr(HubCorpus, "_load", lambda self: splits)
    assert texts(hub_corpus("some/set"), "validation") == [own]
    assert texts(hub_corpus("some/set", dataset_validation_split="test"), "validation") == ["test"]
    assert texts(hub_corpus("some/set", dataset_validation_split="test"), "train") == ["train"]
    del splits[own]
    corpus = hub_corpus("some/set")
    assert sorted(texts(corpus, "train") + texts(corpus, "validation")) == ["train"]


def test_a_data_set_is_asked_for_as_the_options_say(monkeypatch: pytest.MonkeyPatch):
    import datasets

    asked = []
    steps = ("download_and_prepare", "as_dataset", "as_streaming_dataset")
    builder = SimpleNamespace(name="json", **{step: lambda step=step: asked.append(step) or {} for step in steps})
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *of, **named: asked.append((*of, named)) or builder)
    options = {"dataset_config": "en", "dataset_revision": "v2", "streaming": True}
    for given in ({}, options):
        with pytest.raises(Mistake, match=r"'some/set' .*'train'"):
            texts(hub_corpus("some/set", **given), "train")
    assert asked[:3] == [("some/set", None, {"revision": None}), "download_and_prepare", "as_dataset"]
    assert asked[3:] == [("some/set", "en", {"revision": "v2"}), "as_streaming_dataset"]


def test_a_folder_of_text_is_not_read_line_by_line(tmp_path: Path):
    """`datasets` would make a document of each line, without its line end."""
    write_files(tmp_path, 3)
    with pytest.raises(Mistake, match=r"line by line.*--data.files"):
        texts(hub_corpus(str(tmp_path)), "train")


def test_an_empty_file_of_a_data_set_is_skipped(tmp_path: Path):
    for name, rows in (("a", []), ("b", ["one", "two"]), ("c", [])):
        table = pyarrow.table({"text": pyarrow.array(rows, pyarrow.string())})
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    corpora = (
        hub_corpus(str(tmp_path)),
        build("files", files=[f"{tmp_path}/*.parquet"], validation_files=[f"{tmp_path}/b.parquet"]),
    )
    assert sorted(texts(corpora[0], "train") + texts(corpora[0], "validation")) == ["one", "two"]
    assert texts(corpora[1], "train") == [] and texts(corpora[1], "validation") == ["one", "two"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_are_not_utf8_are_names(tmp_path: Path):
    for number in range(8):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9%d.txt" % number)).write_text(f"text {number}")
    corpus = build("files", files=[f"{tmp_path}/*.txt"])
    assert sorted(texts(corpus, "train") + texts(corpus, "validation")) == [f"text {number}" for number in range(8)]
    data = TextDataModule(
        files=[f"{tmp_path}/*7.txt"], tokenizer="bytes", cache_dir=str(tmp_path / "cache"), context_length=2
    )
    data.setup()
    assert data.tokenized.train.num_bytes > 0


def test_a_corpus_is_one_line_in_the_registry_and_each_option_of_its_own_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Its options become those of the data module, on the command line too, and a bug in it gets its traceback."""

    class Sentence(Corpus):
        """A word, again and again."""

        name = "sentence"

        def __init__(self, words: int):
            self.identity = {"words": words}

        def passages(self, split: str):
            yield Passage("word " * self.identity["words"], ends_document=True)
            if self.identity["words"] == 7:
                raise KeyError(split)

    @dataclass
    class Options(CorpusOptions):
        """Those of before, and one more.

        Args:
            words: how many there are.
        """

        words: int = 3

    monkeypatch.setitem(CORPORA, "sentence", Sentence)
    monkeypatch.setattr(datamodule, "CorpusOptions", Options)
    monkeypatch.setattr(corpora, "CorpusOptions", Options)
    parser = ArgumentParser()
    parser.add_class_arguments(TextDataModule, "data")
    assert "how many there are. (type: int, default: 3)" in " ".join(parser.format_help().split())
    places = {"tokenizer": "bytes", "context_length": 4, "cache_dir": str(tmp_path)}
    data = TextDataModule("sentence", words=5, **places)
    data.setup()
    tokens = data.tokenized.validation.read(1, 25)  # between two ends of text
    assert data.tokenizer.decode(tokens) == "word " * 5
    with pytest.raises(KeyError, match="train"):
        TextDataModule("sentence", words=7, **places).prepare_data()


def test_a_set_option_selects_its_corpus_and_one_of_another_corpus_is_named(tmp_path: Path, caplog):
    """It would do nothing; a default of another corpus is no choice."""
    (path,) = write_files(tmp_path, 1)
    assert build("stdlib", files=str(path), dataset=None).name == "part000"
    assert build("stdlib", files=None, dataset=str(tmp_path)).name == tmp_path.name
    assert build("stdlib", streaming=False, quotes=True, dataset_config=None).name == "stdlib"
    assert not caplog.messages
    options = {"quotes": False, "dataset_config": "x", "streaming": True}
    assert build("stdlib", **options).name == "stdlib"
    for name, message in zip(options, caplog.messages, strict=True):
        assert f"data.{name} " in message and "stdlib" in message
