"""Attention maps and head scores as pictures (PNG, SVG, PDF), drawn by matplotlib without a display.

Import this only to draw: matplotlib takes a second. Weights and scores may be arrays or tensors on the CPU.

Shapes: L layers, H heads, T tokens; R rows and C columns of maps.
"""

import io
import math
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, FuncNorm, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from model.files import write_atomically
from model.pages.describe import shortened, visible
from model.pages.export import Head, Heads, choose_maps
from model.pages.history import History
from model.pages.template import COLOURS, PALETTES

DPI = 72  # dots an inch, so that a point, in which matplotlib measures text, is a pixel
MAX_SIDE = 4000  # pixels
MAX_COLUMNS = 5  # of panels with curves
MAX_PIXELS = 100_000_000  # of a PNG, which takes four bytes for each while it is drawn
PIXELS = 600  # of the longer side of a picture without text, unless there are more weights
GAP = 1 / 16  # between two maps, of the side of one
LABEL_PITCH = 10  # pixels from one token label to the next, below which they would touch
MAX_LABEL = 12  # characters of a token
NAMED_HEADS = 12  # the most lines that are told apart by head; more are told apart by layer
FONT = "DejaVu Sans Mono"  # comes with matplotlib
CHARACTER = 0.602  # width of its characters, of its size
# What is drawn: its name and palette, its least value, and the ticks of its colour bar.
SCALES = (
    ("weight", "weights", 0, (0, 0.01, 0.1, 0.25, 0.5, 1)),
    ("difference", "differences", -1, (-1, -0.5, -0.1, 0, 0.1, 0.5, 1)),
)
# The colours of what is around the maps.
THEMES = {
    "light": {"paper": "#ffffff", "ink": "#191d23", "soft": "#5c6672", "line": "#b8bcc4"},
    "dark": {"paper": "#14181e", "ink": "#e7eaee", "soft": "#98a3b0", "line": "#4a525c"},
}


def draw_maps(
    shown: Sequence[History], output: Path, step: int | None, probe: str, heads: Heads, **options: Any
) -> None:
    """A picture of the maps at a step, by default the last; of two models with their difference."""
    steps, maps = choose_maps(shown, step, probe, heads)
    names = [f"{history.name}, step {at}" for history, at in zip(shown, steps, strict=True)]
    if heads is None:
        layers, width = maps[0].shape[:2]
        rows, columns = [f"layer {layer}" for layer in range(layers)], [f"head {head}" for head in range(width)]
    else:
        maps = [np.stack([array[head] for head in heads])[:, None] for array in maps]
        rows, columns = [f"head {layer}.{head}" for layer, head in heads], [""]
    if len(shown) == 2:
        names = [f"A: {names[0]}", f"B: {names[1]}"]
        options["differences"] = maps[0] - maps[1]
        columns = [f"{model}, {name}".removesuffix(", ") for model in ("A", "B", "A − B") for name in columns]
    elif heads is not None:  # side by side
        maps, rows, columns = [maps[0].swapaxes(0, 1)], columns, rows
    title, labels = f"{'; '.join(names)}: rows attend to columns", shown[0].probes[probe].labels
    attention_grid(np.concatenate(maps, axis=1), labels, output, title, rows=rows, columns=columns, **options)


def attention_grid(
    weights: ArrayLike, labels: Sequence[str], path: Path, title: str = "", *, dpi: int | None = None, **options: Any
) -> None:
    """Writes `grid_figure`, which takes the same options, as the ending of `path` says: .png, .svg or .pdf."""
    _write(grid_figure(weights, labels, title, **options), path, dpi)


def grid_figure(
    weights: ArrayLike,
    labels: Sequence[str],
    title: str = "",
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    differences: ArrayLike | None = None,
    theme: str = "light",
    max_side: int = MAX_SIDE,
) -> Figure:
    """One picture of maps in rows and columns, tokens along the edges.

    Colour grows with the square root of a weight, because most of what a head does happens below 0.1.

    Args:
        weights: (R, C, T, T), queries by keys; by default a row is a layer and a column a head.
        labels: the T tokens as text.
        rows, columns: their names; those of the differences follow those of the weights.
        differences: (R, C', T, T) between weights, drawn to their right.
        max_side: pixels of the longer side without the labels. Below ten pixels a token, only some tokens are labelled.
    """
    weights, size = np.asarray(weights, dtype=np.float32), len(labels)
    if weights.ndim != 4 or weights.shape[2] != weights.shape[3]:
        raise ValueError(f"a grid needs weights (L, H, T, T), but these are {weights.shape}")
    if size != weights.shape[3]:
        raise ValueError(f"the maps have {weights.shape[3]} tokens, but there are {size} labels")
    rows = [f"layer {layer}" for layer in range(len(weights))] if rows is None else rows
    columns = [f"head {head}" for head in range(weights.shape[1])] if columns is None else columns
    parts = [weights] if differences is None else [weights, np.asarray(differences, dtype=np.float32)]

    wide, tall = (size * (count + (count - 1) * GAP) for count in (len(columns), len(rows)))  # in weights
    pitch = min(np.clip(400 / size, 16, 40), max_side / max(wide, tall))  # of a weight; all lengths are in pixels
    side = size * (math.floor(pitch) if pitch > 1 else pitch)  # of a map
    lefts, tops = (np.arange(len(names)) * (side + round(GAP * side)) for names in (columns, rows))
    width, height = lefts[-1] + side, tops[-1] + side
    # A large picture is viewed from further away, but "layer 10" has to fit beside its maps.
    heading = round(np.clip(min(max(width, height) / 100, side / 5), 13, 36))
    bar_size = max(11, round(0.6 * heading))  # of its text
    line, soft = THEMES[theme]["line"], THEMES[theme]["soft"]
    root = (lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda x: np.sign(x) * np.square(x))
    with matplotlib.rc_context(_settings(theme)):
        # The maps fill the figure. What stands around them is outside of it, and `_write` makes room for it.
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        start = 0
        for number, (part, (name, palette, least, ticks)) in enumerate(zip(parts, SCALES, strict=False)):
            colours = {"cmap": _colour_map(PALETTES[theme][palette]), "norm": FuncNorm(root, least, 1)}
            for row, column in np.ndindex(part.shape[:2]):
                left, top = lefts[start + column], tops[row]
                extent = (left, left + side, top + side, top)
                # Nearest where a weight has pixels, and not smoothed by those who open an SVG or a PDF.
                kind = "none" if pitch >= 1 else "auto"
                image = axes.imshow(part[row, column], **colours, extent=extent, aspect="auto", interpolation=kind)
                axes.add_patch(Rectangle((left, top), side, side, fill=False, edgecolor=line, clip_on=False))
            start += part.shape[1]
            right = width + (1 + number * 8) * bar_size + heading
            bar_height = min(max(height, 60), 20 * bar_size)
            box = figure.add_axes((right / width, 1 - bar_height / height, bar_size / width, bar_height / height))
            bar = figure.colorbar(image, cax=box, ticks=ticks, format="%g")
            bar.ax.tick_params(labelsize=bar_size, length=3)
            bar.set_label(name, fontsize=bar_size + 1)

        step = math.ceil(LABEL_PITCH * size / side)
        texts = {(number + 0.5) * side / size: printable(labels[number]) for number in range(0, size, step)}
        small = {"fontsize": np.clip(0.8 * side / size, 8, 12), "fontfamily": [FONT, "monospace"]}
        large = {"fontsize": heading, "color": soft}
        beside = CHARACTER * small["fontsize"] * max(map(len, texts.values())) + 0.7 * heading
        for left, column in zip(lefts, columns, strict=True):
            axes.text(left + side / 2, -6, column, ha="center", **large)
            for place, text in texts.items():
                axes.text(left + place, height + 4, text, ha="center", va="top", rotation=90, **small)
        for top, row in zip(tops, rows, strict=True):
            axes.text(-beside, top + side / 2, row, ha="right", va="center", rotation=90, **large)
            for place, text in texts.items():
                axes.text(-4, top + place, text, ha="right", va="center_baseline", **small)
        axes.text(0, -2.5 * heading, _one_line(title), fontsize=1.2 * heading)
    return figure


def draw_scores(
    runs: Sequence[History], path: Path, heads: Heads = None, *, theme: str = "light", dpi: int | None = None
) -> None:
    """Writes a picture of scores over steps: for each run a panel a score, in it a line a head.

    Heads that formed have a dot at the step at which they did, and the first of a panel a note.

    heads: those that are drawn, by default all. A few have a colour each, many one for each layer.

    Raises ValueError for a run with fewer than two snapshots.
    """
    if alone := [run.name for run in runs if len(run.snapshots) < 2]:
        raise ValueError(f"{alone[0]} was recorded at one step only: --scores needs a run with several steps")
    names = list(runs[0].snapshots[0].scores)
    columns = min(len(names), MAX_COLUMNS)
    rows = math.ceil(len(names) / columns)  # of a run
    steps = [snapshot.step for run in runs for snapshot in run.snapshots]
    drawn = [list(np.ndindex(run.snapshots[0].shape)) if heads is None else heads for run in runs]
    label = "layer {}" if heads is None or len(heads) > NAMED_HEADS else "head {}.{}"
    labels = dict.fromkeys(label.format(*head) for heads_of_run in drawn for head in heads_of_run)
    places = np.linspace(0.3, 0.9, len(labels))  # all of them are visible on the paper
    colours = dict(zip(labels, _colour_map(PALETTES[theme]["weights"])(places), strict=True))
    with matplotlib.rc_context(_settings(theme)):
        figure = Figure(figsize=(3.2 * columns, 2.8 * rows * len(runs)), dpi=100, layout="constrained")
        grid = figure.subplots(rows * len(runs), columns, sharex=True, sharey=True, squeeze=False)
        grid = grid.reshape(len(runs), -1)
        for empty in grid[:, len(names) :].flat:
            empty.set_visible(False)
        for run, heads_of_run, panels in zip(runs, drawn, grid, strict=True):
            lines = {head: colours[label.format(*head)] for head in heads_of_run}
            for name, axes in zip(names, panels, strict=False):
                _draw_curves(axes, run, name, lines)
                axes.set(title=name.replace("_", " "), ylim=(0, 1.02), xlim=(min(steps), max(1, *steps)))
            if len(runs) > 1:
                panels[0].set_ylabel(_one_line(run.name))
        figure.supxlabel("step")
        handles = [Line2D([], [], color=colour, label=name) for name, colour in colours.items()]
        figure.legend(handles=handles, loc="outside right center", frameon=False)
        if len(runs) == 1:  # two have their names beside their rows
            figure.suptitle(_one_line(runs[0].name), x=0.01, ha="left")
    _write(figure, path, dpi)


def mosaic_pixels(weights: ArrayLike) -> np.ndarray:
    """Maps (L, H, T, T) as bare pixels, uint8 (height, width, 3), layers down and heads across.

    The colours are those of `attention_grid`. Without text this takes a hundredth of the time.
    """
    maps = np.sqrt(np.asarray(weights, dtype=np.float32).clip(0, 1))
    maps = np.pad(maps, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)  # lines between them
    return score_pixels(np.block([list(layer) for layer in maps])[:-1, :-1])


def score_pixels(scores: ArrayLike) -> np.ndarray:
    """Values (height, width) in [0, 1], such as a score of every head (L, H), as uint8 (height', width', 3).

    NaN is grey, and each value a square, about PIXELS in all on the longer side.
    """
    values = np.asarray(scores, dtype=np.float32)
    pixels = _colour_map().with_extremes(bad="#c8c8c8")(values, bytes=True)[..., :3]
    zoom = max(1, PIXELS // max(values.shape))
    return pixels.repeat(zoom, axis=0).repeat(zoom, axis=1)


def printable(token: str) -> str:
    """A token as the page writes it, in at most MAX_LABEL characters; what FONT cannot draw is escaped."""
    font = get_font(findfont(FONT))

    def drawn(char: str) -> str:
        sign = visible(char)
        # Marks would stand on the character before.
        fits = all(font.get_char_index(ord(one)) and unicodedata.category(one)[0] not in "CMZ" for one in sign)
        return sign if fits else char.encode("unicode_escape").decode()

    return shortened("".join(map(drawn, token[: MAX_LABEL + 1])) or visible(token), MAX_LABEL)


def _draw_curves(axes: Axes, run: History, name: str, heads: Mapping[Head, Any]) -> None:
    """One panel: a score of these heads, each in its colour."""
    steps = [snapshot.step for snapshot in run.snapshots]
    values = np.stack([snapshot.scores[name] for snapshot in run.snapshots])  # (N, L, H)
    marks = []
    for (layer, head), colour in heads.items():
        axes.plot(steps, values[:, layer, head], color=colour, linewidth=1.5, alpha=0.85)
        step = run.formation[name].get(f"{layer}.{head}")
        if step is not None:
            value = values[steps.index(step), layer, head]
            marks.append((step, value, layer, head))
            dot = {"color": colour, "markeredgecolor": axes.get_facecolor(), "markersize": 7}
            axes.plot(step, value, "o", clip_on=False, **dot)
    if marks:
        step, value, layer, head = min(marks)
        note = f"head {layer}.{head}\nforms at {step}"
        axes.annotate(note, (step, value), (-8, 0), textcoords="offset points", ha="right", va="center", fontsize=9)
    # A logarithmic axis, because most changes happen early; linear up to step 1, so that 0 has a place.
    axes.set_xscale("symlog", linthresh=1)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", linewidth=0.5)
    axes.tick_params(length=0, labelsize=9)


def _settings(theme: str) -> dict[str, Any]:
    """What matplotlib has as defaults while a figure is made. Text is never parsed as mathematics."""
    colours = THEMES[theme]
    inks = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    settings = dict.fromkeys(inks, colours["ink"]) | dict.fromkeys(("axes.edgecolor", "grid.color"), colours["line"])
    settings |= dict.fromkeys(("figure.facecolor", "axes.facecolor"), colours["paper"])
    return settings | {"text.parse_math": False}


def _colour_map(colours: Sequence[str] = COLOURS) -> Colormap:
    return LinearSegmentedColormap.from_list("ink", colours)


def _one_line(text: str) -> str:
    """A name or a title that a file of any kind can hold."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _write(figure: Figure, path: Path, dpi: int | None) -> None:
    """Text stays text, and the same numbers make the same file. Raises ValueError for a PNG that is too large."""
    # Curves have a layout that keeps all within the figure; around maps there is more.
    box = figure.bbox_inches if figure.get_layout_engine() else figure.get_tightbbox().padded(12 / DPI)
    width, height = np.ceil(box.size * (dpi or figure.dpi)).astype(int)
    if path.suffix == ".png" and width * height > MAX_PIXELS:
        raise ValueError(f"{path} would have {width:,} x {height:,} pixels: choose a smaller --dpi, or fewer heads")
    settings = {"svg.fonttype": "none", "svg.hashsalt": "glassgpt", "pdf.fonttype": 42, "image.composite_image": False}
    no_date = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[path.suffix]
    buffer = io.BytesIO()
    with matplotlib.rc_context(settings):
        figure.savefig(buffer, format=path.suffix[1:], dpi=dpi or "figure", metadata=no_date, bbox_inches=box)
    write_atomically(path, buffer.getvalue())
