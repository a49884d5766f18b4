"""Reads the content of a page with an HTML parser."""

import base64
import gzip
import json
from functools import cached_property
from html.parser import HTMLParser

import numpy as np

# Token texts that could become markup or a formula, or that are invisible.
HOSTILE = [
    "</script>", "<img src=x onerror=\"document.title='broken'\">", "<script>document.title='broken'</script>", "<!--",
    "\u202eright-to-left", "שלום", "👩‍👩‍👧", "\x00", "\ud800", "x" * 10_000, "\n", "", "&lt;", "${1}", "'\"`", "\u2028",
    "$\\frac{1$", "\\", "\t", " ", "😀", "e\u0301", "�",
]  # fmt: skip


class Page(HTMLParser):
    """A page's script elements, by id or type, and in `suspicious` the elements that load a file or handle an event."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.suspicious, self._inside = {}, [], None
        self.feed(text if isinstance(text, str) else text.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        names = dict(attrs)
        if tag == "script":
            self._inside = names.get("id") or names.get("type", "program")
            assert self._inside not in self.scripts
            self.scripts[self._inside] = ""
        if {"src", "href"} & names.keys() or any(name.startswith("on") for name in names):
            self.suspicious.append((tag, attrs))

    def handle_data(self, data):
        if self._inside:
            self.scripts[self._inside] += data

    def handle_endtag(self, tag):
        self._inside = None if tag == "script" else self._inside

    def json(self, name):
        return json.loads(self.scripts[name])

    @cached_property
    def data(self):
        return self.json("data")

    @property
    def modules(self):
        """The source of each JavaScript module."""
        urls = self.json("importmap")["imports"]
        return {name: base64.b64decode(url.partition("base64,")[2]).decode() for name, url in urls.items()}

    def block(self, kind, step):
        return gzip.decompress(base64.b64decode(self.scripts[f"block-{kind}-{step}"]))

    def maps(self, snapshot=-1, probe=0):
        """The recorded maps of a snapshot, (L, H, T, T)."""
        about = self.data["run"]
        name, labels = (about["probes"][probe][field] for field in ("name", "labels"))
        size = len(labels)
        packed = np.frombuffer(self.block(name, about["snapshots"][snapshot]["step"]), np.uint8)
        maps = np.zeros((about["layers"], about["heads"], size, size))
        queries, keys = np.tril_indices(size)
        maps[:, :, queries, keys] = (packed.reshape(*maps.shape[:2], -1) / 255) ** 2
        return maps
