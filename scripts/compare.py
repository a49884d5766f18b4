"""Compares runs: what differs in options and code, and what they reached, as means over seeds with standard errors.

python scripts/compare.py runs/a runs/b 'runs/lr-*'                 a table; the others are compared with the first run
python scripts/compare.py 'runs/*' --output runs.html              curves and table as a page; also .svg .pdf .png .csv

Runs that differ only in --seed_everything are one row.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python scripts/...` finds model/

from model.files import write_atomically
from model.mistakes import Mistake
from model.runs.terminal import exit_status, say
from scripts.parser import Parser

if TYPE_CHECKING:
    from model.runs.comparison import Comparison

KINDS = (".svg", ".pdf", ".png", ".csv", ".html")


@exit_status("compare.py")
def main(argv: list[str] | None = None) -> None:
    options = build_parser().parse_args(argv)
    output = options.output
    kind = output and output.suffix.lower()
    if output and kind not in KINDS:
        raise Mistake(f"--output {output} must end in {' or '.join(KINDS)}")
    from model.runs.comparison import compare  # imports pandas, which is slow

    comparison = compare(options.runs, options.to)
    lines = [str(comparison)]
    if options.fit:
        lines.append(comparison.fit())
    if output:
        write_atomically(output, content(comparison, kind, options.x))
        lines.append(f"wrote {output}")
    say("\n".join(lines))


def content(comparison: Comparison, kind: str, axis: str) -> bytes:
    """Returns the file of this kind, one of KINDS."""
    if kind == ".csv":
        return comparison.rows.to_csv().encode()
    from model.pages.pictures import comparison_page, curves_figure, drawn  # imports matplotlib, which is slow

    curves = comparison.curves(axis).groupby("variant", sort=False)
    picture = drawn(lambda: curves_figure(curves, axis, comparison.measure), kind.replace("html", "svg"))
    return comparison_page(comparison.html(), picture) if kind == ".html" else picture


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="compare.py", description=__doc__)
    add = parser.add_argument
    add("runs", nargs="*", default=["runs/*"], help="run folders, or patterns in quotes (default: 'runs/*')")
    add("--to", type=float, metavar="LOSS", help="add the steps and minutes to this validation loss, in nats per token")
    add("--output", type=Path, metavar="PATH", help=f"file to write; its ending says what: {', '.join(KINDS)}")
    add(
        "--x",
        choices=["steps", "tokens", "seconds", "flops"],
        default="steps",
        help="what the curves are drawn over (default: steps)",
    )
    add(
        "--fit",
        action="store_true",
        help="fit loss = a + b C^-c to comparable variants of at least four sizes, where C is the FLOPs of training",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
