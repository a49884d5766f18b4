"""Every value of every file of a run, replaced by others at random: each program works, or answers with one sentence.

make stress ARGS="tests/stress/files.py"; STRESS=N changes how many cases each file gets, SEED which ones.
"""

import json
import os
import random
from pathlib import Path

import pytest
import torch
import yaml

from tests.limited_memory import limited_memory
from tests.strangers import ENTRIES, call, files_below

CASES = int(os.environ.get("STRESS", "300"))  # a file
SEED = int(os.environ.get("SEED", "0"))

REMOVED = object()
VALUES = [None, True, 0, -1, 3, 10**30, 0.5, float("inf"), float("nan"), "", "x", "</script><b>", "x" * 10**6]
VALUES += [[], [0], [[]], {}, {"x": 1}, [None] * 1000, json.loads("[" * 50 + "]" * 50), REMOVED]


def write_checkpoints(content, path):
    for each in path.parent.glob("*.ckpt"):
        torch.save(content, each)


def as_lines(lines):
    return "".join(json.dumps(line) + "\n" for line in lines)


def as_table(rows):
    return "".join(",".join(map(str, row if isinstance(row, list) else [row])) + "\n" for row in rows)


JSON, LINES = (json.loads, json.dumps), (lambda text: [json.loads(line) for line in text.splitlines()], as_lines)
TEXTS = {  # how each is read and written
    "config.yaml": (yaml.safe_load, yaml.safe_dump),
    "metrics.csv": (lambda text: [line.split(",") for line in text.splitlines()], as_table),
    "samples.jsonl": LINES,
    "attention/scores.jsonl": LINES,
    "attention/probe.json": JSON,
    "attention/step_00000012.json": JSON,
}


def places(value, above=()):
    """The way to every value within: keys and indices. Of long lists only the first are taken."""
    yield above
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in list(inside)[:20]:
        yield from places(item, (*above, key))


def replaced(value, place, new):
    """A copy in which the value at `place` is `new`, or is not there."""
    if not place:
        return new
    key, *rest = place
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = replaced(value[key], rest, new)
    if copy[key] is REMOVED:
        del copy[key]
    return tuple(copy) if isinstance(value, tuple) else copy


@pytest.mark.parametrize("number", range(CASES))
@pytest.mark.parametrize("name", [*TEXTS, "checkpoints/best.ckpt"])
def test_any_value_of_any_file(name, number, finished_run, capsys, monkeypatch):
    monkeypatch.delenv("GLASSGPT_DEBUG", raising=False)
    draw, path = random.Random(f"{SEED} {name} {number}"), finished_run / name
    read, write = TEXTS.get(name, (None, None))
    content = read(path.read_text()) if read else torch.load(path, weights_only=True)
    depth = draw.randint(1, 8)  # every entry of the structure is as likely as another, however many values it has
    place = draw.choice([place for place in places(content) if 1 <= len(place) <= depth])
    new, entry = draw.choice(VALUES), draw.choice([*ENTRIES])
    case = f"{entry}: {name}, {'.'.join(map(str, place))} = {str(new)[:40]!r}"
    content = replaced(content, place, new)
    if write:
        path.write_text(write(content))
    else:
        write_checkpoints(content, path)
    before = files_below(Path.cwd())
    with limited_memory(2**31):
        status = call(ENTRIES[entry])
    error = capsys.readouterr().err
    assert status in (0, 2), case
    if status == 2:
        assert error.count("\n") == 1 and len(error) <= 1200, (case, error)
        assert files_below(Path.cwd()) == before, case
