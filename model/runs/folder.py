"""A run's folder: the files in it, and which folder or checkpoint a person means."""

from __future__ import annotations

import logging
import os
import re
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from model.files import RUN_CHECKPOINTS

log = logging.getLogger(__name__)
CHECKSUM_LINE = b"# CRC-32 of the lines above: %08x\n"
CHECKSUM = re.compile(rb"# CRC-32 of the lines above: ([0-9a-f]{8})")

RUNS = Path("runs")  # where run folders are, unless trainer.default_root_dir says otherwise

# The files of a run, relative to its folder.
CONFIG = "config.yaml"
METRICS = "metrics.csv"
SAMPLES = "samples.jsonl"
REPORT = "report.html"
MODEL_PAGE = "model.html"
ATTENTION = "attention"
HEAD_SCORES = "attention/scores.jsonl"
CHECKPOINTS = "checkpoints"
LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"  # in CHECKPOINTS


def find_run(path: Path | None, file: str, hint: str = "") -> Path:
    """The run folder that a person means.

    Args:
        path: the folder or anything in it; None for the run under runs/ whose `file` is the newest.
        file: what the run must have, such as METRICS.
        hint: what else to try; the end of the sentence for a `path` without such a run.

    Raises:
        FileNotFoundError: if there is no such run.
        ValueError: if a file of it is a link to elsewhere.
    """
    return _find_file(path, [file], hint).parents[file.count("/")]


def find_checkpoint(path: Path | None = None) -> Path:
    """The checkpoint that a person means: a file, or the best.ckpt, else the last.ckpt of a run.

    Args:
        path: a checkpoint, a run's folder, or a folder in one; None for the newest run under runs/.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if a file of the run is a link to elsewhere.
    """
    if path is not None and path.is_file():
        return path
    return _find_file(path, RUN_CHECKPOINTS)


def find_model(source: str) -> str:
    """What --model.init_from and --data.tokenizer mean: for a run's folder its checkpoint, else `source` itself."""
    return str(find_checkpoint(Path(source))) if Path(source, CHECKPOINTS).is_dir() else source


def run_of(path: Path) -> Path | None:
    """The run whose folder of checkpoints or of maps `path` is, or is in; None for any other path."""
    folder = path if path.is_dir() else path.parent
    if folder.absolute().name not in (CHECKPOINTS, ATTENTION):
        return None
    return (folder if folder.name else folder.absolute()).parent


def kept_checkpoint(run_dir: Path, step: int) -> Path:
    """The file of a step that --checkpoints.keep_steps names, whether it exists or not."""
    return run_dir / CHECKPOINTS / f"step_{step:08d}.ckpt"


def kept_steps(run_dir: Path) -> list[int]:
    """The steps whose checkpoints a run has kept, in ascending order."""
    names = (path.stem.removeprefix("step_") for path in (run_dir / CHECKPOINTS).glob("step_*.ckpt"))
    return sorted(int(name) for name in names if name.isdecimal())


def find_kept(path: Path | None, steps: Sequence[int]) -> list[Path]:
    """The checkpoints that a run has kept of these steps; `path` as in `find_checkpoint`.

    Raises FileNotFoundError if there is no such run, or no such checkpoint in it.
    """
    run_dir = find_checkpoint(path).absolute().parent.parent
    kept = kept_steps(run_dir)
    if missing := [step for step in steps if step not in kept]:
        there = f"only of {', '.join(map(str, kept))}" if kept else "only the best and the last"
        raise FileNotFoundError(
            f"{run_dir} has no checkpoint of step {missing[0]}, {there}: "
            f"train with --checkpoints.keep_steps '[{','.join(map(str, steps))}]'"
        )
    return [kept_checkpoint(run_dir, step) for step in steps]


def resume_point(path: Path) -> tuple[Path, Path]:
    """The run folder and the checkpoint for --resume.

    Args:
        path: a checkpoint, or a run folder, of which it is the newest checkpoint that is not damaged.

    Raises:
        FileNotFoundError: if there is no such run, or no checkpoint in it.
        ValueError: if the run's config is damaged, the given checkpoint, or every checkpoint of the run.
    """
    from model.checkpoint import verify_checkpoint  # torch takes a second to import, and most callers do not need it

    run_dir = find_run(path, CONFIG)
    _check_config(run_dir / CONFIG)
    if path.is_file():
        verify_checkpoint(path)
        return run_dir, path
    damage = None
    for name in (LAST, PREVIOUS, BEST):
        checkpoint = run_dir / CHECKPOINTS / name
        if not checkpoint.exists():
            continue
        try:
            verify_checkpoint(checkpoint)
        except ValueError as error:
            damage = error
            log.warning("%s", error)
            continue
        if damage:
            log.warning("Resuming from %s instead.", checkpoint)
        return run_dir, checkpoint
    raise damage or FileNotFoundError(f"{run_dir} has no checkpoint to resume from")


def new_run_dir(runs_dir: Path, name: str | None, config: str) -> Path:
    """The folder for a new run, not created yet: `name`, by default the config's name and the time.

    Raises:
        FileExistsError: if a run has this name.
        ValueError: if the name cannot be a folder's.
    """
    if name is None:
        stem = name = f"{Path(config).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        number = 1
        while (runs_dir / name).exists():  # two runs within a second
            number += 1
            name = f"{stem}-{number}"
    elif name in ("", ".", "..") or Path(name).name != name:
        raise ValueError(f"--name must be the name of a folder under {runs_dir}/, not {name!r}")
    run_dir = runs_dir / name
    if run_dir.exists():
        raise name_is_taken(run_dir)
    return run_dir


def name_is_taken(run_dir: Path) -> FileExistsError:
    return FileExistsError(f"{run_dir} exists: continue it with --resume {run_dir}, or choose another --name")


class FolderLock:
    """Keeps two processes from training in the same folder; released when its process ends, however it ends.

    Leaves no file. Does nothing on Windows and on file systems that cannot lock a folder.
    """

    def __init__(self) -> None:
        self.descriptor: int | None = None
        if hasattr(os, "register_at_fork"):  # a loader process that outlives a killed run must not hold the lock
            os.register_at_fork(after_in_child=self.release)

    def acquire(self, folder: Path) -> None:
        """Raises BlockingIOError if another process has it."""
        if os.name != "posix":
            return
        import fcntl

        self.release()
        self.descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise BlockingIOError(f"{folder} is being trained by another process: wait until that has ended") from None
        except OSError:
            self.release()

    def release(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def _find_file(path: Path | None, names: Sequence[str], hint: str = "") -> Path:
    """The first of the files `names` in the run that `path` means, see `find_run`."""

    def first_in(folder: Path) -> Path | None:
        return next((folder / name for name in names if (folder / name).is_file()), None)

    wanted = " or ".join(names)
    if path is None:
        found = [file for run in RUNS.glob("*") if (file := first_in(run))]
        if not found:
            raise FileNotFoundError(f"there is no run under {RUNS}/ with {wanted} yet: train one with python train.py")
        newest = max(found, key=lambda file: file.stat().st_mtime)
        _check_links(RUNS / newest.relative_to(RUNS).parts[0])
        return newest
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}: give a run's folder such as runs/NAME, or a file in it")
    folder = run_of(path) or (path if path.is_dir() else path.parent)
    if file := first_in(folder):
        _check_links(folder)
        return file
    raise FileNotFoundError(f"{path} is not a run folder with {wanted}, nor inside one{hint}")


def _check_links(run: Path) -> None:
    """Raises ValueError for a link or a pipe among the run's files, which would be read and written as the run's."""
    for path in (*run.iterdir(), *(run / CHECKPOINTS).glob("*"), *(run / ATTENTION).glob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ValueError(f"{path} is a link, or no file: put what it stands for in its place")


class _PlainLoader(yaml.SafeLoader):
    """Without references, by which a few lines can describe lists of any length."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it refers to itself")
        return super().compose_node(parent, index)


def read_config(path: Path) -> dict[str, Any]:
    """The values of a config.yaml; {} if there is no such file.

    Raises ValueError if it is not YAML of plain values.
    """
    if not path.exists():
        return {}
    try:
        settings = yaml.load(path.read_text(encoding="utf-8"), _PlainLoader)
    except (ValueError, TypeError, OverflowError, RecursionError, yaml.YAMLError):
        settings = None
    if not isinstance(settings, dict):
        raise ValueError(f"{path} is damaged: it is not YAML with options")
    return settings


def _check_config(path: Path) -> None:
    """Raises ValueError unless a run's config.yaml has the sections that every run writes."""
    if not {"model", "data", "trainer"} <= read_config(path).keys():
        raise ValueError(f"{path} is damaged: restore the options that the run was started with")
    text = path.read_bytes()
    if (written := CHECKSUM.search(text)) and int(written[1], 16) != zlib.crc32(text[: written.start()]):
        log.warning("%s is not as this run wrote it: unless you have edited it, it is damaged.", path)


def with_checksum(config: str) -> bytes:
    """The content of config.yaml. A single changed byte may be another learning rate, which YAML cannot notice."""
    return config.encode() + CHECKSUM_LINE % zlib.crc32(config.encode())
