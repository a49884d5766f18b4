"""A run's folder: the files in it, and which run and which checkpoint a path means.

A run's folder holds:

    config.yaml                all options; --config with this file repeats the run
    code.json                  the code, command line and machine of each start and resume, see code.py
    state.json                 whether the run goes on, and its step
    metrics.csv                the metrics of each step in one row, see metrics.py
    samples.jsonl              the generated samples, one a line
    report.html                the run's page, which can be opened while it trains
    attention/                 maps and measurements by step, see model/inspection/recording.py
    checkpoints/last.ckpt      what --resume continues from
    checkpoints/best.ckpt      the lowest val/loss; what the scripts open
    checkpoints/step_*.ckpt    the steps of --checkpoints.keep_steps
    wandb/                     what Weights & Biases keeps
"""

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from model.files import RUN_CHECKPOINTS, SCORES_FILE, content_of
from model.mistakes import Missing, Mistake, listed, parsing

RUNS = Path("runs")  # where run folders are, unless trainer.default_root_dir says otherwise

# The files of a run, relative to its folder.
CONFIG = "config.yaml"
CODE = "code.json"
STATE = "state.json"
METRICS = "metrics.csv"
SAMPLES = "samples.jsonl"
REPORT = "report.html"
ATTENTION = "attention"
HEAD_SCORES = f"{ATTENTION}/{SCORES_FILE}"
CHECKPOINTS = "checkpoints"
ENDED = ("finished", "diverged")  # the states of runs that do not go on
BEST, LAST = RUN_CHECKPOINTS


def by_step(paths: Iterable[Path]) -> dict[int, Path]:
    """Returns the files that are named after a step, such as step_00000020.ckpt, by their steps."""
    digits = {path.stem.removeprefix("step_"): path for path in paths}
    return {int(name): path for name, path in digits.items() if name.isdecimal()}


@dataclass(frozen=True)
class Run:
    """A run's folder, and the file that the user's path `named`, if it named a file.

    A named checkpoint need not belong to a run: then `is_run` is false, and `folder` is only where the file lies.
    """

    folder: Path
    named: Path | None = None

    @classmethod
    def open(cls, path: Path | None = None, *needed: str) -> "Run":
        """Finds the run of a path: a run's folder or anything in it. None: the newest run under runs/.

        Unless `needed` is given, `path` may also be a checkpoint that belongs to no run. Then nothing else is checked.

        Args:
            needed: files such as METRICS. The run must have at least one of them; by default, one of RUN_CHECKPOINTS.

        Raises a `Mistake` if there is no such run, or for a link in its folder, see `refuse_links`.
        """
        if path is not None and not path.exists():
            raise Missing(f"{path} does not exist: give a run's folder such as runs/NAME, or a file in it")
        named = path if path and path.is_file() else None
        if named and named.suffix != ".ckpt" and cls(_folder_of(named)).first(CONFIG, *RUN_CHECKPOINTS):
            named = None  # another file of a run stands for the run
        runs = [cls(_folder_of(path), named)] if path else [*map(cls, RUNS.glob("*"))]
        if named and not needed:
            return runs[0]
        needed = needed or RUN_CHECKPOINTS
        runs = [run for run in runs if run.first(*needed)]
        if not runs:
            raise Missing(
                f"{path or RUNS} holds no run with {listed(needed, 'or')}: give a run's folder such as runs/NAME, or a "
                "file in it, or train one with python train.py"
            )
        run = max(runs, key=lambda run: run.first(STATE, LAST, *needed).stat().st_mtime)
        run.refuse_links()
        return run

    def first(self, *files: str) -> Path | None:
        """Returns the first of these files that the run has."""
        return next((self.folder / file for file in files if (self.folder / file).is_file()), None)

    def refuse_links(self) -> None:
        """Raises a `Mistake` for a symbolic link: the project would read and overwrite the file behind it.

        Only checkpoints/ may be one, because clusters keep large files on another disk.
        """
        checkpoints = self.folder / CHECKPOINTS
        files = [*self.folder.iterdir(), *checkpoints.glob("*"), *(self.folder / ATTENTION).glob("*")]
        for file in files:
            if (file.is_symlink() and file != checkpoints) or not (file.is_file() or file.is_dir()):
                raise Mistake(f"{file} is a link or a special file: replace it by a copy of what it points to")

    @property
    def is_run(self) -> bool:
        """Whether this is a run, not a checkpoint that belongs to none."""
        return self.named is None or self.named.parent.absolute().name == CHECKPOINTS

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint to open: the named file, else best.ckpt, else last.ckpt, else None."""
        return self.named or self.first(BEST, LAST)

    @property
    def resumed(self) -> Path:
        """The checkpoint to resume: the named file, else last.ckpt, else best.ckpt. Raises a `Mistake` for none."""
        checkpoint = self.named or self.first(LAST, BEST)
        if checkpoint is None:
            raise Missing(f"{self.folder} has no checkpoint to resume from")
        return checkpoint

    @property
    def state(self) -> str | None:
        """The state in the run's state.json, see `EndOfStep.show`; None if there is none."""
        path = self.folder / STATE
        with parsing(path):
            return json.loads(content_of(path) or "{}").get("state")

    @property
    def kept(self) -> dict[int, Path]:
        """The checkpoints that the run has kept by --checkpoints.keep_steps, by their steps in ascending order."""
        return by_step(sorted((self.folder / CHECKPOINTS).glob("step_*.ckpt")))

    def at(self, step: int) -> Path:
        """Returns the checkpoint of a step. Raises a `Mistake` if there is none.

        Opens only the checkpoints that may be of this step, so that a damaged one of another step does no harm.
        """
        from model.checkpoint import read_checkpoint  # torch takes a second to import, and most callers do not need it

        kept = self.kept if self.is_run else {}
        if step in kept:
            return kept[step]
        steps = {*kept}
        for path in (self.named, *(self.first(file) for file in RUN_CHECKPOINTS if self.is_run)):
            if path:
                steps.add(read_checkpoint(path, on_disk=True)["global_step"])
                if step in steps:
                    return path
        raise Missing(
            f"{self.folder if self.is_run else self.named} has no checkpoint of step {step}, only of "
            f"{listed([*map(str, sorted(steps))])}: name the steps to keep with --checkpoints.keep_steps when you train"
        )

    @property
    def resume_command(self) -> str:
        """The command, with the options of a run's config that a user must repeat, since they name code."""
        from model.runs.configs import CODE_OPTIONS, flat, is_plain, read_config

        options = [option for option in flat(read_config(self.folder / CONFIG)) if option[0] in CODE_OPTIONS]
        named = [f"--{name}={value}" for name, value in options if not is_plain(name, value)]
        return shlex.join(["python", "train.py", "--resume", str(self.folder), *named])

    @property
    def how_to_resume(self) -> str:
        """The end of a message: the command that resumes this run, or that it has no checkpoint yet."""
        if self.checkpoint is None:
            return "there is no checkpoint yet"
        return f"to continue from the last checkpoint: {self.resume_command}"


def _folder_of(path: Path) -> Path:
    """Returns the folder that `path` is or lies in; for checkpoints/ and attention/ of a run, the run's folder."""
    folder = path if path.is_dir() else path.parent
    if folder.absolute().name not in (CHECKPOINTS, ATTENTION):
        return folder
    return (folder if folder.name else folder.absolute()).parent
