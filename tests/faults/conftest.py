"""The fault matrix's option, the runs that its cases are compared with, and the table of how many held."""

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
    """With --short keeps so many of a test's cases as it is marked with, always the same."""
    tests = defaultdict(list)
    for item in items:
        tests[item.originalname].append(item)
    for name, cases in tests.items():
        for marker in cases[0].iter_markers("short") if config.getoption("--short") else ():
            tests[name] = random.Random(name).sample(cases, marker.args[0])
    items[:] = [item for cases in tests.values() for item in cases]


def pytest_terminal_summary(terminalreporter):
    held = defaultdict(Counter)
    for kind in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(kind, []):
            file, _, test = report.nodeid.partition("::test_")
            if file.endswith("faults/matrix.py"):
                fault = test.partition("[")[0].replace("_", " ")
                held[fault][kind == "passed"] += dict(report.user_properties).get("cases", 1)
    if not held:  # of other tests, which find this file on their way
        return
    terminalreporter.write_line("\n| fault | cases | held |\n|---|---|---|")
    for fault, cases in sorted(held.items()):
        terminalreporter.write_line(f"| {fault} | {cases.total()} | {cases[True]} |")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """A run that takes a second: its options, its folder, which holds its text and cache too, and what it leaves."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "words.txt").write_text(small_text())
    options = [*small_options(folder / "words.txt", folder / "cache"), "--name=run"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_well(options)
        run_well([*options, *DISTURBED, "--name=eventful"])
    return SimpleNamespace(folder=folder, options=options, run=folder / "runs/run", eventful=folder / "runs/eventful")
