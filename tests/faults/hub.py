"""A hub on this machine that is well, slow, busy, broken or absent; it serves a real data set in the Hub's layout."""

import hashlib
import http.server
import json
import os
import signal
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import pyarrow
import pyarrow.parquet

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NOBODY = "http://127.0.0.1:9"
SPLITS = {"train": ["ast.py", "bisect.py", "heapq.py", "textwrap.py"], "validation": ["shlex.py", "stat.py"]}
FILES = [{"split": split, "path": f"data/{split}-*"} for split in SPLITS]
CARD = f"---\nconfigs: {json.dumps([{'config_name': 'default', 'data_files': FILES}])}\n---\n# Some modules of Python\n"
REFUSALS = {"missing": (404, "RepoNotFound"), "gated": (403, "GatedRepo"), "busy": (503, "")}


def texts(split: str) -> list[str]:
    return [Path(sysconfig.get_paths()["stdlib"], name).read_text(encoding="utf-8") for name in SPLITS[split]]


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as huggingface.co does for the data set OWNER/modules; what goes wrong is the owner's name.

    fine; slow: answers after a second; busy: always 503; busy_at_first: 503 to the first request; missing: 404;
    gated: 403; cut: parquet files end in the middle; dropped: connections are closed without an answer.
    """

    protocol_version = "HTTP/1.1"
    files: dict[str, bytes]
    refused: ClassVar[list[str]] = []  # requests of busy_at_first

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        kind, owner, name, *rest = [*path.removeprefix("/api").strip("/").split("/"), "", ""]
        rest = [part for part in rest if part]
        if (kind, name) != ("datasets", "modules"):
            return self.answer(404, {"error": "not found"})
        if owner == "slow":
            time.sleep(1)
        if owner == "dropped":
            self.close_connection = True
            return None
        if owner == "busy_at_first" and not self.refused:
            self.refused.append(path)
            owner = "busy"
        if owner in REFUSALS:
            status, code = REFUSALS[owner]
            return self.answer(status, {"error": code}, {"X-Error-Code": code} if code else {})
        if rest[:1] == ["resolve"]:
            return self.send_file("/".join(rest[2:]), cuts=owner == "cut")
        if rest[:1] == ["tree"]:
            return self.answer(200, [one for one in self.tree() if one["path"].startswith("/".join(rest[2:]))])
        siblings = [{"rfilename": name} for name in self.files]
        about = {"id": "x/modules", "sha": COMMIT, "private": False, "gated": False, "tags": [], "siblings": siblings}
        return self.answer(200, about)

    do_HEAD = do_POST = do_GET

    def tree(self) -> Iterator[dict]:
        yield {"type": "directory", "oid": "0" * 40, "size": 0, "path": "data"}
        for name, content in self.files.items():
            yield {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "size": len(content), "path": name}

    def send_file(self, name: str, cuts: bool) -> None:
        if name not in self.files:
            return self.answer(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
        content = self.files[name]
        start, stop, status = 0, len(content), 200
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if asked := self.headers.get("Range"):
            first, last = asked.removeprefix("bytes=").split("-")
            start, stop, status = int(first), min(int(last or stop) + 1, stop), 206
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        return self.answer(status, content[start:stop], headers, cuts and name.endswith(".parquet"))

    def answer(self, status: int, content: object, headers: dict | None = None, cuts: bool = False) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cuts else body)
            self.close_connection = cuts

    def log_message(self, *_) -> None:
        """Says nothing."""


@contextmanager
def hub() -> Iterator[str]:
    """The address of a hub, which is a process of its own."""
    Hub.files = {"README.md": CARD.encode()}
    for split, names in SPLITS.items():
        stream = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.table({"name": names, "text": texts(split)}), stream, row_group_size=1)
        Hub.files[f"data/{split}-00000-of-00001.parquet"] = stream.getvalue().to_pybytes()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads = True
    process = os.fork()
    if process == 0:
        server.serve_forever()
    server.server_close()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def use(address: str) -> None:
    """Makes this process take the hub at the address, and try again without waiting in between."""
    os.environ |= {"HF_ENDPOINT": address, "HF_HOME": str(Path("hub").absolute()), "HF_HUB_DISABLE_XET": "1"}
    os.environ |= {"HF_HUB_ETAG_TIMEOUT": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "1"}
    time.sleep = lambda seconds: None
