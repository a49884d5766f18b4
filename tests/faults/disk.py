"""A disk without room, and folders that cannot be written."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from scripts import generate, inspect_attention, prepare_data, report
from tests.faults.runs import (
    RUN,
    Ended,
    Lab,
    check_mistake,
    check_nothing_aside,
    check_whole_files,
    kind_of,
    run,
    watch_writes,
)
from tests.small_runs import assert_same_run

Case = Callable[[Lab], str]


def full_disk(lab: Lab) -> Iterator[tuple[str, Case]]:
    """The disk becomes full when a file is opened, or some bytes later; each of the files that a run writes."""
    opened: list[str] = []
    Path("list").mkdir()
    os.chdir("list")

    def note() -> None:
        def write(event: str, path: str) -> None:
            if event == "open":
                with os.fdopen(os.dup(1), "a") as out:
                    out.write(f"written: {path}\n")

        watch_writes(Path("runs"), write)
        watch_writes(Path("cold"), write)

    ended = run([*lab.options, "--data.cache_dir=cold", "--attention.picture=true", "--name=run"], note)
    assert ended.status == 0, ended.error
    os.chdir("..")
    opened = [line.split(": ", 1)[1] for line in ended.output.splitlines() if line.startswith("written: ")]
    chosen, draw = {}, random.Random(0)
    for number, path in enumerate(opened):
        chosen.setdefault(kind_of(path), []).append(number)
    for kind, numbers in chosen.items():
        for number in [numbers[0], draw.choice(numbers)] if lab.is_short else numbers:
            for room in [draw.choice([0, 40, 400])] if lab.is_short else [0, 40, 400]:
                yield f"{kind}, file {number}, {room} bytes", partial(disk_fills, number=number, room=room)


def disk_fills(lab: Lab, number: int, room: int) -> str:
    countdown = number + 1

    def prepare() -> None:
        def count(event: str, path: str) -> None:
            nonlocal countdown
            countdown -= event == "open"
            if countdown == 0:  # as a full disk, but for this process alone
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))

        watch_writes(Path("runs"), count)
        watch_writes(Path("cold"), count)

    options = [*lab.options, "--data.cache_dir=cold", "--attention.picture=true", "--name=run"]
    ended = run(options, prepare)
    check_nothing_aside(Path())
    if ended.status == 0:  # a file for people, without which the run is complete
        assert "File too large" in ended.error or room, ended.error
        said = ended.said
    else:
        said = check_mistake(ended, "File too large", "cold" if "cold" in ended.said else "runs/run")
    if not RUN.exists():
        again = run(options)
    else:
        step = check_whole_files(RUN)
        assert step >= 0 or not (RUN / "checkpoints").exists() or not list((RUN / "checkpoints").iterdir())
        if step < 0:
            shutil.rmtree(RUN)
        again = run(["--resume=runs/run"] if step >= 0 else options)
    assert again.status == 0, again.error
    assert_same_run(lab.whole, RUN)
    return said


def read_only(lab: Lab) -> Iterator[tuple[str, Case]]:
    run_dir, cache = Path("runs/run"), Path("cache")
    resumed = ["--resume=runs/run", "--trainer.max_steps=13"]
    for label, folder, options, main, expected in [
        ("runs/", Path("runs"), [*lab.options, "--name=new"], None, "runs/new: Read-only file system"),
        ("a resumed run", run_dir, resumed, None, "Read-only file system"),
        ("a cache to fill", cache, [*lab.options, "--name=new", "--data.cache_dir=cache"], None, "data.cache_dir"),
        ("a cache to prepare", cache, [*lab.options[:4], "--data.cache_dir=cache"], prepare_data.main, "cache_dir"),
        ("the report", run_dir, ["--run=runs/run"], report.main, "runs/run/report.html: Read-only file system"),
        ("a page", run_dir, ["--run=runs/run", "--output=runs/run/a.html"], inspect_attention.main, "Read-only"),
        ("a picture", run_dir, ["--run=runs/run", "--output=runs/run/a.png"], inspect_attention.main, "Read-only"),
        ("validating", run_dir, ["validate", "--ckpt_path=runs/run"], None, ""),
        ("generating", run_dir, ["--checkpoint=runs/run", "--max_new_tokens=3"], generate.main, ""),
        ("a cache that is full", lab.folder / "cache", [*lab.options, "--name=new"], None, ""),
    ]:
        yield label, partial(cannot_write, folder=folder, options=options, main=main, expected=expected)


def cannot_write(lab: Lab, folder: Path, options: list[str], main: Callable | None, expected: str) -> str:
    shutil.copytree(lab.whole, "runs/run")
    before = contents(Path("runs/run"))

    def prepare() -> None:
        def refuse(event: str, path: str) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

        watch_writes(folder, refuse)

    ended: Ended = run(options, prepare, **({"main": main} if main else {}))
    assert contents(Path("runs/run")) == before
    if not expected:
        assert ended.status == 0, ended.error
        return ""
    name = f"{main.__module__.split('.')[-1]}.py" if main else "train.py"
    assert not Path("runs/new").exists()
    return check_mistake(ended, expected, program=name)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
