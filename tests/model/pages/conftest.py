"""A real browser, offline. A test fails if its page logs a message, raises an error or requests a file."""

import functools
import os
import shutil
from contextlib import ExitStack

import pytest

from model.pages.page import run_page
from tests.model.pages.browsing import settle

CHROMIUM = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome", "chrome"])), None)
TITLE = "A title & <more>"
NO_TOUR = "try { localStorage.setItem('glassgpt: tour', 'closed') } catch {}"  # see test_tour_in_browser.py
TIMEOUT = float(os.environ.get("PAGE_TIMEOUT", "30")) * 1000  # milliseconds


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed to open the page in")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def windows():
    """Unused windows, without and with touch: opening a new one takes longer than most tests."""
    return {False: [], True: []}


@pytest.fixture
def open_file(browser, windows, tmp_path):
    """Opens a file, or the text of an HTML file, in a window."""
    used, trouble = ExitStack(), []

    def open_(document, hash_="", width=1280, height=900, theme="light", touch=False, script=NO_TOUR):
        """script: JavaScript that runs before the page. The browser has stored nothing of earlier pages."""
        path = document
        if isinstance(document, str):
            path = tmp_path / "page.html"
            path.write_text(document, encoding="utf-8")
        if not windows[touch]:
            context = browser.new_context(offline=True, accept_downloads=True, has_touch=touch, is_mobile=touch)
            context.set_default_timeout(TIMEOUT)
            windows[touch].append(context.new_page())
        page = windows[touch].pop()
        tools = page.context.new_cdp_session(page)  # what it sets ends with it
        tools.send("Page.enable")
        tools.send("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        tools.send("Storage.clearDataForOrigin", {"origin": "file://", "storageTypes": "local_storage"})
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=theme)
        allowed = (path.as_uri(), "blob:", "about:")
        heard = {
            "console": lambda message: trouble.append(message.text),
            "pageerror": lambda error: trouble.append(str(error)),
            "request": lambda request: request.url.startswith(allowed) or trouble.append(request.url),
        }
        for event, hear in heard.items():
            page.on(event, hear)
            used.callback(page.remove_listener, event, hear)
        used.callback(windows[touch].append, page)
        used.callback(tools.detach)
        used.callback(page.goto, "about:blank")  # done first: it stops the page's scripts
        page.goto(path.as_uri() + hash_)
        return page

    with used:
        yield open_
    assert not trouble


@functools.cache
def page_of(recording):
    return run_page(TITLE, recording)


@pytest.fixture
def open_page(open_file):
    """Opens the page of a recording, or the text of a page, and waits until it is drawn."""

    def open_(shown, **window):
        page = open_file(shown if isinstance(shown, str) else page_of(shown), **window)
        settle(page)
        return page

    return open_
