"""Corpora: which text is in which split, and what a person is told when there is none."""

from __future__ import annotations

import gzip
import json
import os
import sysconfig
from pathlib import Path

import pytest

from data import corpora
from data.corpora import SPLITS, Corpus


def texts(corpus: Corpus, split: str) -> list[str]:
    return [passage.text for passage in corpus.passages(split)]


def write_files(folder: Path, count: int) -> list[Path]:
    paths = [folder / f"part{number:03d}.txt" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_text(f"text number {number}\n")
    return paths


def test_stdlib_is_source_without_tests_split_by_file():
    corpus = corpora.stdlib(0.1)
    names = [file.path for split in SPLITS for file in getattr(corpus, split)]
    root = Path(sysconfig.get_paths()["stdlib"])
    parts = {part for path in names for part in path.relative_to(root).parts[:-1]}
    assert not parts & {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
    assert not any(path.name.startswith("_sysconfigdata") for path in names)
    assert {root / "argparse.py", root / "json" / "decoder.py"} < set(names)
    assert len(names) == len(set(names)) > 400
    assert 0.05 < len(corpus.validation) / len(names) < 0.15
    assert corpus.num_bytes("train") == sum(len(text.encode()) for text in texts(corpus, "train"))
    for split in SPLITS:
        relative = [file.path.relative_to(root).as_posix() for file in getattr(corpus, split)]
        assert relative == sorted(relative)


def test_a_file_keeps_its_split_whatever_lies_beside_it(tmp_path: Path):
    paths = write_files(tmp_path, 200)
    before = {file.path for file in corpora.files([str(tmp_path / "*.txt")]).validation}
    assert 5 < len(before) < 40
    for path in paths[::2]:
        path.unlink()
    after = {file.path for file in corpora.files([str(tmp_path / "*.txt")]).validation}
    assert after == before & set(paths[1::2])


@pytest.mark.parametrize("count", [2, 3, 5])
def test_few_files_leave_no_split_empty(tmp_path: Path, count: int):
    write_files(tmp_path, count)
    for fraction in (0.01, 0.99):
        corpus = corpora.files([str(tmp_path / "*.txt")], validation_fraction=fraction)
        assert texts(corpus, "train")
        assert texts(corpus, "validation")
        assert sorted(texts(corpus, "train") + texts(corpus, "validation")) == sorted(
            path.read_text() for path in tmp_path.iterdir()
        )


def test_one_file_splits_by_position(tmp_path: Path):
    path = tmp_path / "book.txt"
    path.write_text("".join(f"line {number}\n" for number in range(1000)))
    corpus = corpora.files([str(path)], validation_fraction=0.2)
    train, validation = (texts(corpus, split) for split in SPLITS)
    assert "".join(train) + "".join(validation) == path.read_text()
    assert len("".join(train)) == int(path.stat().st_size * 0.8)
    assert corpus.name == "book"


def test_the_name_of_a_file_is_no_pattern(tmp_path: Path):
    for name in ("a[1].txt", "a1.txt"):
        (tmp_path / name).write_text(f"text of {name}")
    assert corpora.files([str(tmp_path / "a[1].txt")]).name == "a[1]"
    assert corpora.files([str(tmp_path / "a[0-9].txt")]).name == "a1"


def test_own_validation_files_are_never_trained_on(tmp_path: Path):
    paths = write_files(tmp_path, 4)
    corpus = corpora.files([str(tmp_path / "*.txt")], validation_patterns=[str(paths[2])])
    assert texts(corpus, "validation") == ["text number 2\n"]
    assert texts(corpus, "train") == ["text number 0\n", "text number 1\n", "text number 3\n"]


def test_formats_mix(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"body": "from json", "n": 1}\n')
    (tmp_path / "b.md").write_text("from markdown")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"from gzip"))
    corpus = corpora.files([str(tmp_path / "*")], text_column="body")
    assert sorted(texts(corpus, "train") + texts(corpus, "validation")) == ["from gzip", "from json", "from markdown"]


def test_fingerprint_notices_every_change(tmp_path: Path):
    paths = write_files(tmp_path, 3)
    pattern = [str(tmp_path / "*.txt")]

    def fingerprint(**options) -> str:
        return corpora.files(pattern, **options).fingerprint

    seen = [fingerprint()]
    assert fingerprint() == seen[0]
    seen.append(fingerprint(blocks=True))
    seen.append(fingerprint(validation_fraction=0.9))
    paths[1].write_text("text number 9\n")
    os.utime(paths[1], (1, 1))
    seen.append(fingerprint())
    write_files(tmp_path, 4)
    seen.append(fingerprint())
    paths[0].rename(tmp_path / "renamed.txt")
    seen.append(fingerprint())
    assert len(set(seen)) == len(seen)


def test_missing_and_empty_files_are_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"no file matches 'nothing/\*.txt'"):
        corpora.files(["nothing/*.txt"])
    with pytest.raises(ValueError, match=r"is a folder: write '.*/\*\*/\*.txt'"):
        corpora.files([str(tmp_path)])
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match=r"empty.txt' is empty"):
        corpora.files([str(tmp_path / "empty.txt")])
    write_files(tmp_path, 1)
    with pytest.raises(ValueError, match=r"none is left to train on"):
        corpora.files([str(tmp_path / "part*")], validation_patterns=[str(tmp_path / "part*")])


def test_unreadable_file_among_many_is_named(tmp_path: Path):
    write_files(tmp_path, 3)
    (tmp_path / "link.txt").symlink_to(tmp_path / "gone.txt")
    with pytest.raises(FileNotFoundError, match=r"link.txt"):
        corpora.files([str(tmp_path / "*.txt")])


ROWS = [{"text": f"row {number}", "label": number} for number in range(300)]


def save(folder: Path, kind: str, splits: dict[str, list[dict]]) -> None:
    """A data set as `datasets` finds or saves it."""
    import datasets

    folder.mkdir()
    if kind == "saved":
        made = datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in splits.items()})
        made.save_to_disk(folder)
        return
    for name, rows in splits.items():
        if kind == "jsonl":
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            made = datasets.Dataset.from_list(rows)
            made.to_parquet(folder / f"{name}.parquet")


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
def test_hub_reads_local_folders(tmp_path: Path, kind: str):
    save(tmp_path / "own", kind, {"train": ROWS, "validation": ROWS[:5]})
    corpus = corpora.hub(str(tmp_path / "own"))
    assert texts(corpus, "train") == [row["text"] for row in ROWS]
    assert texts(corpus, "validation") == [row["text"] for row in ROWS[:5]]

    save(tmp_path / "none", kind, {"train": ROWS})
    corpus = corpora.hub(str(tmp_path / "none"), validation_fraction=0.2)
    train, validation = (texts(corpus, split) for split in SPLITS)
    assert not set(train) & set(validation)
    assert set(train) | set(validation) == {row["text"] for row in ROWS}
    assert 40 < len(validation) < 80


def test_hub_mistakes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(FileNotFoundError, match=r"./nowhere: there is no such folder"):
        corpora.hub("./nowhere")
    save(tmp_path / "set", "jsonl", {"train": ROWS})
    with pytest.raises(ValueError, match=r"has no column 'body': .* text, label"):
        texts(corpora.hub(str(tmp_path / "set"), text_column="body"), "train")
    with pytest.raises(ValueError, match=r"has no split 'training': it has train"):
        texts(corpora.hub(str(tmp_path / "set"), split="training"), "train")


def test_unreachable_hub_says_what_to_do_offline(monkeypatch: pytest.MonkeyPatch):
    import datasets
    import huggingface_hub

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for streaming in (False, True):
        with pytest.raises(
            ConnectionError, match=r"cannot reach the Hugging Face Hub for 'nobody/nothing': offline, set"
        ):
            texts(corpora.hub("nobody/nothing", streaming=streaming), "train")
