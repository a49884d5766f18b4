"""The code of a run: what it was, and what has changed since. code.json has an entry for each start and each resume.

An entry holds, besides what `entry_of` says, what it needs to tell two runs apart: for each file the lines added and
removed since the commit ("changed"), and a hash of its code without comments and docstrings ("hashes").

Entries may come from a stranger: they are shown as text, never applied.
"""

import ast
import difflib
import hashlib
import json
import logging
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from model.files import content_of, write_atomically
from model.gpt import GPT
from model.mistakes import Mistake, parsing
from model.proof import difference
from model.runs.run import CODE, Run

log = logging.getLogger(__name__)
RELEASE = "0.1.0"  # of the package too, see pyproject.toml
ROOT = Path(__file__).parents[2]
# With train.py, the folders whose files a training computes with. What only records, measures or shows is left out.
FOLDERS = ("model", "model/training", "data", "data/corpora")
PACKAGES = ("torch", "lightning", "numpy", "datasets", "tiktoken", "rustbpe")
LONGEST_DIFFERENCE = 200_000  # characters
LONGEST_FILE = 10_000_000  # bytes of a code.json
GIT_SECONDS = 10
FILE_NAME, HASH = re.compile(r"[\w./-]{1,200}"), re.compile(r"[0-9a-f]{16,64}")
# Parts of a command line that are not told: the folders of absolute paths, and what looks like a password.
FOLDER = re.compile(r"(?<![\w.:/])(?:~|[A-Za-z]:)?[/\\](?:[^/\\\s,'\"]*[/\\])*")
SECRET = re.compile(r"(\S*(?:key|secret|password)[ =])\S+")

Sources = dict[str, str]  # name of a file, as seen from the checkout -> its text
Counts = tuple[int, int] | list[int] | None  # lines added and removed; None: unknown


# ---- the code of this program


def own_sources() -> Sources:
    """Returns the files that a training runs, and loaded modules of the user that lie in the current folder."""
    paths = {path.relative_to(ROOT): path for path in (ROOT / "train.py", *_rooms()) if path.is_file()}
    here = Path.cwd()
    for module in [*sys.modules.values()]:
        path = Path(getattr(module, "__file__", None) or "none")
        is_installed = any(map(path.is_relative_to, (sys.prefix, sys.base_prefix)))
        is_ours = path.is_relative_to(ROOT) and path.parent != ROOT
        if path.suffix == ".py" and path.is_relative_to(here) and not is_installed and not is_ours:
            paths[path.relative_to(here)] = path
    return {name.as_posix(): path.read_text("utf-8", "replace") for name, path in sorted(paths.items())}


def _rooms() -> list[Path]:
    return [path for folder in FOLDERS for path in (ROOT / folder).glob("*.py")]


def code_hash(source: str) -> str:
    """Returns 16 hex digits that comments, docstrings, layout and the version of Python do not change."""
    content = source
    with suppress(SyntaxError):
        content = repr(_without_docstrings(ast.parse(source)))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _without_docstrings(node: Any) -> Any:
    """Returns a syntax tree as nested lists. Empty fields are left out: versions of Python differ in them."""
    if isinstance(node, list):
        return [_without_docstrings(item) for item in node if not _is_text(item)]
    if not isinstance(node, ast.AST):
        return node
    fields = [(name, _without_docstrings(value)) for name, value in ast.iter_fields(node) if value not in (None, [])]
    return [type(node).__name__, *fields]


def _is_text(node: Any) -> bool:
    """Whether this is a statement that is only a string."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


# ---- the code of a commit


def git(*arguments: str, request: str = "") -> bytes:
    """Returns what git tells about the checkout, b"" if it cannot. For commands that run no hook, filter or pager."""
    # Without the variables of a git that has called us, and without fetching what a partial clone lacks.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_NO_LAZY_FETCH"] = "1"
    command = ["git", "--no-pager", "-C", str(ROOT), *arguments]
    with suppress(OSError, subprocess.TimeoutExpired):
        ended = subprocess.run(
            command, input=request.encode(), capture_output=True, timeout=GIT_SECONDS, env=environment
        )
        if ended.returncode == 0:
            return ended.stdout
    return b""


def sources_at(commit: str | None) -> Sources:
    """Returns the files that a training ran at a commit; none if the commit, git or the checkout is missing."""
    if commit is None:
        return {}
    listed = git("ls-tree", "-z", "--name-only", commit, "train.py", *(f"{folder}/" for folder in FOLDERS))
    names = [name for name in listed.decode(errors="replace").split("\0") if name.endswith(".py")]
    content = git("cat-file", "--batch", request="".join(f"{commit}:./{name}\n" for name in names))
    sources = {}
    for name in names:  # each as "ID blob SIZE", a line end, the content and a line end
        header, _, content = content.partition(b"\n")
        size = int(header.split()[-1])
        text, content = content[:size], content[size + 1 :]
        sources[name] = text.decode(errors="replace")
    return sources


def changed_files(before: Sources, after: Sources) -> dict[str, list[str]]:
    """Returns the differing lines of each file that has changed, as of `diff -U0` without the names of the files."""
    found = {}
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, "").splitlines(), after.get(name, "").splitlines()
        if lines := [*difflib.unified_diff(old, new, lineterm="", n=0)][2:]:
            found[name] = lines
    return found


def count(lines: list[str]) -> tuple[int, int]:
    """Returns how many lines were added and removed."""
    return sum(line[0] == "+" for line in lines), sum(line[0] == "-" for line in lines)


# ---- code.json


def entry_of(trainer: Trainer, command: str, earlier: list[dict[str, Any]], with_difference: bool) -> dict[str, Any]:
    """Describes the code of this start or resume, the command line and the machine, as plain data.

    "since" has the files that changed since the last of the `earlier` entries, or since the commit. "difference" has
    the lines that differ from the commit, unless `with_difference` is false or there is no commit.
    """
    gpt, device = trainer.lightning_module.gpt, trainer.strategy.root_device
    sources, commit = own_sources(), git("rev-parse", "--verify", "HEAD").decode().strip() or None
    committed = sources_at(commit)
    if "train.py" not in committed:  # a repository around an installed package
        commit, committed = None, {}
    lines = changed_files(committed, sources) if commit else {}
    changed = {name: count(of_file) for name, of_file in lines.items()}
    difference = "\n".join(line for name, of_file in lines.items() for line in (f"+++ {name}", *of_file))
    return {
        "step": trainer.global_step,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": command,
        "commit": commit,
        "release": RELEASE,
        "changed": changed,
        "since": changes_since(earlier[-1]) if earlier else changed,
        "hashes": {name: code_hash(source) for name, source in sources.items()},
        "difference": difference[:LONGEST_DIFFERENCE] if commit and with_difference else None,
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
        "machine": {
            "processor": processor(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "threads": torch.get_num_threads(),
        },
        "parameters": gpt.num_parameters(),
        "flops_per_token": gpt.flops_per_token(),
    }


def told(args: list[str]) -> str:
    """Returns the command line of train.py as text, without absolute folders and passwords."""
    return SECRET.sub(r"\1...", shlex.join(["python", "train.py", *(FOLDER.sub(".../", arg) for arg in args)]))


def processor() -> str:
    """Returns the name of the processor, as far as the system tells it, and its vector instructions."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), name)
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"


def record_code(trainer: Trainer, command: str, with_difference: bool) -> str:
    """Adds an entry to the run's code.json, and returns what has changed, in words.

    Entries of later steps go, because a resumed run replaces these steps.
    """
    run_dir, step = Path(trainer.default_root_dir), trainer.global_step
    earlier = [entry for entry in read_code(run_dir) if entry["step"] < step]
    entries = [*earlier, entry_of(trainer, command, earlier, with_difference)]
    write_atomically(run_dir / CODE, json.dumps(entries, indent=1, ensure_ascii=False).encode())
    return in_words(entries[-1]["since"])


def read_code(run_dir: Path) -> list[dict[str, Any]]:
    """Returns the entries of a run's code.json, [] if there is none. Raises a `Mistake` if it is damaged."""
    path = run_dir / CODE
    with parsing(path):
        if path.exists() and path.stat().st_size > LONGEST_FILE:
            raise Mistake("it is too long")
        entries = json.loads(content_of(path) or "[]")
        for entry in entries:
            hashes = [*entry["hashes"].values(), *filter(None, [entry["commit"]])]
            counts = chain(*filter(None, (*entry["changed"].values(), *entry["since"].values())))
            names = entry["hashes"].keys() | entry["changed"].keys() | entry["since"].keys()
            if not all(map(FILE_NAME.fullmatch, names)) or not all(map(HASH.fullmatch, hashes)):
                raise Mistake("it has other names or hashes than those of code")
            if not all(isinstance(number, int) for number in (entry["step"], *counts)):
                raise Mistake("it has counts that are no numbers")
    return entries


# ---- what has changed


def changes_since(entry: dict[str, Any]) -> dict[str, Counts]:
    """Returns the files whose code differs from that of an entry, with the lines added and removed where known."""
    now = own_sources()
    before = sources_at(entry["commit"])
    changes: dict[str, Counts] = {}
    for name in sorted(now.keys() | entry["hashes"].keys()):
        if name in now and code_hash(now[name]) == entry["hashes"].get(name):
            continue
        lines = changed_files({name: before.get(name, "")}, {name: now.get(name, "")})
        if name not in entry["changed"]:
            changes[name] = count(lines[name]) if before else None
        else:  # the entry's own lines are unknown, unless the commit's are back
            changes[name] = None if lines else entry["changed"][name][::-1]
    return changes


def in_words(changes: dict[str, Counts]) -> str:
    """Returns such as "model/attention.py changed: +9 -2, model/gpt.py changed"; "" for no changes."""
    return ", ".join(
        f"{name} changed" + (": +{} -{}".format(*counts) if counts else "") for name, counts in changes.items()
    )


def check_code(path: Path, gpt: GPT, checkpoint: dict[str, Any], *, refuse: bool) -> None:
    """Warns if `gpt`, opened from `path`, computes something else than the code that trained it.

    Raises a `Mistake` instead, if `refuse`.
    """
    told = difference(path, gpt, checkpoint["proof"])
    if not told:
        return
    entries: list[dict[str, Any]] = []
    with suppress(Mistake):  # without a run, or with a damaged code.json, nothing is known
        entries = read_code(Run.open(path).folder)
    reason = "what has changed is not known, because its run has no code.json"
    if entries:
        trained_by = [entry for entry in entries if entry["step"] < checkpoint["global_step"]]
        reason = in_words(changes_since((trained_by or entries)[-1])) or (
            "no file has changed, so a function was replaced, or a package computes something else"
        )
    if refuse:
        raise Mistake(f"{told}: {reason}; write --other_code if you mean this code")
    log.warning("%s: %s", told, reason)
