"""Writes the report of a run as one HTML file: curves, samples, head scores and attention. It needs no network."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file too

from model.runs.folder import METRICS, REPORT, find_run
from model.runs.mistakes import exit_status
from scripts.parser import Parser, check_output


@exit_status("report.py")
def main(argv: list[str] | None = None) -> None:
    parser = Parser(prog="report.py", description=__doc__)
    add = parser.add_argument
    add("--run", type=Path, metavar="PATH", help="run folder, finished or not (default: the newest under runs/)")
    add("--output", type=Path, metavar="PATH", help=".html file to write (default: report.html in the run's folder)")
    arguments = parser.parse_args(argv)
    check_output(arguments.output, ".html")
    run = find_run(arguments.run, METRICS)
    output = arguments.output or run / REPORT

    from model.runs.results import write_report  # imports torch

    write_report(run, output)
    print(f"wrote {output}; open it in a browser")


if __name__ == "__main__":
    sys.exit(main())
