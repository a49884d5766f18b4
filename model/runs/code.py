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
import secrets
import shlex
import subprocess
import sys
import zlib
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from model.files import content_of, write_atomically
from model.mistakes import Mistake, parsing
from model.runs.run import CODE, CONFIG, Run

if TYPE_CHECKING:
    from lightning.pytorch import Trainer  # open_run imports this file, and generate.py needs no lightning

    from model.gpt import GPT

log = logging.getLogger(__name__)
RELEASE = "0.1.0"  # of the package too, see pyproject.toml
ROOT = Path(os.path.abspath(__file__)).parents[2]  # noqa: PTH100  a module's folder may be written with ..
# The files that a training computes with. What only records, measures or shows is left out.
TRAINING = ("train.py", "model/*.py", "model/training/*.py", "data/**/*.py")  # loaded or not
OTHER_FILES = ("model/generation.py", "model/glass.py", "model/proof.py")
OTHER = ("model/runs/", "model/inspection/", "model/pages/", "model/exchange/", "scripts/", "tests/", *OTHER_FILES)
INSTALLED = {"site-packages", "dist-packages", Path(ast.__file__).parent.name}  # the last holds Python's own modules
PACKAGES = ("torch", "lightning", "numpy", "datasets", "tiktoken", "rustbpe")
GIT_SECONDS = 10
OtherCode = Literal["warn", "refuse", "accept"]
# What is removed from a recorded command line: the folders of absolute paths, and what looks like a password.
HIDDEN = re.compile(
    r"(?<![\w.:/])(?:~|[A-Za-z]:)?[/\\](?:[^/\\\0,'\"]*[/\\])*|(?<=://)[^/\0@]+(?=@)"
    r"|(?<=key[=\0])[^\0]+|(?<=secret[=\0])[^\0]+|(?<=password[=\0])[^\0]+"
)


def sources() -> dict[str, str]:
    """Returns the text of the files that a training runs, by their names as seen from the checkout.

    The user's own modules belong to them: those that have been loaded from the checkout, the current folder or one that
    PYTHONPATH names. A file outside of the checkout is named as its module, so that no folder is recorded.
    """
    known = map(os.path.abspath, [str(ROOT), "", *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    folders = [folder for folder in map(Path, known) if not any(folder.glob("*.dist-info"))]  # pip installs into others
    paths = {path.relative_to(ROOT).as_posix(): path for pattern in TRAINING for path in ROOT.glob(pattern)}
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None) or ""
        if not INSTALLED.isdisjoint(file.split(os.sep)):  # noqa: PTH206  fast: a run loads thousands
            continue
        path = Path(os.path.abspath(file))  # noqa: PTH100
        if any(map(path.is_relative_to, folders)) and path.suffix == ".py" and path.is_file():
            name = f"{module.__name__.replace('.', '/')}.py"
            paths[path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else name] = path
    return {
        name: path.read_text("utf-8", "replace") for name, path in sorted(paths.items()) if not name.startswith(OTHER)
    }


def code_hash(source: str) -> str:
    """Returns 16 hex digits that comments, layout and the version of Python do not change."""
    with suppress(SyntaxError):
        source = repr(_content(ast.parse(source)))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _content(part: Any) -> Any:
    """Returns a part of a syntax tree as lists, without empty fields, which only some versions of Python have."""
    if isinstance(part, ast.AST):
        fields = [(name, _content(value)) for name, value in ast.iter_fields(part) if value not in (None, [])]
        return [type(part).__name__, *fields]
    return [*map(_content, part)] if isinstance(part, list) else part


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


def current_code() -> dict[str, Any]:
    """Returns the part of an entry of code.json that describes the code, see `sources`.

    That is the "commit", None without one; by file "changed", such as "changed: +9 -2" since the commit, and the
    "hashes"; and the "difference" from the commit, as `diff -U0` writes it.
    """
    texts = sources()
    commit, _, _ = git("rev-parse", "HEAD", "HEAD:./train.py").partition("\n")  # none if train.py is not in it
    files = git("ls-tree", "-r", commit)
    changed, difference = {}, []
    for name, text in texts.items() if commit else ():
        if f"{blob_hash(text)}\t{name}\n" in files:  # as in the commit: asked here, not in a process for each file
            continue
        committed = git("cat-file", "blob", f"{commit}:./{name}")
        lines = [*difflib.unified_diff(committed.splitlines(), text.splitlines(), name, name, lineterm="", n=0)]
        if lines:
            signs = [line[0] for line in lines[2:]]  # two lines name the file
            changed[name] = f"changed: +{signs.count('+')} -{signs.count('-')}"
            difference += lines
    return {
        "commit": commit or None,
        "changed": changed,
        "hashes": {name: code_hash(text) for name, text in texts.items()},
        "difference": "\n".join(difference),
    }


def changed_files(entries: list[dict[str, Any]], code: dict[str, Any]) -> str:
    """Returns what has changed from the last entry to `code`, such as "model/attention.py changed: +9 -2".

    The lines are those since the commit of `code`. If there is no entry, this returns what has changed since then.
    A file that only one of the two has is not named: it changes nothing without a change in the file that needs it, and
    a user's own modules may not be loaded yet.
    """
    names = {*code["changed"]}
    if entries:
        before = entries[-1]["hashes"]
        names = {name for name, digits in code["hashes"].items() if before.get(name, digits) != digits}
    return ", ".join(f"{name} {code['changed'].get(name, 'changed')}" for name in sorted(names))


def shown_command(args: list[str]) -> str:
    """Returns the command line of train.py as text, without absolute folders and passwords."""
    typed = HIDDEN.sub("...", "\0".join(["python", "train.py", *args])).split("\0")
    return os.fsencode(shlex.join(typed)).decode(errors="replace")  # of the bytes, whatever the locale


def record_code(trainer: Trainer, command: str, with_difference: bool) -> str:
    """Adds an entry to the run's code.json: the `current_code`, the command line and the machine.

    Returns what has changed "since" the entry before, or the commit. A run that is resumed at a step does this step's
    records and later ones again, so their entries go.
    """
    import torch

    from model.runs.configs import compared
    from model.training.hardware import device_name

    run_dir, step = Path(trainer.default_root_dir), trainer.global_step
    gpt = trainer.lightning_module.gpt
    data = trainer.datamodule
    training_tokens = data.tokenized.train.checksum
    validation = data.tokenized.validation
    num_targets = sum(trainer.num_val_batches) * data.validation_batch_size * data.context_length
    read = validation.read(0, num_targets + 1)  # all of it, unless trainer.limit_val_batches leaves some out
    options = sorted(compared(run_dir / CONFIG).items())
    earlier = [entry for entry in read_code(run_dir) if entry["step"] < step]
    code = current_code()
    if not with_difference:
        del code["difference"]
    entry = {
        "id": earlier[0]["id"] if earlier else secrets.token_hex(4),  # of the run, for Weights & Biases
        "step": step,
        "command": command,
        "options": zlib.crc32(repr([options, training_tokens]).encode()),
        "release": RELEASE,
        "since": changed_files(earlier, code),
        **code,
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
        "device": device_name(trainer.strategy.root_device),
        "threads": torch.get_num_threads(),
        "parameters": gpt.num_parameters(),
        "flops_per_token": gpt.flops_per_token(),
        "training_tokens": training_tokens,
        "validation_tokens": zlib.crc32(read),
        "validation_bytes": data.tokenizer.num_bytes(read),
    }
    write_atomically(run_dir / CODE, json.dumps([*earlier, entry], indent=1, ensure_ascii=False).encode())
    return entry["since"]


def read_code(run_dir: Path) -> list[dict[str, Any]]:
    """Returns the entries of a run's code.json, [] if there is none. Raises a `Mistake` if it is damaged."""
    with parsing(run_dir / CODE):
        entries = json.loads(content_of(run_dir / CODE) or "[]")
        return [
            entry | {"step": int(entry["step"]), "since": str(entry["since"]), "hashes": dict(entry["hashes"])}
            for entry in entries
        ]


def open_known(path: Path, device: Any = "cpu", other_code: OtherCode = "warn") -> tuple[GPT, dict[str, Any]]:
    """Opens a checkpoint as `open_checkpoint` does, and tells what has changed in the code that trained it.

    other_code: what to do if this code computes something else: warn, raise a `Mistake`, or accept it. If it cannot
        open the checkpoint at all, this raises a `Mistake` in any case.
    """
    from model.checkpoint import OtherNetwork, open_checkpoint, read_checkpoint
    from model.proof import difference

    try:
        gpt, checkpoint = open_checkpoint(path, device)
    except OtherNetwork as error:
        step = read_checkpoint(path, on_disk=True)["global_step"]
        raise Mistake(f"{error}; {changes_since(path, step)}") from error
    found = "" if other_code == "accept" else difference(path, gpt, checkpoint["proof"])
    if found:
        message = f"{found}: {changes_since(path, checkpoint['global_step'])}"
        if other_code == "refuse":
            raise Mistake(f"{message}; write --other_code if you mean this code")
        log.warning("%s", message)
    return gpt, checkpoint


def changes_since(path: Path, step: int) -> str:
    """Returns which files have changed since the step of a checkpoint, or that none has."""
    entries = [entry for entry in read_code(Run.open(path).folder) if entry["step"] < max(1, step)]
    return changed_files(entries, current_code()) or (
        "no file is known to have changed, so a function was replaced, a package computes something else, or the model "
        "is random in eval mode"
    )
