"""What all pictures (PNG, SVG, PDF) have in common, and the curves of several runs. Drawn by matplotlib, no display."""

import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
from matplotlib.figure import Figure

DPI = 72  # makes a point, matplotlib's unit of text sizes, one pixel
LINES = matplotlib.cycler(linestyle=["-", "--", ":", "-."])
LABEL_LENGTH = 100  # characters in a line of a variant's name
SETTINGS = {
    "text.parse_math": False,  # a "$" in a token begins no formula
    "svg.fonttype": "none",  # keeps text as text, not as outlines
    "pdf.fonttype": 42,
}


def drawn(draw: Callable[[], Figure], kind: str) -> bytes:
    """Returns the file of the figure that `draw` makes. kind: .png, .svg or .pdf."""
    content = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        # bbox_inches makes room for titles, labels and legends, which lie outside the figure.
        draw().savefig(content, format=kind[1:], bbox_inches="tight")
    return content.getvalue()


def curves_figure(curves: Iterable[tuple[str, Mapping[str, Any]]], x_label: str, y_label: str) -> Figure:
    """Draws a curve for each variant, with a band; a single point with a bar.

    curves: each variant's name, and its "x", "y" and "error".
    """
    figure = Figure((640 / DPI, 400 / DPI), dpi=DPI)
    axes = figure.add_axes((0, 0, 1, 1), xlabel=x_label, ylabel=y_label)
    axes.set_prop_cycle(LINES * matplotlib.rcParams["axes.prop_cycle"])  # each line with all colours
    for variant, curve in curves:
        x, y, error = curve["x"], curve["y"], curve["error"]
        is_point = len(x) == 1  # it has no line and no band
        axes.errorbar(
            x,
            y,
            error if is_point else None,
            marker="o" if is_point else "",
            label=fill(variant, LABEL_LENGTH),
        )
        axes.fill_between(x, y - error, y + error, alpha=0.25, linewidth=0)
    axes.locator_params("x", integer=True)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.1), frameon=False)
    return figure


def comparison_page(table: str, picture: bytes) -> bytes:
    """Returns an offline page. table: HTML. picture: an SVG file."""
    svg = picture.decode()
    page = Path(__file__).with_name("comparison.html").read_text(encoding="utf-8")
    return page.replace("<!-- table -->", table).replace("<!-- curves -->", svg[svg.index("<svg") :]).encode()
