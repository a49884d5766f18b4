"""A real browser, offline. A test fails if a page logs a message, raises an error, or requests a file."""

import os
import shutil

import pytest

from model.pages.page import attention_page
from tests.model.pages.browsing import settle

CHROMIUM = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome", "chrome"])), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
TIMEOUT = float(os.environ.get("PAGE_TIMEOUT", "30")) * 1000  # milliseconds


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed to open the page in")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_file(browser, tmp_path):
    """Opens a file, or the text of an HTML file, in a new window."""
    contexts, trouble = [], []

    def open_(document, hash_="", width=1280, height=900, theme="light", touch=False):
        path = document
        if isinstance(document, str):
            path = tmp_path / "page.html"
            path.write_text(document, encoding="utf-8")
        size = {"width": width, "height": height}
        device = {"has_touch": touch, "is_mobile": touch, "color_scheme": theme}
        context = browser.new_context(viewport=size, offline=True, accept_downloads=True, **device)
        context.set_default_timeout(TIMEOUT)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        allowed = (path.as_uri(), "blob:", "about:srcdoc")
        page.on("request", lambda request: request.url.startswith(allowed) or trouble.append(request.url))
        page.goto(path.as_uri() + hash_)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not trouble


@pytest.fixture
def open_page(open_file):
    """Opens a page of captures."""

    def open_(*runs, **window):
        page = open_file(attention_page(runs, "A title & <more>"), **window)
        settle(page)
        return page

    return open_
