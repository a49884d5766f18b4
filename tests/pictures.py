"""Takes the README's picture of a page, that of the newest run: `make pictures`. Usage: tests/pictures.py page.png"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python tests/...` finds model/

from playwright.sync_api import sync_playwright

from model.runs.run import HEAD_SCORES, REPORT, Run
from tests.model.pages.browsing import settle
from tests.model.pages.conftest import CHROMIUM, NO_TOUR


def main(path: str) -> None:
    report = Run.open(None, HEAD_SCORES).folder / REPORT
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page(viewport={"width": 1366, "height": 768}, color_scheme="light")
        page.add_init_script(NO_TOUR)
        page.goto(report.resolve().as_uri())
        settle(page)
        page.screenshot(path=path)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
