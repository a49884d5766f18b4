"""A run: its folder, the files in it, and what a person means by a path."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from model.files import RUN_CHECKPOINTS
from model.mistakes import Missing, Mistake, listed

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


@dataclass(frozen=True)
class Run:
    """A run's folder; with `named` if a person means one of its checkpoints, or a checkpoint that is of no run."""

    folder: Path
    named: Path | None = None

    @classmethod
    def open(cls, path: Path | None = None, *needed: str) -> "Run":
        """What a person means by `path`: a run's folder, or anything in it; None: the run under runs/ that is newest.

        Args:
            needed: the run must have one of these files, such as METRICS; without any one of its checkpoints.

        Raises a `Mistake` for that, and if a file of the run is a link, but for the folder of checkpoints of a run that
        is named.
        """
        if path is not None and not path.exists():
            raise Missing(f"there is no {path}: give a run's folder such as runs/NAME, or a file in it")
        if path is not None and path.is_file() and not needed:
            return cls(_folder_of(path), path)
        needed = needed or RUN_CHECKPOINTS
        wanted = " or ".join(needed)
        if path is None:
            runs = [run for run in map(cls, RUNS.glob("*")) if run.first(*needed)]
            if not runs:
                raise Missing(f"there is no run under {RUNS}/ with {wanted} yet: train one with python train.py")
            run = max(runs, key=lambda run: run.first(*needed).stat().st_mtime)
        else:
            run = cls(_folder_of(path), path if path.is_file() else None)
            if not run.first(*needed):
                raise Missing(f"{path} is not a run folder with {wanted}, nor inside one")
        run.refuse_links(may_link_checkpoints=path is not None)
        return run

    def first(self, *files: str) -> Path | None:
        """The first of these files that the run has."""
        return next((self.folder / file for file in files if (self.folder / file).is_file()), None)

    def refuse_links(self, may_link_checkpoints: bool) -> None:
        """What a link stands for would be read and written as the run's. Clusters keep checkpoints elsewhere."""
        checkpoints = self.folder / CHECKPOINTS
        files = [*self.folder.iterdir(), *checkpoints.glob("*"), *(self.folder / ATTENTION).glob("*")]
        for file in files:
            is_kept_elsewhere = may_link_checkpoints and file == checkpoints and file.is_dir()
            if (file.is_symlink() and not is_kept_elsewhere) or not (file.is_file() or file.is_dir()):
                raise Mistake(f"{file} is a link, or no file: put what it stands for in its place")

    @property
    def is_run(self) -> bool:
        """Whether there is a run, and not a checkpoint alone."""
        return self.named is None or self.named.parent.absolute().name == CHECKPOINTS

    @property
    def checkpoint(self) -> Path | None:
        """The one that is meant: the one named, else the best, else the last."""
        return self.named or self.first(BEST, LAST)

    @property
    def resumed(self) -> Path:
        """The checkpoint that --resume goes on from: the one named, else the last. Raises a `Mistake` for none."""
        found = self.named or self.first(LAST, BEST)
        if found is None:
            raise Missing(f"{self.folder} has no checkpoint to resume from")
        return found

    def kept(self, step: int) -> Path:
        """The file of a step that --checkpoints.keep_steps names, whether it exists or not."""
        return self.folder / CHECKPOINTS / f"step_{step:08d}.ckpt"

    @property
    def kept_steps(self) -> list[int]:
        """The steps whose checkpoints the run has kept, in ascending order."""
        files = (self.folder / CHECKPOINTS).glob("step_*.ckpt") if self.is_run else ()
        names = [path.stem.removeprefix("step_") for path in files]
        return sorted(int(name) for name in names if name.isdecimal())

    def at(self, step: int) -> Path:
        """The checkpoint of a step: kept, named, the best or the last.

        Raises a `Mistake` if there is none, or one of the last three must be read and is damaged.
        """
        from model.checkpoint import read_checkpoint  # torch takes a second to import, and most callers do not need it

        there = {kept: self.kept(kept) for kept in self.kept_steps}
        others = [self.named, *(self.folder / name for name in RUN_CHECKPOINTS if self.is_run)]
        for other in others if step not in there else ():
            if other is not None and other.is_file():
                there.setdefault(read_checkpoint(other, on_disk=True)["global_step"], other)
        if step not in there:
            raise Missing(
                f"{self.folder if self.is_run else self.named} has no checkpoint of step {step}, only of "
                f"{listed([*map(str, sorted(there))])}: train with --checkpoints.keep_steps, which names the steps to "
                "keep"
            )
        return there[step]

    @property
    def resume_command(self) -> str:
        return f"python train.py --resume {shlex.quote(str(self.folder))}"

    @property
    def how_to_resume(self) -> str:
        """For the end of a message: the command that resumes this run. Says so if the run has no checkpoint yet."""
        if self.checkpoint is None:
            return "there is no checkpoint yet"
        return f"to continue from the last checkpoint: {self.resume_command}"


def _folder_of(path: Path) -> Path:
    """The folder that `path` is or lies in; of a run's checkpoints or maps, the run's."""
    folder = path if path.is_dir() else path.parent
    if folder.absolute().name not in (CHECKPOINTS, ATTENTION):
        return folder
    return (folder if folder.name else folder.absolute()).parent
