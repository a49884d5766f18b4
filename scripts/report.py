"""Writes what a run came to as one HTML file: curves, samples, head scores and its attention. No network needed."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file, Python looks for modules beside it and not in the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.parser import Parser, sentence, writing


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 0, 2 for a mistake, 130 when interrupted."""
    parser = Parser(prog="report.py", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--run", type=Path, metavar="PATH", help="run folder, finished or going on (default: the newest under runs/)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="PATH", help=".html file to write (default: report.html in the run's folder)"
    )
    arguments = parser.parse_args(argv)
    try:
        print(f"wrote {report(arguments.run, arguments.output)}; open it in a browser")
    except KeyboardInterrupt:
        print()
        return 130
    except (ValueError, OSError) as error:
        print(f"report.py: {sentence(error)}", file=sys.stderr)
        return 2
    return 0


def report(run: Path | None, output: Path | None) -> Path:
    """Writes the report and returns where it is. Raises ValueError or OSError with a sentence for the person."""
    from model.runs.records import write_report

    if output and output.suffix != ".html":
        raise ValueError(f"--output {output} must end in .html")
    if output and not output.parent.is_dir():
        raise FileNotFoundError(f"--output {output}: there is no folder {output.parent}")
    if output and output.is_dir():
        raise ValueError(f"--output {output} is a folder: name a file in it")
    run = find_run(run)
    output = output or run / "report.html"
    with writing(output):
        return write_report(run, output)


def find_run(path: Path | None, runs_dir: Path = Path("runs")) -> Path:
    """The run folder that a person means, by itself or by anything in it; None means the newest. FileNotFoundError."""
    if path is None:
        metrics = max(runs_dir.glob("*/metrics.csv"), key=lambda path: path.stat().st_mtime, default=None)
        if metrics is None:
            raise FileNotFoundError(f"there are no runs under {runs_dir}/ yet: train with python train.py")
        return metrics.parent
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}: give a run's folder, such as runs/NAME")
    for folder in (path, *path.absolute().parents[:3]):
        if (folder / "metrics.csv").exists():
            return folder
    raise FileNotFoundError(f"{path} is no run folder, nor in one: it has no metrics.csv")


if __name__ == "__main__":
    sys.exit(main())
