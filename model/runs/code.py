"""The code of a run: what it was, and what has changed since. code.json has an entry for each start and each resume.

Entries may come from a stranger: they are shown as text, never applied. Reading them needs no torch.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import logging
import platform
import re
import shlex
import subprocess
import sys
import sysconfig
import zlib
from collections.abc import Collection
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.files import content_of, write_atomically
from model.mistakes import Mistake, parsing
from model.runs.run import CODE, CONFIG, Run

if TYPE_CHECKING:
    from lightning.pytorch import Trainer  # open_run imports this file, and generate.py needs no lightning

    from model.gpt import GPT

log = logging.getLogger(__name__)
RELEASE = "0.1.0"  # of the package too, see pyproject.toml
ROOT = Path(__file__).parents[2]
# The files that a training computes with. What only records, measures or shows is left out.
TRAINING = ("train.py", "model/*.py", "model/training/*.py", "data/**/*.py")
PROJECT = ("train.py", "model", "data", "scripts", "tests")
STDLIB = Path(sysconfig.get_path("stdlib"))
INSTALLED = {"site-packages", "dist-packages"}
PACKAGES = ("torch", "lightning", "numpy", "datasets", "tiktoken", "rustbpe")
GIT_SECONDS = 10
# What is removed from a recorded command line: the folders of absolute paths, and what looks like a password.
HIDDEN = re.compile(
    r"(?<![\w.:/])(?:~|[A-Za-z]:)?[/\\](?:[^/\\\s,'\"]*[/\\])*"
    r"|(?<=key[ =])\S+|(?<=secret[ =])\S+|(?<=password[ =])\S+"
)


def own_sources(names: Collection[str] | None) -> dict[str, str]:
    """Returns the text of the files that a training runs, by their names as seen from the checkout.

    The user's own modules, which lie in the current folder, belong to them: those in `names`, by default those loaded.
    """
    here = Path.cwd()
    if names is None:
        files = [getattr(module, "__file__", None) or "" for module in [*sys.modules.values()]]
        paths = [Path(file) for file in files if file.startswith(str(here))]  # before all else: a run loads thousands
    else:
        paths = [here / name for name in names]
    sources = {path.relative_to(here).as_posix(): path for path in paths if is_own(path, here)}
    sources |= {path.relative_to(ROOT).as_posix(): path for pattern in TRAINING for path in ROOT.glob(pattern)}
    return {name: path.read_text("utf-8", "replace") for name, path in sorted(sources.items())}


def is_own(path: Path, folder: Path) -> bool:
    """Whether a file is Python code in a user's folder, and neither of this project nor installed, as Python itself."""
    is_inside = path.suffix == ".py" and folder in path.parents and ".." not in path.parts
    is_of_project = ROOT in path.parents and path.relative_to(ROOT).parts[0] in PROJECT
    is_installed = STDLIB in path.parents or not INSTALLED.isdisjoint(path.parts)
    return is_inside and not is_of_project and not is_installed and path.is_file()


def code_hash(source: str) -> str:
    """Returns 16 hex digits that comments and layout do not change."""
    with suppress(SyntaxError):
        source = ast.unparse(ast.parse(source))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def blob_hash(source: str) -> str:
    """Returns the name that git gives to a file of this text."""
    content = source.encode()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def git(*arguments: str) -> str:
    """Returns what git tells about the checkout, "" if it cannot. For commands that run no hook, filter or pager."""
    with suppress(OSError, subprocess.SubprocessError):
        ended = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True, timeout=GIT_SECONDS)
        return ended.stdout.decode(errors="replace")
    return ""


def current_code(names: Collection[str] | None = None) -> dict[str, Any]:
    """Returns the part of an entry of code.json that describes the code, see `own_sources`.

    That is the "commit", None without one; by file "changed", such as "changed: +9 -2" since the commit, and the
    "hashes"; and the "difference" from the commit, as `diff -U0` writes it.
    """
    sources = own_sources(names)
    commit, _, _ = git("rev-parse", "HEAD", "HEAD:./train.py").partition("\n")  # none if train.py is not in it
    files = git("ls-tree", "-r", commit)
    changed, difference = {}, []
    for name, source in sources.items() if commit else ():
        if f"{blob_hash(source)}\t{name}\n" in files:  # as in the commit: asked here, not in a process for each file
            continue
        committed = git("cat-file", "blob", f"{commit}:./{name}").splitlines()
        lines = [*difflib.unified_diff(committed, source.splitlines(), name, name, lineterm="", n=0)]
        if lines:
            signs = [line[0] for line in lines[2:]]  # two lines name the file
            changed[name] = f"changed: +{signs.count('+')} -{signs.count('-')}"
            difference += lines
    return {
        "commit": commit or None,
        "changed": changed,
        "hashes": {name: code_hash(source) for name, source in sources.items()},
        "difference": "\n".join(difference),
    }


def changed_files(entries: list[dict[str, Any]], code: dict[str, Any]) -> str:
    """Returns what has changed from the last entry to `code`, such as "model/attention.py changed: +9 -2".

    The lines are those since the commit of `code`. If there is no entry, this returns what has changed since then.
    """
    names = {*code["changed"]}
    if entries:
        names = {name for name, _ in entries[-1]["hashes"].items() ^ code["hashes"].items()}
    return ", ".join(f"{name} {code['changed'].get(name, 'changed')}" for name in sorted(names))


def shown_command(args: list[str]) -> str:
    """Returns the command line of train.py as text, without absolute folders and passwords."""
    return HIDDEN.sub("...", shlex.join(["python", "train.py", *args]))


def record_code(trainer: Trainer, command: str, with_difference: bool) -> str:
    """Adds an entry to the run's code.json: the `current_code`, the command line and the machine.

    Returns what has changed "since" the entry before, or the commit. A resumed run replaces the steps after the one
    that it resumes, so their entries go.
    """
    import torch

    from model.runs.configs import compared, flat, read_config
    from model.training.hardware import device_name

    run_dir, step = Path(trainer.default_root_dir), trainer.global_step
    gpt = trainer.lightning_module.gpt
    data = trainer.datamodule
    validation = data.tokenized.validation
    checksum = validation.checksum
    num_bytes = validation.num_bytes
    num_targets = sum(trainer.num_val_batches) * data.validation_batch_size * data.context_length
    if num_targets < validation.num_tokens - 1:  # trainer.limit_val_batches leaves some out
        read = validation.read(0, num_targets + 1)
        checksum = zlib.crc32(read)
        num_bytes = data.tokenizer.num_bytes(read)
    options = sorted(compared(dict(flat(read_config(run_dir / CONFIG)))).items())
    earlier = [entry for entry in read_code(run_dir) if entry["step"] < step]
    code = current_code()
    if not with_difference:
        del code["difference"]
    entry = {
        "step": step,
        "command": command,
        "options": zlib.crc32(repr(options).encode()),
        "release": RELEASE,
        "since": changed_files(earlier, code),
        **code,
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
        "device": device_name(trainer.strategy.root_device),
        "threads": torch.get_num_threads(),
        "parameters": gpt.num_parameters(),
        "flops_per_token": gpt.flops_per_token(),
        "validation_tokens": checksum,  # of those that are read
        "validation_bytes": num_bytes,
    }
    write_atomically(run_dir / CODE, json.dumps([*earlier, entry], indent=1, ensure_ascii=False).encode())
    return entry["since"]


def read_code(run_dir: Path) -> list[dict[str, Any]]:
    """Returns the entries of a run's code.json, [] if there is none. Raises a `Mistake` if it is damaged."""
    with parsing(run_dir / CODE):
        entries = json.loads(content_of(run_dir / CODE) or "[]")
        for entry in entries:
            words = [f"{entry['step']:d}", entry["since"], *entry["changed"].values()]
            words += [*entry["hashes"], *entry["hashes"].values()]
            if not "".join(words).isprintable():
                raise Mistake("it is not about code")
    return entries


def check_code(path: Path, gpt: GPT, checkpoint: dict[str, Any], *, refuse: bool) -> None:
    """Warns if `gpt`, opened from `path`, computes something else than the code that trained it.

    Raises a `Mistake` instead, if `refuse`.
    """
    from model.proof import difference

    found = difference(path, gpt, checkpoint["proof"])
    if not found:
        return
    step = max(1, checkpoint["global_step"])
    entries = [entry for entry in read_code(Run.open(path).folder) if entry["step"] < step]
    known = entries[-1]["hashes"].keys() if entries else ()
    reason = changed_files(entries, current_code(known)) or (
        "no file is known to have changed, so a function was replaced, or a package computes something else"
    )
    if refuse:
        raise Mistake(f"{found}: {reason}; write --other_code if you mean this code")
    log.warning("%s: %s", found, reason)
