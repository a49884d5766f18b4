"""The fault matrix's option, what all of its cases share, and the table of how many held."""

import random
from collections import Counter, defaultdict
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
    """With --short keeps `count` of the cases of a test that is marked so, always the same."""
    groups = defaultdict(list)
    for item in items:
        groups[item.originalname].append(item)
    for name, group in groups.items():
        marker = group[0].get_closest_marker("short")
        if marker and config.getoption("--short"):
            kept = random.Random(name).sample(group, min(len(group), marker.args[0]))
            config.hook.pytest_deselected(items=[item for item in group if item not in kept])
            items[:] = [item for item in items if item not in group or item in kept]


def pytest_terminal_summary(terminalreporter):
    """For each fault: how many cases there were, how many held, and what a person saw most often."""
    total, held, said = Counter(), Counter(), defaultdict(Counter)
    for kind in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(kind, []):
            case = dict(report.user_properties)
            fault, cases = case.get("fault", report.nodeid), case.get("cases", 1)
            total[fault] += cases
            held[fault] += cases if kind == "passed" else 0
            said[fault][case.get("said", "")] += kind == "passed"
    terminalreporter.write_line("\n| fault | cases | held | what a person sees |\n|---|---|---|---|")
    for fault in sorted(total):
        terminalreporter.write_line(
            f"| {fault} | {total[fault]} | {held[fault]} | {said[fault].most_common(1)[0][0]} |"
        )


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
    """Says for the table what a person saw, how many cases a test held, and of which fault: by default its name."""
    record_property("fault", request.node.originalname.removeprefix("test_").replace("_", " "))

    def counted(said: str = "", cases: int = 1, fault: str = "") -> None:
        for name, value in {"said": said, "cases": cases, **({"fault": fault} if fault else {})}.items():
            record_property(name, value)

    return counted
