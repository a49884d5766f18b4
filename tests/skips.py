"""Where GLASSGPT_MAY_SKIP is set, a test that is skipped fails, unless that pattern is found in the reason.

For continuous integration, which installs what the tests need: a browser that could not be installed is an error there.
"""

import os
import re

import pytest


def judged(report: pytest.TestReport | pytest.CollectReport) -> pytest.TestReport | pytest.CollectReport:
    allowed = os.environ.get("GLASSGPT_MAY_SKIP")
    if allowed is not None and report.skipped and not re.search(allowed, reason := report.longrepr[2]):
        report.outcome = "failed"
        report.longrepr = f"{reason}: GLASSGPT_MAY_SKIP={allowed} does not allow it"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return judged((yield))
