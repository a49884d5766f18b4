"""Every value of every file of a run, replaced by others at random: each program works, or answers with one sentence.

make stress ARGS="tests/stress/files.py"; STRESS=N changes how many cases each file gets, SEED which ones.
"""

import json
import os
import random
import shutil
import traceback
from pathlib import Path

import pytest
import torch
import yaml

from tests.limited_memory import limited_memory
from tests.strangers import ENTRIES, call, files_below

CASES = int(os.environ.get("STRESS", "300"))  # a file
SEED = int(os.environ.get("SEED", "0"))

VALUES = [None, True, 0, -1, 3, 10**30, 0.5, float("inf"), float("nan"), "", "x", "</script><b>", "x" * 10**6]
VALUES += [[], [0], [[]], {}, {"x": 1}, [None] * 1000, json.loads("[" * 50 + "]" * 50)]


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def read_table(path):
    return [line.split(",") for line in path.read_text().splitlines()]


def write_table(path, rows):
    path.write_text("".join(",".join(map(str, row if isinstance(row, list) else [row])) + "\n" for row in rows))


def read_json(path):
    return json.loads(path.read_text())


def write_json(path, value):
    path.write_text(json.dumps(value))


def write_everywhere(path, checkpoint):
    for each in path.parent.glob("*.ckpt"):
        torch.save(checkpoint, each)


FILES = {
    "config.yaml": (lambda path: yaml.safe_load(path.read_text()), lambda path, v: path.write_text(yaml.safe_dump(v))),
    "metrics.csv": (read_table, write_table),
    "samples.jsonl": (read_lines, write_lines),
    "attention/scores.jsonl": (read_lines, write_lines),
    "attention/probe.json": (read_json, write_json),
    "attention/step_00000012.json": (read_json, write_json),
    "checkpoints/best.ckpt": (lambda path: torch.load(path, weights_only=True), write_everywhere),
}


def places(value, above=()):
    """The way to every value within: keys and indices. Of long lists only the first are taken."""
    yield above
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in list(inside)[:20]:
        yield from places(item, (*above, key))


def replaced(value, place, new):
    """A copy in which the value at `place` is `new`; "removed" takes it out."""
    if not place:
        return new
    key, *rest = place
    if isinstance(value, dict):
        copy = dict(value)
        if not rest and isinstance(new, str) and new == "removed":
            del copy[key]
        else:
            copy[key] = replaced(value[key], rest, new)
        return copy
    copy = list(value)
    copy[key] = replaced(value[key], rest, new)
    return copy if isinstance(value, list) else tuple(copy)


@pytest.mark.parametrize("name", FILES)
def test_any_value_of_any_file(name, finished_run, capsys, monkeypatch):
    monkeypatch.delenv("GLASSGPT_DEBUG", raising=False)
    draw = random.Random(f"{SEED} {name}")
    read, write = FILES[name]
    shutil.copytree(finished_run, "whole")
    content = read(finished_run / name)
    everywhere = list(places(content))
    # Every entry of the structure is as likely as another, however many values it has.
    failures, counts = {}, {0: 0, 2: 0}
    for _ in range(CASES):
        depth = draw.randint(1, 8)
        place = draw.choice([p for p in everywhere if 1 <= len(p) <= depth])
        new = draw.choice([*VALUES, "removed"])
        entry = draw.choice([*ENTRIES])
        shutil.rmtree(finished_run)
        shutil.copytree("whole", finished_run)
        write(finished_run / name, replaced(content, place, new))
        before = files_below(Path.cwd())
        case = f"{entry}: {name}, {'.'.join(map(str, place))} = {str(new)[:40]!r}"
        try:
            with limited_memory(2**31):
                status = call(ENTRIES[entry])
        except BaseException:
            failures.setdefault(traceback.format_exc().strip().splitlines()[-1][:100], []).append(
                case + "\n" + "".join(traceback.format_exc().splitlines(True)[-7:])
            )
            capsys.readouterr()
            continue
        error = capsys.readouterr().err
        counts[status] = counts.get(status, 0) + 1
        if status == 2 and (error.count("\n") != 1 or len(error) > 1200):
            failures.setdefault("not one sentence", []).append(f"{case}\n{error[:300]}")
        if status == 2 and files_below(Path.cwd()) != before:
            failures.setdefault("left a mark", []).append(f"{case}\n{error[:300]}")
    with capsys.disabled():
        print(f"\n{name}: {counts.pop(0)} accepted, {counts.pop(2)} refused", counts or "")
    for reason, cases in failures.items():
        print(f"### {len(cases)} x {reason}\n{cases[0]}")
    assert not failures
