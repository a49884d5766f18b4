"""Self-contained HTML files: a template, a style sheet, JavaScript modules, and data that is never taken for markup.

The document NAME is NAME.html with the program browser/NAME.js. The program and every module that it imports become
data: URLs in an import map, so that the modules are ordinary ES modules and the document is still a single file.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
IMPORT = re.compile(r'^import (?:.* from )?"(\S+)";$', re.MULTILINE)


def fill(name: str, title: str, elements: Iterable[str]) -> str:
    """The document `name` with a title and data elements."""
    document = _document(name).replace("<title></title>", f"<title>{html.escape(title)}</title>", 1)
    return document.replace("<!-- data -->", "\n".join(elements), 1)


def json_element(name: str, value: object) -> str:
    """`value` as JSON in an element that the browser does not parse, even if it holds megabytes."""
    # Without any "<", no text can end the element or open a comment.
    content = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{content}</script>'


@cache
def _document(name: str) -> str:
    """The document without title and data."""
    document = (FOLDER / f"{name}.html").read_text(encoding="utf-8")
    document = document.replace("/* theme.css */", (FOLDER / "theme.css").read_text(encoding="utf-8"))
    return document.replace("<!-- program -->", _program(f"browser/{name}.js"))


def _program(entry: str) -> str:
    """An import map of `entry` and of all that it imports, and the script that starts it."""
    urls, wanted = {}, [entry]
    while wanted:
        name = wanted.pop()
        if name not in urls:
            source = (FOLDER / name).read_text(encoding="utf-8")
            urls[name] = "data:text/javascript;base64," + base64.b64encode(source.encode()).decode()
            wanted += IMPORT.findall(source)
    import_map = json.dumps({"imports": urls})
    return f'<script type="importmap">{import_map}</script>\n<script type="module">import "{entry}";</script>'
