"""The fault matrix's option, what all of its cases share, and the table of how many held."""

import random
from collections import Counter, defaultdict
from itertools import pairwise
from types import SimpleNamespace

import pytest

from tests.faults.processes import run_well
from tests.small_runs import EVENTFUL, small_options, small_text

DISTURBED = [*EVENTFUL, "--trainer.max_steps=30"]  # options of the run that is killed


def pytest_addoption(parser):
    parser.addoption("--short", action="store_true", help="some cases of each fault, in at most four minutes")


def pytest_configure(config):
    config.addinivalue_line("markers", "short(count): of so many cases each run with --short, or of all")


def pytest_collection_modifyitems(config, items):
    """With --short keeps `count` of the cases of a test that is marked so: one of each stretch, always the same."""
    groups = defaultdict(list)
    for item in items if config.getoption("--short") else []:
        groups[item.originalname].append(item)
    for name, group in groups.items():
        if marker := group[0].get_closest_marker("short"):
            draw, ends = random.Random(name), range(0, len(group) + 1, max(1, len(group) // marker.args[0]))
            kept = [group[draw.randrange(first, end)] for first, end in pairwise(ends)]
            config.hook.pytest_deselected(items=[item for item in group if item not in kept])
            items[:] = [item for item in items if item not in group or item in kept]


def pytest_terminal_summary(terminalreporter):
    """For each fault: how many cases there were, how many held, and what a person saw most often."""
    rows = defaultdict(list)
    for kind in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(kind, []):
            if getattr(report, "when", None) == "call" or kind == "error":
                told = dict(getattr(report, "user_properties", []))
                rows[told.get("fault", report.nodeid)].append((kind, told.get("cases", 1), told.get("said", "")))
    terminalreporter.write_line("\n| fault | cases | held | what a person sees |\n|---|---|---|---|")
    for fault, cases in sorted(rows.items()):
        held = [(count, said) for kind, count, said in cases if kind == "passed"]
        total, held_total = sum(count for _, count, _ in cases), sum(count for count, _ in held)
        said = Counter(said for _, said in held if said).most_common(1)
        terminalreporter.write_line(f"| {fault} | {total} | {held_total} | {said[0][0] if said else ''} |")


@pytest.fixture(scope="session")
def undisturbed(request, tmp_path_factory):
    """A run that takes a second: its options, its folder, which holds its text and cache too, and what it leaves."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "words.txt").write_text(small_text())
    options = small_options(folder / "words.txt", folder / "cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_well([*options, "--name=run"])
        run_well([*options, *DISTURBED, "--name=eventful"])
    runs = {name: folder / "runs" / name for name in ("run", "eventful")}
    return SimpleNamespace(folder=folder, options=options, is_short=request.config.getoption("--short"), **runs)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def count(record_property, request):
    """Says for the table how many cases a test held, and what a person saw."""
    record_property("fault", request.node.originalname.removeprefix("test_").replace("_", " "))

    def counted(said: str, cases: int = 1) -> None:
        record_property("said", said)
        record_property("cases", cases)

    return counted
