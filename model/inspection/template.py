"""HTML files that hold all they need: a template, the style that all share, and data that is never taken for markup."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

PART = re.compile(r"^/\* (\S+\.(?:css|js)) \*/$", re.MULTILINE)  # stands for the text of that file


def fill(template: str, title: str, elements: Iterable[str]) -> str:
    """The document: `template` (a file beside this one) with its parts in their places, a title, and data elements."""
    head, tail = _halves(template)
    return head.replace("<title></title>", f"<title>{html.escape(title)}</title>", 1) + "\n".join(elements) + tail


def size(template: str) -> int:
    """Bytes of the document without title and data."""
    return len("".join(_halves(template)).encode())


def json_element(name: str, value: object) -> str:
    """`value` as an element that the browser keeps without reading it, for JSON.parse($(name).textContent)."""
    # Once no "<" is left, nothing in a text can end the element or open a comment.
    content = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{content}</script>'


def text_element(name: str, text: str) -> str:
    """Text without "<", such as base64, as an element of an unknown type: megabytes of it open at once."""
    if "<" in text:
        raise ValueError(f"the text of {name} holds a <, which could end its element: use json_element")
    return f'<script type="text/plain" id="{name}">{text}</script>'


@cache
def _halves(template: str) -> tuple[str, str]:
    """What comes before the data, and after."""
    folder = Path(__file__).parent
    text = (folder / template).read_text(encoding="utf-8")
    text = PART.sub(lambda part: (folder / part[1]).read_text(encoding="utf-8"), text)
    head, _, tail = text.partition("<!-- data -->")
    return head, tail
