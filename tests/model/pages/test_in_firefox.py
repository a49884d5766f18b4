"""The page in Firefox, if it is installed, driven by Firefox's own protocol."""

import json
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from model.files import write_atomically
from model.pages.page import run_page
from tests.model.pages.model_pages import GPTS, LETTERS, OPENING, page_of
from tests.model.pages.test_page_in_browser import HISTORY
from tests.model.pages.test_tour_in_browser import GPT_
from tests.model.pages.test_typing_in_browser import assert_next, logits_of

pytestmark = pytest.mark.slow

FIREFOX = next(filter(None, map(shutil.which, ["firefox", "firefox-esr"])), None)
PATIENCE = 120  # seconds for Firefox to start or to answer
HEIGHT = 768 + 85  # of a window, with its bars; Firefox 140.12 ignores a width without a height
OPTIONS = {"marionette.port": 0, "browser.shell.checkDefaultBrowser": False, "app.update.enabled": False}


class Firefox:
    """Commands of Marionette: https://firefox-source-docs.mozilla.org/testing/marionette/Protocol.html."""

    def __init__(self, port: int):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.stream, self.numbers = self.socket.makefile("rb"), count()
        self._message()  # the first message is its name
        self("WebDriver:NewSession", capabilities={"alwaysMatch": {"timeouts": {"script": 1000 * PATIENCE}}})

    def __call__(self, command: str, **parameters: object) -> object:
        message = json.dumps([0, next(self.numbers), command, parameters]).encode()
        self.socket.sendall(b"%d:%s" % (len(message), message))
        _, _, error, result = self._message()
        assert error is None, error
        return result

    def _message(self) -> list:
        length = iter(lambda: self.stream.read(1), b":")
        return json.loads(self.stream.read(int(b"".join(length))))

    def evaluate(self, expression: str) -> object:
        """The value of a JavaScript expression; a promise is awaited."""
        script = f"const done = arguments[0]; Promise.resolve({expression}).then(done, (error) => done(String(error)))"
        return self("WebDriver:ExecuteAsyncScript", script=script, args=[])["value"]


@pytest.fixture(scope="module")
def firefox(tmp_path_factory):
    if FIREFOX is None:
        pytest.skip("Firefox is not installed")
    profile = tmp_path_factory.mktemp("profile")
    lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in OPTIONS.items())
    (profile / "user.js").write_text("".join(lines))
    command = [FIREFOX, "--headless", "--marionette", "--no-remote", "--profile", str(profile)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = profile / "MarionetteActivePort"
        end = time.monotonic() + PATIENCE
        while not (port.exists() and port.read_text()):
            assert process.poll() is None and time.monotonic() < end, "Firefox does not start"
            time.sleep(0.1)
        yield Firefox(int(port.read_text()))
    finally:
        process.kill()
        process.wait()


def opened(firefox: Firefox, path: Path, text: str):
    """Writes a page and opens it."""
    path.write_text(text, encoding="utf-8")
    firefox("WebDriver:Navigate", url=path.as_uri())
    wait(firefox, "document.documentElement.dataset.drawn !== undefined")


def text_of(identifier: str) -> str:
    return f"document.getElementById('{identifier}').textContent"


def type_text(firefox: Firefox, text: str):
    box = "const box = document.getElementById('box'); box.value = %s; box.dispatchEvent(new Event('input'))"
    firefox.evaluate(f"(() => {{ {box % json.dumps(text)} }})()")


def wait(firefox: Firefox, condition: str):
    """Waits until a JavaScript expression is true. Asks again after errors: the page may be reloading."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with suppress(AssertionError):
            if firefox.evaluate(condition) is True:
                return
        time.sleep(0.05)
    raise TimeoutError(condition)


def test_the_page_of_a_running_run_reloads_and_keeps_the_chosen_head(firefox, tmp_path):
    """As in Chromium, see test_page_in_browser.py."""
    path = tmp_path / "report.html"
    opened(firefox, path, run_page("a run", HISTORY, state="running"))
    firefox.evaluate("document.querySelectorAll('.thumb')[3].click()")
    wait(firefox, "location.hash.includes('head=1.0')")
    write_atomically(path, run_page("a run", HISTORY, state="ended").encode())
    wait(firefox, f"document.readyState === 'complete' && {text_of('status')}.includes('ended')")
    assert "head=1.0" in firefox.evaluate("location.hash")


def test_firefox_computes_what_pytorch_computes_and_the_layout_fits(firefox, tmp_path):
    firefox("WebDriver:SetWindowRect", width=1366, height=HEIGHT)
    opened(firefox, tmp_path / "report.html", page_of(*GPTS))
    wait(firefox, f"{text_of('parity')} !== ''")
    type_text(firefox, "def f(x")
    wait(firefox, f"{text_of('cost')}.startsWith('7 tokens')")
    assert firefox.evaluate(text_of("notes")) == ""
    assert firefox.evaluate("document.getElementById('parity').className") == "badge good"
    assert_next(firefox, logits_of(GPTS[-1], "def f(x"))
    bottoms = "[...document.querySelectorAll('#next button, #coming')].map((e) => e.getBoundingClientRect().bottom)"
    panel, *rows = firefox.evaluate(bottoms)
    assert max(rows) <= panel
    firefox.evaluate("document.getElementById('undo').click()")
    wait(firefox, f"document.getElementById('box').value === {json.dumps(OPENING)}")
    firefox("WebDriver:SetWindowRect", width=400, height=HEIGHT)  # Firefox may stay wider than this
    wait(firefox, "innerWidth < 600")
    assert firefox.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_link_opens_its_view_without_the_tour_and_typing_ends_the_tour(firefox, tmp_path):
    """As in Chromium, see test_tour_in_browser.py. This Firefox has no page in its storage yet."""
    # In a narrow window the tour begins from its button only.
    firefox("WebDriver:SetWindowRect", width=1366, height=HEIGHT)
    value, path = "document.getElementById('box').value", tmp_path / "report.html"
    path.write_text(page_of(GPT_, texts=LETTERS, has_film=True), encoding="utf-8")
    link = "#typed=abcabc&off=head+0.1"
    firefox("WebDriver:Navigate", url=path.as_uri() + link)
    wait(firefox, f"{text_of('parity')} !== ''")
    shown = firefox.evaluate(f"[{value}, location.hash, document.getElementById('tour').hidden]")
    assert shown == ["abcabc", link, True]
    fresh = tmp_path / "fresh.html"
    fresh.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    firefox("WebDriver:Navigate", url=fresh.as_uri())
    wait(firefox, f"{text_of('tour-place')} === '1 of 5'")
    type_text(firefox, "mine")
    wait(firefox, f"{value} === 'mine' && document.getElementById('tour').hidden")
    wait(firefox, "location.hash.includes('typed=mine')")
