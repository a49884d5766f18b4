"""Builds a self-contained HTML file from page.html, style sheets, JavaScript modules and data.

The program browser/page.js and every module that it imports become data: URLs in an import map. So the modules are
ordinary ES modules, and the document is still a single file.

In page.html, /* other.css */ stands for a style sheet. The browser never parses the data as markup.
"""

import base64
import html
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
MODULE = re.compile(r'"(browser/\S+)"')
STYLES = re.compile(r"/\* (\S+\.css) \*/")

# An older page of the same run loads this one into a frame (see watching.js), where it only says when it was written.
TELLS_WHEN = """<script>
if (parent !== window && location.search.startsWith("?look=")) {
  parent.postMessage({ written: %s }, "*");
  window.stop();
}
</script>"""

# From white to dark blue. The lightness falls steadily, so that people without colour vision can read it.
COLOURS = (
    "#ffffff",
    "#cfe8e3",
    "#7cc3cb",
    "#3a8dba",
    "#275c9c",
    "#1d2f6f",
    "#0d1238",
)
# Colours for weights from 0 to 1 and for differences from -1 to 1, whose 0 has the colour of the page's background.
PALETTES = {
    "light": {
        "weights": COLOURS,
        "differences": ("#8a3600", "#dd8333", "#fbe1c5", "#ffffff", "#cbdff3", "#4a8bc2", "#0f3a70"),
    },
    "dark": {
        "weights": ("#14181e", "#173150", "#1f5f8b", "#3097ab", "#6cc7a4", "#c3e69a", "#fffbd0"),
        "differences": ("#ffb678", "#c8641e", "#57300f", "#14181e", "#15395c", "#3d83c0", "#a9d6ff"),
    },
}


def fill(data: Mapping[str, Any], elements: Iterable[str]) -> str:
    """Returns the document with its data, whose "title" becomes the document's title, and with further elements."""
    written = TELLS_WHEN % json.dumps(data["status"]["written"]) if data["status"] else ""
    parts = {
        "<!-- written -->": written,
        "<title></title>": f"<title>{html.escape(data['title'])}</title>",
        "<!-- data -->": "\n".join([json_element("data", data), *elements]),
    }
    document = _document()
    for mark, text in parts.items():
        document = document.replace(mark, text, 1)
    return document


def to_json(value: object) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def json_element(name: str, value: object) -> str:
    """An element that holds `value` as JSON. "<" is escaped, so no text can end the element or open a comment."""
    return text_element(name, to_json(value).replace("<", "\\u003c"))


def text_element(name: str, text: str) -> str:
    """An element whose text the browser does not parse: megabytes of it cost no time."""
    return f'<script type="text/plain" id="{name}">{text}</script>'


@cache
def _document() -> str:
    """The document without title and data."""
    document = STYLES.sub(lambda found: _read(found[1]), _read("page.html"))
    return document.replace("<!-- program -->", _program("browser/page.js"))


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _program(entry: str) -> str:
    """The import map of `entry` and of all modules that it imports or resolves, and the script that starts it."""
    urls, wanted = {}, [entry]
    while wanted:
        name = wanted.pop()
        if name not in urls:
            source = _read(name)
            urls[name] = "data:text/javascript;base64," + base64.b64encode(source.encode()).decode()
            wanted += MODULE.findall(source)
    import_map = json.dumps({"imports": urls})
    start = f'<script type="module" blocking="render">import "{entry}";</script>'
    return f'<script type="importmap">{import_map}</script>\n{start}'
