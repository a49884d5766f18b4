"""The code of a run: what it was, and what has changed since. code.json has an entry for each start and each resume.

Entries may come from a stranger: they are shown as text, never applied. Reading them needs no torch.
"""

from __future__ import annotations

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
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.files import content_of, write_atomically
from model.mistakes import Mistake, parsing
from model.runs.run import CODE, Run

if TYPE_CHECKING:
    from lightning.pytorch import Trainer  # open_run imports this file, and generate.py needs no lightning

    from model.gpt import GPT

log = logging.getLogger(__name__)
RELEASE = "0.1.0"  # of the package too, see pyproject.toml
ROOT = Path(__file__).parents[2]
# The files that a training computes with. What only records, measures or shows is left out.
TRAINING = ("train.py", "model/*.py", "model/training/*.py", "data/**/*.py")
PACKAGES = ("torch", "lightning", "numpy", "datasets", "tiktoken", "rustbpe")
LONGEST_DIFFERENCE = 200_000  # characters
GIT_SECONDS = 10
# What is not told of a command line: the folders of absolute paths, and what looks like a password.
HIDDEN = re.compile(
    r"(?<![\w.:/])(?:~|[A-Za-z]:)?[/\\](?:[^/\\\s,'\"]*[/\\])*"
    r"|(?<=key[ =])\S+|(?<=secret[ =])\S+|(?<=password[ =])\S+"
)

Sources = dict[str, str]  # name of a file, as seen from the checkout -> its text
Changes = dict[str, list[int] | None]  # name of a file -> lines added and removed, None if they are unknown


def own_sources() -> Sources:
    """Returns the files that a training runs, and the loaded modules that lie in the current folder: the user's own."""
    files = {path.relative_to(ROOT).as_posix(): path for pattern in TRAINING for path in ROOT.glob(pattern)}
    loaded = [Path(getattr(module, "__file__", None) or "/") for module in [*sys.modules.values()]]
    files |= {path.name: path for path in loaded if path.parent == Path.cwd()}
    return {name: path.read_text("utf-8", "replace") for name, path in sorted(files.items())}


def code_hash(source: str) -> str:
    """Returns 16 hex digits that comments, docstrings and layout do not change."""
    with suppress(SyntaxError):
        source = ast.unparse(_WithoutDocstrings().visit(ast.parse(source)))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


class _WithoutDocstrings(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


def git(*arguments: str) -> str:
    """Returns what git tells about the checkout, "" if it cannot. For commands that run no hook, filter or pager."""
    command = ["git", "-C", str(ROOT), *arguments]
    variables = os.environ | {"GIT_NO_LAZY_FETCH": "1"}  # a partial clone would ask its server
    with suppress(OSError, subprocess.SubprocessError):
        ended = subprocess.run(command, capture_output=True, check=True, timeout=GIT_SECONDS, env=variables)
        return ended.stdout.decode(errors="replace")
    return ""


def sources_at(commit: str | None, names: Iterable[str]) -> Sources:
    """Returns these files as they were at a commit; none if git does not know it as a commit of this checkout."""
    if not commit or not git("cat-file", "blob", f"{commit}:./train.py"):
        return {}
    return {name: git("cat-file", "blob", f"{commit}:./{name}") for name in names}


def differing_lines(before: str, after: str) -> list[str]:
    """Returns the lines of `diff -U0`, without the names of the files."""
    return [*difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)][2:]


def count(lines: list[str]) -> list[int]:
    """Returns how many lines were added and removed."""
    return [sum(line[0] == sign for line in lines) for sign in "+-"]


# ---- code.json


def record_code(trainer: Trainer, command: str, with_difference: bool) -> str:
    """Adds an entry to the run's code.json, and returns in words what has changed since the entry before.

    An entry describes the code ("changed": lines added and removed since the commit, "hashes", and "difference", the
    lines themselves), the command line and the machine. A resumed run replaces the steps after the one that it resumes,
    so their entries go.
    """
    import torch

    from model.training.hardware import device_name

    run_dir, gpt = Path(trainer.default_root_dir), trainer.lightning_module.gpt
    device, step = trainer.strategy.root_device, trainer.global_step
    earlier = [entry for entry in read_code(run_dir) if entry["step"] < step]
    sources = own_sources()
    commit = git("rev-parse", "--verify", "HEAD").strip()
    committed = sources_at(commit, sources)
    changed, difference = {}, ""
    for name, before in committed.items():
        if lines := differing_lines(before, sources[name]):
            changed[name] = count(lines)
            difference += "\n".join([f"+++ {name}", *lines, ""])
    entry = {
        "step": step,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": command,
        "commit": commit if committed else None,
        "release": RELEASE,
        "changed": changed,
        "since": changes_since(earlier[-1]) if earlier else changed,
        "hashes": {name: code_hash(source) for name, source in sources.items()},
        "difference": difference[:LONGEST_DIFFERENCE] if committed and with_difference else None,
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
        "machine": {
            "device": device_name(device),
            "threads": torch.get_num_threads(),
        },
        "parameters": gpt.num_parameters(),
        "flops_per_token": gpt.flops_per_token(),
        "validation_text": trainer.datamodule.tokenized.validation.checksum,
    }
    write_atomically(run_dir / CODE, json.dumps([*earlier, entry], indent=1, ensure_ascii=False).encode())
    return in_words(entry["since"])


def told(args: list[str]) -> str:
    """Returns the command line of train.py as text, without absolute folders and passwords."""
    return HIDDEN.sub("...", shlex.join(["python", "train.py", *args]))


def read_code(run_dir: Path) -> list[dict[str, Any]]:
    """Returns the entries of a run's code.json, [] if there is none. Raises a `Mistake` if it is damaged."""
    with parsing(run_dir / CODE):
        entries = json.loads(content_of(run_dir / CODE) or "[]")
        for entry in entries:
            commit, step = entry["commit"], entry["step"] + 0
            words = in_words(entry["changed"] | entry["since"]) + "".join(entry["hashes"])
            if not words.isprintable() or not re.fullmatch(r"None|[0-9a-f]{40,64}", str(commit)):
                raise Mistake(f"its entry of step {step} is not about code")
    return entries


# ---- what has changed


def changes_since(entry: dict[str, Any]) -> Changes:
    """Returns the files whose code differs from that of an entry, which has not kept their text.

    So the lines are known if the file was as in the entry's commit.
    """
    now = own_sources()
    changes: Changes = {}
    names = [name for name in now if code_hash(now[name]) != entry["hashes"].get(name)]
    for name, before in sources_at(entry["commit"], names).items():
        if name not in entry["changed"]:
            changes[name] = count(differing_lines(before, now[name]))
    return dict.fromkeys(sorted({*names, *entry["hashes"].keys() - now})) | changes


def in_words(changes: Changes) -> str:
    """Returns such as "model/attention.py changed: +9 -2, model/gpt.py changed"; "" for no changes."""
    counted = {name: f": +{counts[0]} -{counts[1]}" if counts else "" for name, counts in changes.items()}
    return ", ".join(f"{name} changed{counts}" for name, counts in counted.items())


def check_code(path: Path, gpt: GPT, checkpoint: dict[str, Any], *, refuse: bool) -> None:
    """Warns if `gpt`, opened from `path`, computes something else than the code that trained it.

    Raises a `Mistake` instead, if `refuse`.
    """
    from model.proof import difference

    told = difference(path, gpt, checkpoint["proof"])
    if not told:
        return
    reason = "what has changed is not known, because there is no code.json beside it"
    with suppress(Mistake):
        entries = read_code(Run.open(path).folder)
        before = [entry for entry in entries if entry["step"] < checkpoint["global_step"]] or entries[:1]
        if before:
            changed = in_words(changes_since(before[-1]))
            reason = changed or "no file has changed, so a function was replaced, or a package computes something else"
    if refuse:
        raise Mistake(f"{told}: {reason}; write --other_code if you mean this code")
    log.warning("%s: %s", told, reason)
