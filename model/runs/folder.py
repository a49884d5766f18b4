"""A run's folder: the files in it, and which folder or checkpoint a person means."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from model.checks import Missing, Mistake, listed
from model.files import RUN_CHECKPOINTS

RUNS = Path("runs")  # where run folders are, unless trainer.default_root_dir says otherwise

# The files of a run, relative to its folder.
CONFIG = "config.yaml"
METRICS = "metrics.csv"
SAMPLES = "samples.jsonl"
REPORT = "report.html"
ATTENTION = "attention"
HEAD_SCORES = "attention/scores.jsonl"
CHECKPOINTS = "checkpoints"
BEST, LAST = RUN_CHECKPOINTS


def find_run(path: Path | None, *files: str, hint: str = "") -> Path:
    """The run folder that a person means: `path` or what it lies in; None: the run under runs/ with the newest file.

    Of `files`, such as METRICS, the run must have one; the first that it has counts. `hint` ends the sentence for a
    `path` without such a run. Raises a `Mistake` for that, and if a file of the run is a link, but for the
    folder of checkpoints of a run that is named.
    """
    wanted = " or ".join(files)
    if path is None:
        runs = [run for run in RUNS.glob("*") if _first_file(run, files)]
        if not runs:
            raise Missing(f"there is no run under {RUNS}/ with {wanted} yet: train one with python train.py")
        run = max(runs, key=lambda run: _first_file(run, files).stat().st_mtime)
    elif not path.exists():
        raise Missing(f"there is no {path}: give a run's folder such as runs/NAME, or a file in it")
    else:
        run = run_of(path) or (path if path.is_dir() else path.parent)
        if not _first_file(run, files):
            raise Missing(f"{path} is not a run folder with {wanted}, nor inside one{hint}")
    # Clusters keep checkpoints elsewhere: that folder may be a link in a run that the person names.
    linked = run / CHECKPOINTS if path is not None and (run / CHECKPOINTS).is_dir() else None
    for file in (*run.iterdir(), *(run / CHECKPOINTS).glob("*"), *(run / ATTENTION).glob("*")):
        # What a link stands for would be read and written as the run's.
        if (file.is_symlink() and file != linked) or not (file.is_file() or file.is_dir()):
            raise Mistake(f"{file} is a link, or no file: put what it stands for in its place")
    return run


def _first_file(run: Path, files: Sequence[str]) -> Path | None:
    return next((run / file for file in files if (run / file).is_file()), None)


def find_checkpoint(path: Path | None = None) -> Path:
    """The checkpoint that a person means: a file, or the best.ckpt, else the last.ckpt of a run, as for `find_run`."""
    if path is not None and path.is_file():
        return path
    return _first_file(find_run(path, *RUN_CHECKPOINTS), RUN_CHECKPOINTS)


def find_model(source: str) -> str:
    """What --model.init_from and --data.tokenizer mean: for a run's folder its checkpoint, else `source` itself."""
    return str(find_checkpoint(Path(source))) if Path(source, CHECKPOINTS).is_dir() else source


def run_of(path: Path) -> Path | None:
    """The run whose folder of checkpoints or of maps `path` is, or is in; None for any other path."""
    folder = path if path.is_dir() else path.parent
    if folder.absolute().name not in (CHECKPOINTS, ATTENTION):
        return None
    return (folder if folder.name else folder.absolute()).parent


def resume_command(run_dir: Path) -> str:
    return f"python train.py --resume {shlex.quote(str(run_dir))}"


def has_checkpoint(run_dir: Path) -> bool:
    """Whether the run can be opened or resumed."""
    return any((run_dir / name).exists() for name in RUN_CHECKPOINTS)


def how_to_resume(run_dir: Path) -> str:
    """For the end of a message: the command that resumes this run. Says so if the run has no checkpoint yet."""
    if not has_checkpoint(run_dir):
        return "there is no checkpoint yet"
    return f"to continue from the last checkpoint: {resume_command(run_dir)}"


def kept_checkpoint(run_dir: Path, step: int) -> Path:
    """The file of a step that --checkpoints.keep_steps names, whether it exists or not."""
    return run_dir / CHECKPOINTS / f"step_{step:08d}.ckpt"


def kept_steps(run_dir: Path) -> list[int]:
    """The steps whose checkpoints a run has kept, in ascending order."""
    names = (path.stem.removeprefix("step_") for path in (run_dir / CHECKPOINTS).glob("step_*.ckpt"))
    return sorted(int(name) for name in names if name.isdecimal())


def find_kept(path: Path | None, steps: Sequence[int]) -> list[Path]:
    """The checkpoints of these steps that a run has: kept, the best or the last; `path` as in `find_checkpoint`.

    Raises a `Mistake` if there is no such run or checkpoint, or the best or last must be read and is damaged.
    """
    from model.checkpoint import read_checkpoint  # torch takes a second to import, and most callers do not need it

    checkpoint = find_checkpoint(path)
    run_dir = run_of(checkpoint)
    there = {step: kept_checkpoint(run_dir, step) for step in (kept_steps(run_dir) if run_dir else [])}
    if not there.keys() >= set(steps):
        for other in (checkpoint, *(run_dir / name for name in RUN_CHECKPOINTS if run_dir)):
            if other.is_file():
                there.setdefault(read_checkpoint(other, on_disk=True)["global_step"], other)
    if missing := [step for step in steps if step not in there]:
        raise Missing(
            f"{run_dir or checkpoint} has no checkpoint of step {missing[0]}, only of "
            f"{listed([*map(str, sorted(there))])}: train with --checkpoints.keep_steps, which names the steps to keep"
        )
    return [there[step] for step in steps]


def resume_point(path: Path) -> tuple[Path, Path]:
    """The run folder and the checkpoint for --resume: `path` itself, or the run's last. Raises a `Mistake` for none."""
    run_dir = find_run(path, CONFIG)
    checkpoint = path if path.is_file() else _first_file(run_dir, RUN_CHECKPOINTS[::-1])
    if checkpoint is None:
        raise Missing(f"{run_dir} has no checkpoint to resume from")
    return run_dir, checkpoint
