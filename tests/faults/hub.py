"""A hub on this machine that is well, slow, busy, broken or absent; it serves a real data set in the Hub's layout."""

import hashlib
import http.server
import io
import json
import os
import re
import sysconfig
import time
from pathlib import Path
from typing import ClassVar

import huggingface_hub
import pyarrow
import pyarrow.parquet

NOBODY = "http://127.0.0.1:9"
SPLITS = {"train": ["ast.py", "bisect.py", "heapq.py", "textwrap.py"], "validation": ["shlex.py", "stat.py"]}
STDLIB = Path(sysconfig.get_paths()["stdlib"])
TEXTS = {split: [(STDLIB / name).read_text(encoding="utf-8") for name in names] for split, names in SPLITS.items()}
REVISION = "0123456789" * 4
REFUSALS = {"missing": (404, "RepoNotFound"), "gated": (403, "GatedRepo")}
REFUSALS |= dict.fromkeys(["busy", "busy_at_first"], (503, ""))


def pages() -> dict[str, bytes]:
    """What a hub answers for the data set, by the address after its name."""
    files = {"README.md": b"# Some modules of Python\n"}
    for split, names in SPLITS.items():
        file = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table({"name": names, "text": TEXTS[split]}), file, row_group_size=1)
        files[f"{split}.parquet"] = file.getvalue()
    tree = [{"type": "file", "path": name, "size": len(files[name]), "oid": digest(files[name])} for name in files]
    found = {f"resolve/{revision}/{name}": files[name] for revision in ("main", REVISION) for name in files}
    found[f"revision/{REVISION}"] = json.dumps({"id": "x/modules", "sha": REVISION}).encode()
    return found | {f"tree/{REVISION}": json.dumps(tree).encode()}


def digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as huggingface.co does for the data set OWNER/modules; what goes wrong is the owner's name.

    fine; slow: files come after a second; busy_at_first: refuses the first request; cut: parquet files end in the
    middle; dropped: connections are closed without an answer; those of REFUSALS.
    """

    pages: ClassVar[dict[str, bytes]] = pages()
    refused: ClassVar[set[str]] = set()

    def do_GET(self) -> None:
        owner, page = re.fullmatch(r"(?:.*/datasets/(\w+)/modules/)?([^?]*).*", self.path).groups()
        content = self.pages.get(page, b"")
        status, error = (200, "") if content else (404, "EntryNotFound")
        if owner in REFUSALS and not (owner == "busy_at_first" and owner in self.refused):
            self.refused.add(owner)
            status, error = REFUSALS[owner]
        if owner == "dropped":
            return
        time.sleep(owner == "slow" and page.startswith("resolve"))
        self.send_response(status)
        headers = {"Content-Length": len(content), "ETag": f'"{digest(content)}"', "X-Repo-Commit": REVISION}
        for name, value in (headers | {"X-Error-Code": error}).items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[: len(content) // 2] if owner == "cut" and ".parquet" in page else content)

    do_HEAD = do_GET

    def log_message(self, *_) -> None:
        """Says nothing."""


def use(address: str) -> None:
    """Makes this process take the hub at the address, with an empty cache, and try again without waiting in between."""
    cache = Path("hub").absolute()
    os.environ |= {"HF_ENDPOINT": address, "HF_HOME": str(cache)}
    huggingface_hub.constants.HF_HUB_CACHE = str(cache)  # it has read its environment already
    time.sleep = lambda seconds: None
