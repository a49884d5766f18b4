"""The table of how many cases of the fault matrix held."""

import re
from collections import Counter, defaultdict


def pytest_terminal_summary(terminalreporter):
    counted = defaultdict(Counter)
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            if test := re.search(r"faults/matrix\.py::test_(\w+)", report.nodeid):  # others find this file too
                counted[test[1].replace("_", " ")][outcome] += dict(report.user_properties).get("cases", 1)
    rows = [f"| {fault} | {cases.total()} | {cases['passed']} |\n" for fault, cases in sorted(counted.items())]
    terminalreporter.write("".join(["\n| fault | cases | held |\n|---|---|---|\n", *rows]) if rows else "")
