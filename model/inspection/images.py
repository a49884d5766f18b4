"""Attention maps and head scores as PNG pictures, drawn by matplotlib without a display.

Shapes: L layers, H heads, T tokens. Weights and scores may be arrays or tensors on the CPU. matplotlib is imported
only when something is drawn, so that other runs do not wait for it.
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

DPI = 72  # dots an inch, so that a point, in which matplotlib measures text, is a pixel
MAX_SIDE = 4000  # pixels
PIXELS = 600  # of the longer side of a picture without text, unless there are more weights
LABEL_PITCH = 10  # pixels from one token label to the next, below which they would touch
MAX_LABEL = 12  # characters of a token
# From white to dark blue with steadily falling lightness, so that it can be read without colour vision.
COLOURS = ("#ffffff", "#cfe8e3", "#7cc3cb", "#3a8dba", "#275c9c", "#1d2f6f", "#0d1238")
BORDER = "#b8bcc4"
FONT = "DejaVu Sans Mono"  # comes with matplotlib


def attention_grid(weights: ArrayLike, labels: Sequence[str], path: Path, title: str = "", **options: Any) -> None:
    """Writes `grid_figure`, which takes the same options, as a PNG."""
    _write_png(grid_figure(weights, labels, title, **options), path)


def grid_figure(
    weights: ArrayLike,
    labels: Sequence[str],
    title: str = "",
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    max_side: int = MAX_SIDE,
) -> Figure:
    """One picture of the maps: layers down, heads across, tokens along the edges.

    Colour grows with the square root of a weight, because most of what a head does happens below 0.1.

    Args:
        weights: (L, H, T, T), queries by keys.
        labels: the T tokens as text.
        layers, heads: which to draw; all by default.
        max_side: pixels of the longer side without the labels. Below ten pixels a token, only some tokens are labelled.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    weights = np.asarray(weights, dtype=np.float32)
    if weights.ndim != 4 or weights.shape[2] != weights.shape[3]:
        raise ValueError(f"a grid needs weights (L, H, T, T), but these are {weights.shape}")
    if len(labels) != weights.shape[3]:
        raise ValueError(f"the maps have {weights.shape[3]} tokens, but there are {len(labels)} labels")
    layers = range(weights.shape[0]) if layers is None else layers
    heads = range(weights.shape[1]) if heads is None else heads
    labels = [printable(label) for label in labels]

    size = len(labels)
    gap = max(1, round(size / 16))
    mosaic = _mosaic(weights[np.ix_(layers, heads)], gap)
    pitch = min(np.clip(400 / size, 16, 40), max_side / max(mosaic.shape))  # pixels of a weight's square
    if pitch > 1:
        pitch = math.floor(pitch)  # whole pixels for each weight keep the squares square
    height, width = (side * pitch for side in mosaic.shape)
    label_size = np.clip(0.8 * pitch, 8, 12)
    # Margins are whole pixels too, or every square would be smeared over two.
    label_room = math.ceil(max(map(len, labels)) * 0.61 * label_size + 8)
    # A large picture is viewed from further away, but "layer 10" has to fit beside its maps.
    heading_size = round(np.clip(min(max(width, height) / 100, size * pitch / 5), 13, 36))
    title_size = 1.2 * heading_size

    left, top = 2 * heading_size + label_room, 4 * heading_size + 16
    full_width = max(left + width + 90, 0.62 * title_size * len(title) + 40)
    full_height = top + max(height, 120) + label_room + 8
    figure = Figure(figsize=(full_width / DPI, full_height / DPI), dpi=DPI)
    place = (16 / full_width, 1 - 16 / full_height)
    figure.text(*place, title, va="top", fontsize=title_size, parse_math=False)
    axes = _axes(figure, left, top, width, height)
    axes.set(xticks=(), yticks=())
    axes.spines[:].set_visible(False)
    # Coloured before it is enlarged: there are far fewer weights than pixels.
    colouring = {"cmap": _colour_map(), "norm": PowerNorm(0.5, 0, 1), "interpolation_stage": "rgba"}
    image = axes.imshow(mosaic, interpolation="nearest" if pitch >= 1 else "auto", **colouring)

    # Plain texts beside the axes: as ticks, hundreds of them take five times as long.
    text = {"fontfamily": FONT, "fontsize": label_size, "parse_math": False}
    heading = {"fontsize": heading_size, "color": "#444444", "textcoords": "offset pixels"}
    edge, last_row = 3 / pitch + 0.5, len(mosaic) - 1
    labelled = range(0, size, math.ceil(LABEL_PITCH / pitch))
    tops, lefts = ([i * (size + gap) for i in range(len(shown))] for shown in (layers, heads))
    for layer, start in zip(layers, tops, strict=True):
        place = (-0.5, start + (size - 1) / 2)
        axes.annotate(f"layer {layer}", place, (-label_room - 6, 0), rotation=90, ha="right", va="center", **heading)
        for i in labelled:
            axes.text(-edge, start + i, labels[i], ha="right", va="center", **text)
    for head, start in zip(heads, lefts, strict=True):
        axes.annotate(f"head {head}", (start + (size - 1) / 2, -0.5), (0, 5), ha="center", **heading)
        for i in labelled:
            axes.text(start + i, last_row + edge, labels[i], ha="center", va="top", rotation=90, **text)
    for x, y in product(lefts, tops):
        frame = Rectangle((x - 0.5, y - 0.5), size, size, fill=False, edgecolor=BORDER, linewidth=0.8, clip_on=False)
        axes.add_patch(frame)

    bar = figure.colorbar(image, cax=_axes(figure, left + width + 20, top, 12, min(max(height, 60), 220)))
    ticks = (0, 0.01, 0.1, 0.25, 0.5, 1)
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    bar.ax.tick_params(labelsize=11, length=3)
    bar.set_label("weight", fontsize=12)
    bar.outline.set_edgecolor(BORDER)
    return figure


def score_curves(
    steps: Sequence[int],
    scores: Mapping[str, ArrayLike],
    path: Path,
    title: str = "",
    formed: Mapping[str, Mapping[tuple[int, int], int]] | None = None,
) -> None:
    """Writes a PNG of the scores over steps: for each name one panel with a line a head, coloured by layer.

    Args:
        steps: of N captures.
        scores: name -> (N, L, H) in [0, 1].
        formed: name -> (layer, head) -> the step at which it formed. Each gets a dot, and the first of them a note.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(3.4 * len(scores), 3.2), dpi=100, layout="constrained")
    panels = figure.subplots(1, len(scores), sharey=True, squeeze=False)[0]
    for axes, (name, values) in zip(panels, scores.items(), strict=True):
        values = np.asarray(values, dtype=np.float32)
        if values.ndim != 3 or len(values) != len(steps):
            raise ValueError(f"{len(steps)} steps need scores (N, L, H) with N = {len(steps)}, not {values.shape}")
        colours = _colour_map()(0.3 + 0.6 * (np.arange(values.shape[1]) + 0.5) / values.shape[1])
        for layer, head in np.ndindex(values.shape[1:]):
            axes.plot(steps, values[:, layer, head], color=colours[layer], linewidth=1.5, alpha=0.85)
        marks = []
        for (layer, head), step in formed[name].items() if formed else ():
            value = values[list(steps).index(step), layer, head]
            marks.append((step, value, layer, head))
            axes.plot(step, value, "o", color=colours[layer], markeredgecolor="white", markersize=7, clip_on=False)
        if marks:
            step, value, layer, head = min(marks)
            note = f"head {layer}.{head}\nforms at {step}"
            axes.annotate(note, (step, value), (-8, 0), textcoords="offset points", ha="right", va="center", fontsize=9)
        # A logarithmic axis, because most changes happen early; linear up to step 1, so that 0 has a place.
        axes.set_xscale("symlog", linthresh=1)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set(title=name.replace("_", " "), xlabel="step", ylim=(0, 1.02), xlim=(min(steps), max(max(steps), 1)))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e3e6ea", linewidth=0.8)
        axes.tick_params(length=0, labelsize=9)
    lines = [Line2D([], [], color=colour, label=f"layer {layer}") for layer, colour in enumerate(colours)]
    figure.legend(handles=lines, loc="outside right center", frameon=False)
    if title:
        figure.suptitle(title, x=0.01, ha="left", parse_math=False)
    _write_png(figure, path)


def mosaic_pixels(weights: ArrayLike) -> np.ndarray:
    """Maps (L, H, T, T) as bare pixels, uint8 (height, width, 3), layers down and heads across.

    The colours are those of `attention_grid`. Without text this takes a hundredth of the time.
    """
    return _pixels(np.sqrt(_mosaic(np.asarray(weights, dtype=np.float32), gap=1)))


def score_pixels(scores: ArrayLike) -> np.ndarray:
    """A score of every head, (L, H) in [0, 1], as bare pixels, uint8 (height, width, 3), a square for each head."""
    return _pixels(np.asarray(scores, dtype=np.float32))


def printable(token: str) -> str:
    """A token as a label of at most MAX_LABEL characters, all with a glyph in FONT.

    A space becomes a dot, what has no glyph is escaped, and an ellipsis stands for what was cut off.
    """
    from matplotlib.font_manager import findfont, get_font

    font = get_font(findfont(FONT))
    label = ""
    for char in token[: MAX_LABEL + 1]:
        if char == " ":
            label += "·"
        elif font.get_char_index(ord(char)) and unicodedata.category(char)[0] not in "CMZ" and char != "\\":
            label += char
        else:
            label += char.encode("unicode_escape").decode()
    return label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"


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


def _axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes in a box of the figure, in pixels from the top left."""
    full_width, full_height = figure.get_size_inches() * DPI
    bottom = full_height - top - height
    return figure.add_axes((left / full_width, bottom / full_height, width / full_width, height / full_height))


def _colour_map() -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("ink", COLOURS)


def _write_png(figure: Figure, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomically(path, buffer.getvalue())
