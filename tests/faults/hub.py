"""A local server that serves a small data set as the Hugging Face Hub does, or refuses it."""

import http.server
import io
import json
import re

import pyarrow
import pyarrow.parquet

TEXTS = {"train": [f"This is text {number}. " * 300 for number in range(8)], "validation": ["A mouse.", "Two mice."]}
FILES = {"README.md": b"# Some texts\n"}
NO_TEXTS = []
for split, texts in TEXTS.items():
    for number, rows in enumerate([NO_TEXTS, texts, NO_TEXTS]):  # some files of real data sets have no rows
        table = pyarrow.table({"text": pyarrow.array(rows, pyarrow.string())})
        with io.BytesIO() as file:
            pyarrow.parquet.write_table(table, file, row_group_size=1, write_statistics=False)
            FILES[f"{split}-{number:05d}-of-00003.parquet"] = file.getvalue()
REVISION = "0123456789" * 4
TREE = [{"type": "file", "path": name, "size": len(content), "oid": name} for name, content in FILES.items()]
ABOUT = {"id": "owner/texts", "sha": REVISION}
PAGES = {"resolve": FILES, "tree": {"": json.dumps(TREE).encode()}, "revision": {"": json.dumps(ABOUT).encode()}}
REFUSALS = {"missing": (404, "RepoNotFound"), "gated": (403, "GatedRepo")}


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves the data set OWNER/texts; the owner's name says what goes wrong.

    fine: nothing; cut: parquet files end in the middle; or a name in REFUSALS.
    """

    def do_GET(self):
        owner, kind, name = re.fullmatch(r".*/datasets/(\w+)/texts/(\w+)/\w+/?([^?]*).*", self.path).groups()
        content = PAGES[kind].get(name, b"")
        status, error = REFUSALS.get(owner) or ((200, "") if content else (404, "EntryNotFound"))
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{name}"')
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("X-Error-Code", error)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[: len(content) // 2] if owner == "cut" and ".parquet" in name else content)

    do_HEAD = do_GET

    def log_message(self, *_):
        """Logs nothing."""
