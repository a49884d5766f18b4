"""Attention maps and head scores as pictures (PNG, SVG, PDF), drawn by matplotlib without a display.

Shapes: L layers, H heads, T tokens; R rows and C columns of maps. Weights and scores may be arrays or tensors on the
CPU. matplotlib is imported only when something is drawn, so that other runs do not wait for it.
"""

from __future__ import annotations

import io
import math
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from model.files import write_atomically
from model.pages.describe import shortened, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

    from model.pages.captures import Captures

DPI = 72  # dots an inch, so that a point, in which matplotlib measures text, is a pixel
MAX_SIDE = 4000  # pixels
MAX_COLUMNS = 5  # of panels with curves
MAX_PIXELS = 100_000_000  # of a PNG, which takes four bytes for each while it is drawn
MAX_SHAPES = 20_000  # weights that an SVG or a PDF draws as shapes; more are an image in it, with a pixel for each
PIXELS = 600  # of the longer side of a picture without text, unless there are more weights
MARGIN = 12  # pixels around a picture
LABEL_PITCH = 10  # pixels from one token label to the next, below which they would touch
MAX_LABEL = 12  # characters of a token
NAMED_HEADS = 12  # the most lines that are told apart by head; more are told apart by layer
FONT = "DejaVu Sans Mono"  # comes with matplotlib
# From white to dark blue with steadily falling lightness, so that it can be read without colour vision.
COLOURS = ("#ffffff", "#cfe8e3", "#7cc3cb", "#3a8dba", "#275c9c", "#1d2f6f", "#0d1238")
# The colours of the page's maps, of weights from 0 to 1 and of differences from -1 to 1, where 0 is that of the paper.
PALETTES = {
    "light": {
        "weights": COLOURS,
        "differences": ("#8a3600", "#dd8333", "#fbe1c5", "#ffffff", "#cbdff3", "#4a8bc2", "#0f3a70"),
    },
    "dark": {
        "weights": ("#14181e", "#173150", "#1f5f8b", "#3097ab", "#6cc7a4", "#c3e69a", "#fffbd0"),
        "differences": ("#ffb678", "#c8641e", "#57300f", "#14181e", "#15395c", "#3d83c0", "#a9d6ff"),
    },
}
# And of what is around the maps.
THEMES = {
    "light": {"paper": "#ffffff", "ink": "#191d23", "soft": "#5c6672", "line": "#b8bcc4"},
    "dark": {"paper": "#14181e", "ink": "#e7eaee", "soft": "#98a3b0", "line": "#4a525c"},
}


def attention_grid(
    weights: ArrayLike, labels: Sequence[str], path: Path, title: str = "", *, dpi: int | None = None, **options: Any
) -> None:
    """Writes `grid_figure`, which takes the same options, as the ending of `path` says: .png, .svg or .pdf."""
    _write(grid_figure(weights, labels, title, vector=path.suffix != ".png", **options), path, dpi)


def grid_figure(
    weights: ArrayLike,
    labels: Sequence[str],
    title: str = "",
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    differences: ArrayLike | None = None,
    theme: str = "light",
    vector: bool = False,
    max_side: int = MAX_SIDE,
) -> Figure:
    """One picture of maps in rows and columns, tokens along the edges.

    Colour grows with the square root of a weight, because most of what a head does happens below 0.1.

    Args:
        weights: (R, C, T, T), queries by keys; by default a row is a layer and a column a head.
        labels: the T tokens as text.
        rows, columns: their names; those of the differences follow those of the weights.
        differences: (R, C', T, T) between weights, drawn to their right.
        vector: for a file that keeps shapes: up to MAX_SHAPES weights become shapes.
        max_side: pixels of the longer side without the labels. Below ten pixels a token, only some tokens are labelled.
    """
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    weights = np.asarray(weights, dtype=np.float32)
    if weights.ndim != 4 or weights.shape[2] != weights.shape[3]:
        raise ValueError(f"a grid needs weights (L, H, T, T), but these are {weights.shape}")
    if len(labels) != weights.shape[3]:
        raise ValueError(f"the maps have {weights.shape[3]} tokens, but there are {len(labels)} labels")
    parts = [weights] if differences is None else [weights, np.asarray(differences, dtype=np.float32)]
    rows = [f"layer {layer}" for layer in range(len(weights))] if rows is None else rows
    columns = [f"head {head}" for head in range(weights.shape[1])] if columns is None else columns
    labels = [printable(label) for label in labels]

    size = len(labels)
    gap = max(1, round(size / 16))
    tops, lefts = (np.arange(len(names)) * (size + gap) for names in (rows, columns))
    high, wide = tops[-1] + size, lefts[-1] + size  # in weights
    pitch = min(np.clip(400 / size, 16, 40), max_side / max(high, wide))  # pixels of a weight's square
    if pitch > 1:
        pitch = math.floor(pitch)  # whole pixels for each weight keep the squares square
    height, width = high * pitch, wide * pitch
    # A large picture is viewed from further away, but "layer 10" has to fit beside its maps.
    heading_size = round(np.clip(min(max(width, height) / 100, size * pitch / 5), 13, 36))
    bar_size = max(11, round(0.6 * heading_size))  # of its text
    line = THEMES[theme]["line"]
    with matplotlib.rc_context(_settings(theme)):
        # The maps fill the figure. What stands around them is outside of it, and `_write` makes room for it.
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        axes = figure.add_axes((0, 0, 1, 1), xlim=(-0.5, wide - 0.5), ylim=(high - 0.5, -0.5), frame_on=False)
        shapes = vector and sum(part.size for part in parts) <= MAX_SHAPES
        start = 0
        for number, (part, (name, colours, norm, ticks)) in enumerate(zip(parts, _scales(theme), strict=False)):
            mosaic = _mosaic(part, gap)
            if shapes:
                _draw_shapes(axes, mosaic, start, colours, norm)
            else:
                axes.imshow(
                    mosaic,
                    cmap=colours,
                    norm=norm,
                    aspect="auto",
                    extent=(start - 0.5, start + mosaic.shape[1] - 0.5, high - 0.5, -0.5),
                    interpolation="none" if vector else "nearest" if pitch >= 1 else "auto",
                    interpolation_stage="rgba",  # coloured first, as there are far fewer weights than pixels
                )
            start += mosaic.shape[1] + gap
            right, tall = width + 3 * heading_size + number * 8 * bar_size, min(max(height, 60), 20 * bar_size)
            box = axes.inset_axes((right / width, 1 - tall / height, bar_size / width, tall / height))
            bar = figure.colorbar(ScalarMappable(norm, colours), cax=box)
            bar.solids.set(rasterized=False, edgecolor="face")  # shapes too, without seams between them
            bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
            bar.ax.tick_params(labelsize=bar_size, length=3)
            bar.set_label(name, fontsize=bar_size + 1)
            bar.outline.set_edgecolor(line)
        for x, y in product(lefts, tops):
            frame = {"fill": False, "edgecolor": line, "linewidth": 0.8, "clip_on": False}
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), size, size, **frame))

        labelled = range(0, size, math.ceil(LABEL_PITCH / pitch))
        texts, fonts = [labels[i] for i in labelled], [FONT, "monospace"]
        axes.set_xticks(np.add.outer(lefts, labelled).ravel(), texts * len(lefts), rotation=90)
        axes.set_yticks(np.add.outer(tops, labelled).ravel(), texts * len(tops))
        axes.tick_params(length=0, labelsize=np.clip(0.8 * pitch, 8, 12), labelfontfamily=fonts)
        above, beside = axes.secondary_xaxis("top"), axes.secondary_yaxis("right")
        above.set_xticks(lefts + (size - 1) / 2, columns)
        beside.set_yticks(tops + (size - 1) / 2, rows, rotation=270, va="center")
        for headings in (above, beside):
            headings.set_frame_on(False)
            headings.tick_params(length=0, labelsize=heading_size, labelcolor=THEMES[theme]["soft"])
        axes.set_title(_one_line(title), loc="left", fontsize=1.2 * heading_size, pad=heading_size)
    return figure


def extent(figure: Figure) -> Bbox:
    """What a figure covers with all that stands outside of it, in inches of whole pixels, with a margin.

    One with a layout of its own has nothing outside.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.transforms import Bbox

    if figure.get_layout_engine() is not None:
        return figure.bbox_inches
    box = figure.get_tightbbox(FigureCanvasAgg(figure).get_renderer()).extents * figure.dpi
    return Bbox.from_extents(np.add(np.round(box), [-MARGIN, -MARGIN, MARGIN, MARGIN]) / figure.dpi)


def score_curves(
    runs: Sequence[Captures],
    path: Path,
    title: str = "",
    *,
    heads: Sequence[tuple[int, int]] | None = None,
    theme: str = "light",
    dpi: int | None = None,
) -> None:
    """Writes a picture of scores over steps: for each run a panel a score, in it a line a head.

    Heads that formed have a dot at the step at which they did, and the first of a panel a note.

    heads: (layer, head) of those that are drawn, by default all. A few have a colour each, many one for each layer.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    names = list(runs[0].snapshots[0].scores)
    with matplotlib.rc_context(_settings(theme)):
        columns = min(len(names), MAX_COLUMNS)
        rows = math.ceil(len(names) / columns)  # of a run
        figure = Figure(figsize=(3.2 * columns, 2.8 * rows * len(runs)), dpi=100, layout="constrained")
        grid = figure.subplots(rows * len(runs), columns, sharex=True, sharey=True, squeeze=False)
        grid = grid.reshape(len(runs), -1)
        for empty in grid[:, len(names) :].flat:
            empty.set_visible(False)
        steps = [snapshot.step for run in runs for snapshot in run.snapshots]
        drawn = [list(np.ndindex(run.snapshots[0].shape)) if heads is None else heads for run in runs]
        by_head = heads is not None and len(heads) <= NAMED_HEADS
        label = "head {}.{}" if by_head else "layer {}"
        labels = dict.fromkeys(label.format(*head) for heads_of_run in drawn for head in heads_of_run)
        places = 0.3 + 0.6 * (np.arange(len(labels)) + 0.5) / len(labels)  # all of them are visible on the paper
        colours = dict(zip(labels, _colour_map(PALETTES[theme]["weights"])(places), strict=True))
        for run, heads_of_run, panels in zip(runs, drawn, grid, strict=True):
            lines = {head: colours[label.format(*head)] for head in heads_of_run}
            for name, axes in zip(names, panels[: len(names)], strict=True):
                _draw_curves(axes, run, name, lines)
                axes.grid(axis="y", color=THEMES[theme]["line"], linewidth=0.5)
                axes.set(title=name.replace("_", " "), ylim=(0, 1.02), xlim=(min(steps), max(1, *steps)))
            if len(runs) > 1:
                panels[0].set_ylabel(_one_line(run.name))
        figure.supxlabel("step")
        handles = [Line2D([], [], color=colour, label=name) for name, colour in colours.items()]
        figure.legend(handles=handles, loc="outside right center", frameon=False)
        if title:
            figure.suptitle(_one_line(title), x=0.01, ha="left")
    _write(figure, path, dpi)


def mosaic_pixels(weights: ArrayLike) -> np.ndarray:
    """Maps (L, H, T, T) as bare pixels, uint8 (height, width, 3), layers down and heads across.

    The colours are those of `attention_grid`. Without text this takes a hundredth of the time.
    """
    return _pixels(np.sqrt(_mosaic(np.asarray(weights, dtype=np.float32), gap=1)))


def score_pixels(scores: ArrayLike) -> np.ndarray:
    """A score of every head, (L, H) in [0, 1], as bare pixels, uint8 (height, width, 3), a square for each head."""
    return _pixels(np.asarray(scores, dtype=np.float32))


def printable(token: str) -> str:
    """A token as the page writes it, in at most MAX_LABEL characters; what FONT cannot draw is escaped."""
    from matplotlib.font_manager import findfont, get_font

    font = get_font(findfont(FONT))

    def drawn(char: str) -> str:
        sign = visible(char)
        # Marks would stand on the character before.
        fits = all(font.get_char_index(ord(one)) and unicodedata.category(one)[0] not in "CMZ" for one in sign)
        return sign if fits else char.encode("unicode_escape").decode()

    return shortened("".join(map(drawn, token[: MAX_LABEL + 1])) or visible(token), MAX_LABEL)


def _mosaic(weights: np.ndarray, gap: int) -> np.ndarray:
    """Maps (L, H, T, T) as one image, NaN between them."""
    padded = np.pad(weights, ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=np.nan)
    layers, heads, height, width = padded.shape
    return padded.transpose(0, 2, 1, 3).reshape(layers * height, heads * width)[:-gap, :-gap]


def _pixels(values: np.ndarray) -> np.ndarray:
    """Values (height, width) in [0, 1] as colours, NaN as grey, enlarged to about PIXELS on the longer side."""
    pixels = _colour_map().with_extremes(bad="#c8c8c8")(values, bytes=True)[..., :3]
    zoom = max(1, PIXELS // max(values.shape))
    return pixels.repeat(zoom, axis=0).repeat(zoom, axis=1)


def _draw_shapes(axes: Axes, mosaic: np.ndarray, start: float, colours: Colormap, norm: Normalize) -> None:
    """A square for each weight that is not 0, whose colour is that of the paper."""
    from matplotlib.collections import PolyCollection

    rows, columns = np.nonzero(np.nan_to_num(mosaic))
    corner = np.stack([columns + start - 0.5, rows - 0.5], axis=-1)
    squares = corner[:, None] + [(0, 0), (0, 1), (1, 1), (1, 0)]
    # The thin edge closes the seams that viewers leave between neighbours.
    style = {"edgecolors": "face", "linewidths": 0.5}
    axes.add_collection(PolyCollection(squares, facecolors=colours(norm(mosaic[rows, columns])), **style))


def _draw_curves(axes: Axes, run: Captures, name: str, heads: Mapping[tuple[int, int], Any]) -> None:
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
    axes.tick_params(length=0, labelsize=9)


def _scales(theme: str) -> list[tuple[str, Colormap, Normalize, tuple[float, ...]]]:
    """Of weights and of differences between them the name, how they become colours, and the ticks of the colour bar.

    Both are spread by the square root.
    """
    from matplotlib.colors import FuncNorm, PowerNorm

    root = (lambda d: np.sign(d) * np.sqrt(np.abs(d)), lambda d: np.sign(d) * np.square(d))
    weights, differences = PALETTES[theme]["weights"], PALETTES[theme]["differences"]
    return [
        ("weight", _colour_map(weights), PowerNorm(0.5, 0, 1), (0, 0.01, 0.1, 0.25, 0.5, 1)),
        ("difference", _colour_map(differences), FuncNorm(root, -1, 1), (-1, -0.5, -0.1, 0, 0.1, 0.5, 1)),
    ]


def _settings(theme: str) -> dict[str, Any]:
    """What matplotlib has as defaults while a figure is made. Text is never parsed as mathematics."""
    colours = THEMES[theme]
    inks = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color", "axes.edgecolor")
    papers = ("figure.facecolor", "axes.facecolor")
    return dict.fromkeys(inks, colours["ink"]) | dict.fromkeys(papers, colours["paper"]) | {"text.parse_math": False}


def _colour_map(colours: Sequence[str] = COLOURS) -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("ink", colours)


def _one_line(text: str) -> str:
    """A name or a title that a file of any kind can hold."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _write(figure: Figure, path: Path, dpi: int | None) -> None:
    """Text stays text, and the same numbers make the same file. Raises ValueError for a PNG that is too large."""
    import matplotlib

    box = extent(figure)
    width, height = np.ceil(box.size * (dpi or figure.dpi)).astype(int)
    if path.suffix == ".png" and width * height > MAX_PIXELS:
        raise ValueError(f"{path} would have {width:,} x {height:,} pixels: choose a smaller --dpi, or fewer heads")
    settings = {"svg.fonttype": "none", "svg.hashsalt": "glassgpt", "pdf.fonttype": 42, "image.composite_image": False}
    no_date = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[path.suffix]
    buffer = io.BytesIO()
    with matplotlib.rc_context(settings):
        figure.savefig(buffer, format=path.suffix[1:], dpi=dpi or "figure", metadata=no_date, bbox_inches=box)
    write_atomically(path, buffer.getvalue())
