"""Takes the README's picture of a page, that of the newest run. `make pictures` runs this file with the path."""

import sys

from playwright.sync_api import sync_playwright

from model.runs.run import HEAD_SCORES, REPORT, Run
from tests.model.pages.browsing import settle
from tests.model.pages.conftest import CHROMIUM, NO_TOUR

with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=CHROMIUM)
    page = browser.new_page(viewport={"width": 1366, "height": 768}, color_scheme="light")
    page.add_init_script(NO_TOUR)
    report = Run.open(None, HEAD_SCORES).folder / REPORT
    page.goto(report.resolve().as_uri())
    settle(page)
    page.screenshot(path=sys.argv[1])
