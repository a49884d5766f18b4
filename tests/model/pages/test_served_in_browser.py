"""A page that is served, as .github/workflows/page.yml publishes it: it works, and asks for nothing but itself."""

import functools
import http.server
import threading

import pytest

from tests.model.pages.browsing import settle, wait_for
from tests.model.pages.conftest import NO_TOUR
from tests.model.pages.model_pages import LETTERS, page_of
from tests.model.pages.test_tour_in_browser import GPT_, UNTRAINED

pytestmark = pytest.mark.slow


def test_a_served_page_runs_its_model_and_asks_for_nothing_else(browser, tmp_path):
    (tmp_path / "index.html").write_text(page_of(UNTRAINED, GPT_, GPT_, texts=LETTERS, has_film=True), encoding="utf-8")
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            asked.append(self.path)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=tmp_path))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_page()
    try:
        page.add_init_script(NO_TOUR)
        requests = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        settle(page)
        page.fill("#box", "qwertyqwe")
        wait_for(page, "#coming-title", "e")
        assert page.inner_text("#next li >> nth=0").split()[-1] == "r"
    finally:
        page.close()
        server.shutdown()
    assert {*asked} <= {"/", "/favicon.ico"}  # Chromium may ask for an icon by itself
    assert all(url.startswith(("data:", "blob:", f"http://127.0.0.1:{server.server_port}/")) for url in requests)
