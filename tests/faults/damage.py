"""One changed byte, at random places, in each kind of file that a run or the token cache reads again."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from data.datamodule import TextDataModule
from model.checkpoint import load_gpt, read_checkpoint
from model.inspection.archive import AttentionArchive
from model.runs.folder import resume_point
from model.runs.results import read_metrics, read_samples
from tests.faults.runs import RUN, Lab, check_mistake, run
from tests.small_runs import assert_same, final_state

PLACES = 200
REPAIRED, SAME, OTHER = "repaired", "the same content", "another figure or letter is shown, no weight changes"
Look = Callable[[Lab], str]  # what is said of a damaged file; raises AssertionError for weights that are silently wrong


def cases(lab: Lab, path: str, look: Look, slow: bool = False) -> Iterator[tuple[str, Callable]]:
    """In batches, as a place takes milliseconds; or a second where a run is resumed (`slow`)."""
    places = PLACES // 10 if slow and lab.is_short else PLACES
    size = 5 if slow else 50
    for first in range(0, places, size):
        yield (
            f"{path}, places {first} to {first + size - 1}",
            partial(damaged, path=path, look=look, seed=first, count=size),
        )


def damaged(lab: Lab, path: str, look: Look, seed: int, count: int) -> tuple[str, int]:
    shutil.copytree(lab.whole, RUN)
    shutil.copytree(lab.folder / "cache", "cache")
    shutil.copy(lab.folder / "words.txt", "words.txt")
    [file] = sorted(Path().glob(path))[-1:]
    whole, draw, said = file.read_bytes(), random.Random(f"{path} {seed}"), []
    logging.disable()
    for _ in range(count):
        content, place = bytearray(whole), draw.randrange(len(whole))
        content[place] ^= draw.randrange(1, 256)
        file.write_bytes(content)
        try:
            said.append(look(lab))
        except Exception as error:
            raise AssertionError(f"byte {place} of {file}") from error
        file.write_bytes(whole)
    return f"{file.name}: {most_common(said)}", count


def most_common(said: list[str]) -> str:
    return ", ".join(f"{said.count(one)} {one}" for one in sorted(set(said), key=said.count, reverse=True))


def refused_or(look: Look) -> Look:
    """As `look`, but a ValueError that names a file is an answer too."""

    def careful(lab: Lab) -> str:
        try:
            return look(lab)
        except ValueError as error:
            assert "runs/run" in str(error), error
            return "refused by name"

    return careful


@refused_or
def last(lab: Lab) -> str:
    _, checkpoint = resume_point(RUN)
    if checkpoint.name != "last.ckpt":
        assert checkpoint.name == "previous.ckpt"
        return "previous.ckpt is used"
    assert_same(final_state(RUN), final_state(lab.whole))
    return SAME


@refused_or
def best(lab: Lab) -> str:
    gpt, info = load_gpt(RUN / "checkpoints" / "best.ckpt")
    assert_same(info, load_gpt(lab.whole / "checkpoints" / "best.ckpt")[1])
    before = read_checkpoint(lab.whole / "checkpoints" / "best.ckpt")["state_dict"]
    assert_same({f"gpt.{name}": weight for name, weight in gpt.state_dict().items()}, dict(before))
    return SAME


def config(lab: Lab) -> str:
    ended = run(["--resume=runs/run", "--trainer.max_steps=13"])
    shutil.rmtree(RUN)
    shutil.copytree(lab.whole, RUN)
    if ended.status == 0:
        assert "config.yaml is not as this run wrote it" in ended.error, ended.error
        return "resumed with a warning"
    check_mistake(ended)
    return "refused in one sentence"


@refused_or
def metrics(lab: Lab) -> str:
    return SAME if read_metrics(RUN / "metrics.csv") == read_metrics(lab.whole / "metrics.csv") else OTHER


@refused_or
def samples(lab: Lab) -> str:
    return SAME if read_samples(RUN / "samples.jsonl") == read_samples(lab.whole / "samples.jsonl") else OTHER


@refused_or
def attention(lab: Lab) -> str:
    archive, whole = (AttentionArchive.open(run / "attention") for run in (RUN, lab.whole))
    for step in whole.steps:
        maps, expected = (one.maps(step) for one in (archive, whole))
        assert all(np.array_equal(maps[name], expected[name], equal_nan=True) for name in expected)
    figures = [
        [one.to_json(5) for one in each.snapshots] + [each.details(12), str(each.probes)] for each in (archive, whole)
    ]
    return SAME if figures[0] == figures[1] else OTHER


def cache(lab: Lab) -> str:
    module = TextDataModule(files=str(lab.folder / "words.txt"), tokenizer="bytes", cache_dir="cache")
    noticed = module.cache.open() is None
    with contextlib.redirect_stderr(io.StringIO()):
        tokenized = module.cache.prepare()
    whole = TextDataModule(
        files=str(lab.folder / "words.txt"), tokenizer="bytes", cache_dir=lab.folder / "cache"
    ).cache.open()
    assert tokenized.tokenizer.to_dict() == whole.tokenizer.to_dict()
    for name in ("train", "validation"):
        here, there = getattr(tokenized, name), getattr(whole, name)
        assert np.array_equal(here.read(0, here.num_tokens), there.read(0, there.num_tokens))
        assert here.num_bytes == there.num_bytes
    return REPAIRED if noticed else SAME


def text(lab: Lab) -> str:
    """The run's own text; it is resumed with the changed one."""
    ended = run(["--resume=runs/run", "--trainer.max_steps=13", "--data.files=words.txt"])
    shutil.rmtree(RUN)
    shutil.copytree(lab.whole, RUN)
    if ended.status == 0:
        changed = "The training text is not the one" in ended.error
        return "resumed with a warning" if changed else "only the validation text differs"
    check_mistake(ended)
    return "refused in one sentence"


KINDS = {
    "last.ckpt": partial(cases, path="runs/run/checkpoints/last.ckpt", look=last),
    "best.ckpt": partial(cases, path="runs/run/checkpoints/best.ckpt", look=best),
    "config.yaml": partial(cases, path="runs/run/config.yaml", look=config, slow=True),
    "metrics.csv": partial(cases, path="runs/run/metrics.csv", look=metrics),
    "samples.jsonl": partial(cases, path="runs/run/samples.jsonl", look=samples),
    "attention maps": partial(cases, path="runs/run/attention/step_*.npz", look=attention),
    "attention details": partial(cases, path="runs/run/attention/step_*.json", look=attention),
    "attention scores": partial(cases, path="runs/run/attention/scores.jsonl", look=attention),
    "attention probe": partial(cases, path="runs/run/attention/probe.json", look=attention),
    "cached tokens": partial(cases, path="cache/*/train.bin", look=cache),
    "their description": partial(cases, path="cache/*/train.json", look=cache),
    "cached tokenizer": partial(cases, path="cache/*/tokenizer.json", look=cache),
    "the text": partial(cases, path="words.txt", look=text, slow=True),
}
