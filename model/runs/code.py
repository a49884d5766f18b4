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
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from itertools import chain
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
GIT_SECONDS = 10
# What is not told of a command line: the folders of absolute paths, and what looks like a password.
HIDDEN = re.compile(
    r"(?<![\w.:/])(?:~|[A-Za-z]:)?[/\\](?:[^/\\\s,'\"]*[/\\])*"
    r"|(?<=key[ =])\S+|(?<=secret[ =])\S+|(?<=password[ =])\S+"
)

Sources = dict[str, str]  # name of a file, as seen from the checkout -> its text
Changes = dict[str, str]  # name of a file -> "changed: +9 -2", or "changed" if the lines are not known


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


def differing_lines(name: str, before: str, after: str) -> list[str]:
    """Returns the lines of `diff -U0` of a file, of which two name it; none if it is the same."""
    return [*difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm="", n=0)]


def counted(lines: list[str]) -> str:
    """Returns such as "changed: +9 -2" for these lines."""
    added, removed = (sum(line.startswith(sign) for line in lines) - 1 for sign in "+-")
    return f"changed: +{added} -{removed}"


# ---- code.json


def record_code(trainer: Trainer, command: str, with_difference: bool) -> str:
    """Adds an entry to the run's code.json, and returns in words what has changed since the entry before.

    An entry describes the code ("changed" since the commit, "hashes", and "difference", the lines themselves), the
    command line and the machine. A resumed run replaces the steps after the one that it resumes, so their entries go.
    """
    import torch

    from model.training.hardware import device_name

    run_dir, step = Path(trainer.default_root_dir), trainer.global_step
    gpt, validation = trainer.lightning_module.gpt, trainer.datamodule.tokenized.validation
    earlier = [entry for entry in read_code(run_dir) if entry["step"] < step]
    sources = own_sources()
    commit = git("rev-parse", "--verify", "HEAD").strip()
    committed = sources_at(commit, sources)
    differences = [differing_lines(name, before, sources[name]) for name, before in committed.items()]
    changed = {name: counted(lines) for name, lines in zip(committed, differences, strict=True) if lines}
    entry = {
        "step": step,
        "command": command,
        "commit": commit if committed else None,
        "release": RELEASE,
        "changed": changed,
        "since": changes_since(earlier[-1]) if earlier else changed,
        "hashes": {name: code_hash(source) for name, source in sources.items()},
        "difference": "\n".join(chain(*differences)) if with_difference else None,
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
        "device": device_name(trainer.strategy.root_device),
        "threads": torch.get_num_threads(),
        "parameters": gpt.num_parameters(),
        "flops_per_token": gpt.flops_per_token(),
        "validation_tokens": validation.checksum,
        "validation_bytes": validation.num_bytes,
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
            words = "".join(in_words(entry[part]) for part in ("changed", "since", "hashes"))
            if not words.isprintable() or not re.fullmatch(r"None|[0-9a-f]{40,64}", str(commit)):
                raise Mistake(f"its entry of step {step} is not about code")
    return entries


# ---- what has changed


def changes_since(entry: dict[str, Any]) -> Changes:
    """Returns the files whose code differs from that of an entry, which has not kept their text.

    So the lines are known if the file was as in the entry's commit.
    """
    now, then = own_sources(), entry["hashes"]
    names = [name for name in sorted({*now, *then}) if code_hash(now.get(name, "")) != then.get(name)]
    known = sources_at(entry["commit"], {*names} - {*entry["changed"]})
    lines = {name: counted(differing_lines(name, before, now.get(name, ""))) for name, before in known.items()}
    return dict.fromkeys(names, "changed") | lines


def in_words(changes: Changes) -> str:
    """Returns such as "model/attention.py changed: +9 -2, model/gpt.py changed"; "" for no changes."""
    return ", ".join(map(" ".join, changes.items()))


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
