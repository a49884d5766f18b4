"""A hub on this machine that is well, slow, busy, broken or absent; it serves a real data set in the Hub's layout."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import signal
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import pyarrow
import pyarrow.parquet

from data.datamodule import TextDataModule
from tests.faults.runs import Lab, check_mistake, run

Case = Callable[[Lab], str]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SPLITS = {"train": ["ast.py", "bisect.py", "heapq.py", "textwrap.py"], "validation": ["shlex.py", "stat.py"]}
CARD = """\
---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: validation
    path: data/validation-*
---
# Some modules of Python's standard library
"""


def texts(split: str) -> list[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    return [(library / name).read_text(encoding="utf-8") for name in SPLITS[split]]


def data_set(folder: Path) -> dict[str, bytes]:
    """The files of the data set by their paths: a card, and one parquet file a split."""
    files = {"README.md": CARD.encode()}
    for split, names in SPLITS.items():
        path = folder / f"{split}.parquet"
        table = pyarrow.table({"name": names, "text": texts(split)})
        pyarrow.parquet.write_table(table, path, row_group_size=1)
        files[f"data/{split}-00000-of-00001.parquet"] = path.read_bytes()
    return files


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as huggingface.co does for the data set OWNER/modules; what goes wrong is the owner's name.

    fine; slow: answers after a second; busy: always 503; busy_at_first: 503 to the first request;
    missing: 404; gated: 403; cut: parquet files end in the middle; dropped: connections are closed without an answer.
    """

    protocol_version = "HTTP/1.1"
    files: dict[str, bytes]
    asked: ClassVar[list[str]] = []  # what was answered with 503

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        parts = path.removeprefix("/api").strip("/").split("/")
        if parts[0] != "datasets" or len(parts) < 3 or parts[2] != "modules":
            return self.answer(404, {"error": "not found"})
        owner, rest = parts[1], parts[3:]
        if owner == "slow":
            time.sleep(1)
        if owner == "dropped":
            self.close_connection = True
            return None
        if owner == "busy" or (owner == "busy_at_first" and not self.asked):
            self.asked.append(path)
            return self.answer(503, {"error": "overloaded"})
        if owner == "missing":
            return self.answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        if owner == "gated":
            return self.answer(403, {"error": "Access is restricted"}, {"X-Error-Code": "GatedRepo"})
        return self.answer_for(rest, path.startswith("/api"), cuts=owner == "cut")

    do_HEAD = do_POST = do_GET

    def answer_for(self, rest: list[str], is_api: bool, cuts: bool) -> None:
        if not is_api and rest[:1] == ["resolve"]:
            return self.send_file("/".join(rest[2:]), cuts)
        if rest[:1] == ["paths-info"]:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["paths"]
            return self.answer(200, [one for one in self.tree() if one["path"] in asked])
        if rest[:1] == ["tree"]:
            folder = "/".join(rest[2:])
            return self.answer(200, [one for one in self.tree() if one["path"].startswith(folder)])
        siblings = [{"rfilename": name} for name in self.files]
        about = {"id": "x/modules", "sha": COMMIT, "private": False, "gated": False, "tags": [], "siblings": siblings}
        return self.answer(200, about)

    def tree(self) -> list[dict]:
        folders = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "data"}]
        return folders + [
            {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "size": len(content), "path": name}
            for name, content in self.files.items()
        ]

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
    Hub.files = data_set(Path())
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads = True
    process = os.fork()
    if process == 0:
        server.serve_forever()
    address = f"http://127.0.0.1:{server.server_port}"
    server.server_close()
    try:
        yield address
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def cases(lab: Lab) -> Iterator[tuple[str, Case]]:
    yield "a data set end to end", served
    yield (
        "a data set end to end, streamed",
        partial(served, options=("--data.streaming=true", "--data.max_tokens=30000")),
    )
    yield "slow", partial(served, owner="slow")
    yield "503, and well a moment later", partial(served, owner="busy_at_first")
    streams = ((), ("--data.streaming=true", "--data.max_tokens=30000"))
    for owner, expected in (
        ("missing", "no data set 'missing/modules' on the Hugging Face Hub"),
        ("gated", "login"),
        ("busy", "cannot reach the Hugging Face Hub"),
        ("dropped", "cannot reach the Hugging Face Hub"),
        ("unreachable", "cannot reach the Hugging Face Hub"),
        ("cut", "cannot reach the Hugging Face Hub"),
    ):
        for options in streams:
            yield f"{owner} {options}", partial(refused, owner=owner, expected=expected, options=options)


def use(address: str) -> None:
    """Makes this process take the hub at the address, and try again without waiting in between."""
    os.environ |= {"HF_ENDPOINT": address, "HF_HOME": str(Path("hub").absolute()), "HF_HUB_DISABLE_XET": "1"}
    os.environ |= {"HF_HUB_ETAG_TIMEOUT": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "1"}
    time.sleep = lambda seconds: None


def options_for(lab: Lab, owner: str, *options: str) -> list[str]:
    left_out = ("--data.corpus", "--data.files", "--data.cache_dir")
    own = [option for option in lab.options if not option.startswith(left_out)]
    return [*own, f"--data.dataset={owner}/modules", "--data.cache_dir=cache", "--name=run", *options]


def served(lab: Lab, owner: str = "fine", options: tuple[str, ...] = ()) -> str:
    """The tokens are those of the text, the run ends, and later runs need no hub."""
    with hub() as address:
        ended = run(options_for(lab, owner, *options), partial(use, address))
    assert ended.status == 0, ended.error
    limits = {"streaming": True, "max_tokens": 30_000} if options else {}
    data = TextDataModule(dataset=f"{owner}/modules", tokenizer="bytes", cache_dir="cache", context_length=16, **limits)
    tokenized = data.cache.open()
    for split, tokens in (("train", tokenized.train), ("validation", tokenized.validation)):
        ids = tokens.read(0, tokens.num_tokens)
        end = tokenized.tokenizer.end_of_text
        expected = [end, *(token for text in texts(split) for token in [*text.encode(), end])]
        assert ids.tolist() == expected[: len(ids)] and (len(ids) == len(expected) or options)
    again = run([*options_for(lab, owner, *options), "--name=again"], partial(use, "http://127.0.0.1:9"))
    assert again.status == 0, again.error
    return ""


def refused(lab: Lab, owner: str, expected: str, options: tuple[str, ...]) -> str:
    """One sentence, and nothing left of the run."""
    with hub() as address:
        if owner == "unreachable":
            address = "http://127.0.0.1:9"
        ended = run(options_for(lab, owner, *options), partial(use, address))
    said = check_mistake(ended, expected)
    assert not Path("runs").exists()
    return said
