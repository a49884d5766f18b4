"""Compares runs: what differs in options and code, and what they reached, as means over seeds with standard errors.

python scripts/compare.py runs/a runs/b 'runs/lr-*'                 a table; the others are compared with the first run
python scripts/compare.py 'runs/*' --output runs.html              curves and table as a page; also .svg .pdf .png .csv

Runs that differ only in --seed_everything are one row.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python scripts/...` finds model/

from model.files import write_atomically
from model.mistakes import Mistake
from model.runs.terminal import say
from scripts.parser import program

if TYPE_CHECKING:
    from model.runs.comparison import Comparison

KINDS = (".svg", ".pdf", ".png", ".csv", ".html")


def show(
    runs: list[str] | None = None,
    *,
    to: float | None = None,
    output: Path | None = None,
    x: Literal["steps", "tokens", "seconds", "flops"] = "steps",
    fit: bool = False,
) -> None:
    """Prints the table, and writes a file of it or of the curves.

    Args:
        runs: run folders, or patterns in quotes (default: 'runs/*')
        to: add the steps and minutes to this validation loss, in nats per token
        output: file to write; its ending says what: .svg, .pdf, .png, .csv, .html
        x: what the curves are drawn over
        fit: fit loss = a + b C^-c to comparable variants of at least four sizes, where C is the FLOPs of training
    """
    kind = output and output.suffix.lower()
    if output and kind not in KINDS:
        raise Mistake(f"--output {output} must end in {' or '.join(KINDS)}")
    from model.runs.comparison import compare  # imports pandas, which is slow

    comparison = compare(runs or ["runs/*"], to)
    lines = [str(comparison)]
    if fit:
        lines.append(comparison.fit())
    if output:
        write_atomically(output, content(comparison, kind, x))
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


main = program(show, __doc__)
if __name__ == "__main__":
    sys.exit(main())
