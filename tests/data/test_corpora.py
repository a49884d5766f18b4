"""Corpora: the text of each split, and a sentence for every mistake in naming it."""

import os
import sysconfig
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pandas
import pytest
from jsonargparse import ArgumentParser

from data import corpora, datamodule
from data.corpora import CORPORA, CorpusOptions
from data.datamodule import TextDataModule
from data.text import SPLITS, Corpus, Passage
from tests.command_lines import mistake


def build(corpus="stdlib", **options):
    return corpora.build(CorpusOptions(corpus, **options))


def texts(corpus, *splits):
    return [passage.text for split in splits for passage in corpus.passages(split)]


def write_files(count):
    paths = [Path(f"part{number:03d}.txt").absolute() for number in range(count)]
    for number, path in enumerate(paths):
        path.write_text(f"text number {number}\n")
    return paths


@pytest.mark.parametrize("name", CORPORA)
def test_every_corpus_has_two_splits_and_the_same_text_each_time(name, here):
    write_files(20)
    Path("set").mkdir()
    Path("set/rows.jsonl").write_text('{"text": "one row"}\n' * 100)
    options = {"files": {"files": "*.txt"}, "hub": {"dataset": "set"}}.get(name, {})
    one, again = (build(name, **options) for _ in range(2))
    for split in SPLITS:
        passages = [list(islice(corpus.passages(split), 100)) for corpus in (one, again)]
        assert passages[0] == passages[1] != []
    assert one.identity == again.identity


def test_stdlib_is_source_code_without_tests_split_by_file():
    root = Path(sysconfig.get_paths()["stdlib"])
    train, validation = ([path.relative_to(root) for path in paths] for paths in build("stdlib").files.values())
    both = {*train, *validation}
    assert not {part for path in both for part in path.parts[:-1]} & {"test", "tests", "site-packages", "__pycache__"}
    assert not any(path.name.startswith("_sysconfigdata") for path in both)
    assert {Path("argparse.py"), Path("json", "decoder.py")} < both
    assert len(train) + len(validation) == len(both) > 400 and 0.05 < len(validation) / len(both) < 0.15
    assert all(paths == sorted(paths, key=Path.as_posix) for paths in (train, validation))


def test_the_split_of_a_file_does_not_depend_on_the_other_files(here):
    paths = write_files(200)
    before, after = (set(build(files=[*map(str, some)]).files["validation"]) for some in (paths, paths[1::2]))
    assert 5 < len(before) < 40 and after == before & set(paths[1::2])


@pytest.mark.parametrize("options", [{"files": "text.jsonl"}, {"dataset": "."}], ids=str)
def test_files_of_equal_name_size_and_date_in_two_folders_are_different_texts(tmp_path, monkeypatch, options):
    """Archives unpack such files. Each must have its own tokens in the cache."""
    identities = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        Path("text.jsonl").write_text(f'{{"text": "{name}"}}')
        os.utime("text.jsonl", (10**9, 10**9))
        identities.append(build(**options).identity)
    assert identities[0] != identities[1]


@pytest.mark.parametrize("fraction", [0.01, 0.99])
def test_few_files_leave_no_split_empty(here, fraction):
    write_files(5)
    assert sorted(map(len, build(files="*.txt", validation_fraction=fraction).files.values())) == [1, 4]


def test_a_file_with_several_names_is_read_once_and_a_validation_file_is_never_trained_on(here):
    paths = write_files(20)
    for path in paths:
        path.with_name(f"soft {path.name}").symlink_to(path)
    assert sorted(texts(build(files=["*.txt", "part*"]), *SPLITS)) == sorted(path.read_text() for path in paths)
    for name in ("soft part003.txt", f"../{here.name}/part003.txt"):
        corpus = build(files="*.txt", validation_files=name)
        assert texts(corpus, "validation") == ["text number 3\n"] and corpus.name == here.name
        assert sorted(texts(corpus, "train")) == sorted(path.read_text() for path in paths if path != paths[3])


def test_the_name_of_an_existing_file_is_not_read_as_a_pattern(here):
    for name in ("a[1].txt", "a1.txt"):
        Path(name).touch()
    assert build(files="a[1].txt").name == "a[1]"
    assert build(files="a[0-9].txt").name == "a1"


def test_missing_files_are_named(here):
    write_files(1)
    Path("link.txt").symlink_to("gone.txt")
    Path("packed.txt.gz").write_bytes(b"")
    Path("loop").symlink_to("loop")
    for files, validation_files, message in (
        (".", None, r"'\.' .*'FOLDER/\*\*/\*.txt'"),
        ("nothing/*.txt", None, r"nothing/\*.txt"),
        ("part*", "nothing/*.txt", "--data.validation_files"),
        ("*.txt", None, r"link.txt"),
        ("packed.*", None, r"packed.txt.gz .*unpack"),
        ("loop", None, "loop"),
    ):
        with mistake(message):
            build(files=files, validation_files=validation_files)


def test_a_pipe_is_refused_before_it_is_waited_for(here):
    os.mkfifo("pipe.txt")
    with mistake(r"pipe.txt .*file"):
        build(files="pipe.txt")


ROWS = [{"text": f"row {number}", "label": number} for number in range(300)]


def save(folder, kind, splits):
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
def test_hub_reads_local_folders_and_names_missing_columns_and_splits(here, kind):
    """The validation split is the data set's own, never by itself its test split."""
    save(here / "own", kind, {"train": ROWS, "test": ROWS[5:9], "valid": ROWS[:5]})
    assert texts(build(dataset="own"), *SPLITS) == [row["text"] for row in ROWS + ROWS[:5]]
    tested = build(dataset="own", dataset_validation_split="test")
    assert texts(tested, *SPLITS) == [row["text"] for row in ROWS + ROWS[5:9]]
    save(here / "none", kind, {"train": ROWS, "test": ROWS[:1]})
    corpus = build(dataset="none", validation_fraction=0.2)
    assert sorted(texts(corpus, *SPLITS)) == sorted(row["text"] for row in ROWS)
    assert 40 < len(texts(corpus, "validation")) < 80
    with mistake(r"'body'.*'text', 'label'"):
        texts(build(dataset="own", text_column="body"), "train")
    with mistake(r"'training'.* train"):
        texts(build(dataset="own", dataset_split="training"), "train")


def test_without_network_the_message_names_the_data_set_and_the_option_for_local_files(monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("nobody/nothing", "./nowhere"):
        with mistake(rf"'{name}'.*--data.dataset"):
            texts(build(dataset=name), "train")


def test_options_of_a_data_set_are_passed_to_the_hub(monkeypatch):
    """`make faults` reads data sets from a hub on this machine."""
    asked = []
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *of, **named: asked.append((*of, named)))
    for options in ({}, {"dataset_config": "en", "dataset_revision": "v2"}):
        with mistake("'some/set'"):
            texts(build(dataset="some/set", **options), "train")
    assert asked == [("some/set", None, {"revision": None}), ("some/set", "en", {"revision": "v2"})]


def test_a_folder_of_text_files_is_refused_as_a_data_set(here):
    """`datasets` would make each line a document, without its line end."""
    write_files(3)
    with mistake(r"--data\.files"):
        texts(build(dataset=str(here)), "train")


def test_an_empty_file_of_a_data_set_is_skipped(here):
    for name, rows in (("a", []), ("b", ["one", "two"]), ("c", [])):
        pandas.DataFrame({"text": rows}, dtype="string").to_parquet(f"{name}.parquet")
    for options in ({"dataset": str(here)}, {"files": "*.parquet"}):
        assert sorted(texts(build(**options), *SPLITS)) == ["one", "two"]


def test_a_new_corpus_is_one_line_in_the_registry_and_one_for_each_option(monkeypatch):
    """Its options become options of the data module, on the command line too."""

    class Sentence(Corpus):
        name = "sentence"

        def __init__(self, words: int):
            self.identity = {"words": words}

        def passages(self, split: str):
            yield Passage("word " * self.identity["words"], ends_document=True)

    @dataclass
    class Options(CorpusOptions):
        """The options of all corpora, and one more.

        Args:
            words: how many there are.
        """

        words: int = 3

    monkeypatch.setitem(CORPORA, "sentence", Sentence)
    for module in (datamodule, corpora):
        monkeypatch.setattr(module, "CorpusOptions", Options)
    parser = ArgumentParser()
    parser.add_class_arguments(TextDataModule, "data")
    assert "how many there are. (type: int, default: 3)" in " ".join(parser.format_help().split())
    assert texts(TextDataModule(corpus="sentence", words=5).corpus, "train") == ["word " * 5]


def test_an_option_selects_its_corpus_and_an_option_of_another_corpus_warns(here, caplog):
    """The latter would have no effect. Default values neither select nor warn."""
    write_files(1)
    assert build(files="*.txt", dataset=None).name == "part000"
    assert build(files=None, dataset=str(here), quotes=True).name == here.name
    assert not caplog.messages
    assert build(quotes=False, dataset_config="x").name == "stdlib"
    for name, message in zip(("quotes", "dataset_config"), caplog.messages, strict=True):
        assert f"data.{name} " in message and "stdlib" in message
