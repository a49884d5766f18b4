"""The fault matrix's option, and the table of how many of its cases held."""

import random
import re
from collections import Counter, defaultdict

SHORT = {"killed_at_random_moments": 6, "stopped_in_a_batch": 18, "clock_that_jumps": 6, "two_runs_with_one_name": 6}


def pytest_addoption(parser):
    parser.addoption("--short", action="store_true", help="some cases of each fault, in at most four minutes")


def pytest_collection_modifyitems(config, items):
    """With --short keeps so many cases of these tests, always the same, and all of the others."""
    for test, number in SHORT.items() if config.getoption("--short") else ():
        cases = [item for item in items if item.originalname == f"test_{test}"]
        left_out = random.Random(test).sample(cases, max(0, len(cases) - number))
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter):
    counted = defaultdict(Counter)
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            if test := re.search(r"faults/matrix\.py::test_(\w+)", report.nodeid):  # others find this file too
                counted[test[1].replace("_", " ")][outcome] += dict(report.user_properties).get("cases", 1)
    rows = [f"| {fault} | {cases.total()} | {cases['passed']} |\n" for fault, cases in sorted(counted.items())]
    terminalreporter.write("".join(["\n| fault | cases | held |\n|---|---|---|\n", *rows]) if rows else "")
