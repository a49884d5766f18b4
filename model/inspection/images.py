"""Attention maps and head scores as PNG pictures, drawn by matplotlib without a display.

Shapes: L layers, H heads, T tokens. Weights and scores may be arrays or tensors on the CPU. matplotlib is imported
only when something is drawn: a training run that draws nothing does not wait for it.
"""

from __future__ import annotations

import io
import math
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from model.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

DPI = 100
MAX_SIDE = 4000  # pixels
PIXELS = 600  # of the longer side of a picture without text, unless there are more weights
LABEL_PITCH = 10  # pixels from one token label to the next below which they would touch
MAX_LABEL = 12  # characters of a token
# From white to ink with steadily falling lightness, so that it reads the same without colour vision.
COLOURS = ("#ffffff", "#cfe8e3", "#7cc3cb", "#3a8dba", "#275c9c", "#1d2f6f", "#0d1238")
FONT = "DejaVu Sans Mono"  # comes with matplotlib


def attention_grid(
    weights: ArrayLike,
    labels: Sequence[str],
    path: Path | None = None,
    title: str = "",
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    max_side: int = MAX_SIDE,
) -> bytes:
    """One picture of the maps, layers down and heads across, tokens along the edges: the PNG, also written to `path`.

    weights: (L, H, T, T), queries by keys. labels: the T tokens as text. layers, heads: which to draw; all by default.
    max_side: pixels of the longer side without the labels; where tokens get fewer than ten, not all are named.
    Colour grows with the square root of a weight, since most of what a head does happens below 0.1.
    """
    return _png(grid_figure(weights, labels, title, layers=layers, heads=heads, max_side=max_side), path)


def grid_figure(
    weights: ArrayLike,
    labels: Sequence[str],
    title: str = "",
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    max_side: int = MAX_SIDE,
) -> Figure:
    """The figure behind `attention_grid`, which takes the same arguments."""
    from matplotlib.colors import PowerNorm

    weights = np.asarray(weights, dtype=np.float32)
    if weights.ndim != 4 or weights.shape[2] != weights.shape[3]:
        raise ValueError(f"a grid needs weights (L, H, T, T), but these are {weights.shape}")
    if len(labels) != weights.shape[3]:
        raise ValueError(f"the maps have {weights.shape[3]} tokens, but there are {len(labels)} labels")
    layers = range(weights.shape[0]) if layers is None else layers
    heads = range(weights.shape[1]) if heads is None else heads
    weights = weights[np.ix_(layers, heads)]
    labels = [printable(label) for label in labels]

    size = len(labels)
    gap = max(1, round(size / 16))
    rows, columns = len(layers) * (size + gap) - gap, len(heads) * (size + gap) - gap
    pitch = min(max(16, min(400 / size, 40)), max_side / max(rows, columns))
    if pitch > 1:
        pitch = math.floor(pitch)  # whole pixels for each weight keep the squares square
    stride = math.ceil(LABEL_PITCH / pitch)
    label_size = min(max(0.8 * pitch, 8.0), 12.0)
    # Margins of whole pixels too, or every square would be smeared over two.
    label_room = math.ceil(max(map(len, labels)) * 0.61 * label_size + 8)
    # A large picture is looked at from further away, but "layer 10" has to fit beside its maps.
    heading_size = round(min(max(min(max(rows, columns) * pitch / 100, size * pitch / 5), 13), 36))

    margins = {
        "left": 2 * heading_size + label_room,
        "right": 90,
        "top": 4 * heading_size + 16,
        "bottom": 8 + label_room,
    }
    figure, axes = _figure(columns * pitch, rows * pitch, margins, title, 1.2 * heading_size)
    mosaic = _mosaic(weights, gap)
    # Coloured before it is enlarged: there are far fewer weights than pixels.
    colouring = {"cmap": _colour_map(), "norm": PowerNorm(0.5, 0, 1), "interpolation_stage": "rgba"}
    image = axes.imshow(mosaic, interpolation="nearest" if pitch >= 1 else "auto", **colouring)

    # Plain texts beside the axes: as ticks, hundreds of them take five times as long.
    axes.set(xticks=(), yticks=())
    text = {"fontfamily": FONT, "fontsize": _points(label_size), "parse_math": False}
    edge, last_row = 3 / pitch + 0.5, len(mosaic) - 1
    for i in range(0, size, stride):
        for row in range(len(layers)):
            axes.text(-edge, row * (size + gap) + i, labels[i], ha="right", va="center", **text)
        for column in range(len(heads)):
            place = (column * (size + gap) + i, last_row + edge)
            axes.text(*place, labels[i], ha="center", va="top", rotation=90, **text)

    heading = {"fontsize": _points(heading_size), "color": "#444444"}
    for column, head in enumerate(heads):
        middle = column * (size + gap) + (size - 1) / 2
        axes.annotate(f"head {head}", (middle, -0.5), (0, 5), textcoords="offset pixels", ha="center", **heading)
    for row, layer in enumerate(layers):
        middle = row * (size + gap) + (size - 1) / 2
        side = {"textcoords": "offset pixels", "rotation": 90, "ha": "right", "va": "center"}
        axes.annotate(f"layer {layer}", (-0.5, middle), (-label_room - 6, 0), **side, **heading)
    _outline_cells(axes, len(layers), len(heads), size, gap)
    _colour_bar(figure, axes, image, "weight", ticks=(0, 0.01, 0.1, 0.25, 0.5, 1))
    return figure


def score_grid(scores: ArrayLike, name: str, path: Path | None = None, title: str = "") -> bytes:
    """One score of every head, (L, H) in [0, 1], as a heat map with its values: the PNG, also written to `path`."""
    scores = np.asarray(scores, dtype=np.float32)
    if scores.ndim != 2:
        raise ValueError(f"a heat map needs scores (L, H), but these are {scores.shape}")
    layers, heads = scores.shape
    margins = {"left": 60, "right": 90, "top": 54, "bottom": 50}
    figure, axes = _figure(46 * heads, 46 * layers, margins, title or name.replace("_", " "), 16)
    image = axes.imshow(scores, cmap=_colour_map(), vmin=0, vmax=1)
    for layer, head in np.ndindex(scores.shape):
        value = scores[layer, head]
        colour = "white" if value > 0.35 else "black"
        axes.text(head, layer, f"{value:.2f}", ha="center", va="center", fontsize=_points(12), color=colour)
    axes.set_xticks(range(heads))
    axes.set_yticks(range(layers))
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.tick_params(length=0)
    _colour_bar(figure, axes, image, "score", ticks=(0, 0.5, 1))
    return _png(figure, path)


def score_curves(
    steps: Sequence[int],
    scores: Mapping[str, ArrayLike],
    path: Path | None = None,
    title: str = "",
    formed: Mapping[str, Sequence[Sequence[int | None]]] | None = None,
) -> bytes:
    """How the scores grew: for each name one panel with a line a head, coloured by layer.

    steps: N captures. scores: name -> (N, L, H) in [0, 1]. formed: name -> (L, H) steps at which heads formed, which
    get a dot, and the first of them a note. Returns the PNG, also written to `path`.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    names = list(scores)
    figure = Figure(figsize=(3.4 * len(names), 3.2), dpi=DPI, layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), sharey=True, squeeze=False)[0], names, strict=True):
        values = np.asarray(scores[name], dtype=np.float32)
        if values.ndim != 3 or len(values) != len(steps):
            raise ValueError(f"{len(steps)} steps need scores (N, L, H) with N = {len(steps)}, not {values.shape}")
        colours = [_colour_map()(0.3 + 0.6 * (layer + 0.5) / values.shape[1]) for layer in range(values.shape[1])]
        for layer, head in np.ndindex(values.shape[1:]):
            axes.plot(steps, values[:, layer, head], color=colours[layer], linewidth=1.5, alpha=0.85)
        marks = [
            (step, values[list(steps).index(step), layer, head], layer, head)
            for layer, of_layer in enumerate((formed or {}).get(name, ()))
            for head, step in enumerate(of_layer)
            if step is not None
        ]
        for step, value, layer, _ in marks:
            axes.plot(step, value, "o", color=colours[layer], markeredgecolor="white", markersize=7, clip_on=False)
        if marks:
            step, value, layer, head = min(marks)
            note = f"head {layer}.{head}\nforms at {step}"
            axes.annotate(note, (step, value), (-8, 0), textcoords="offset points", ha="right", va="center", fontsize=9)
        # Most of what happens, happens early; below the first step, zero still has its place.
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
    return _png(figure, path)


def mosaic_pixels(weights: ArrayLike) -> np.ndarray:
    """Maps (L, H, T, T) as bare pixels, uint8 (height, width, 3), layers down and heads across.

    Colours are those of `attention_grid`; without any text it takes a hundredth of the time.
    """
    return _pixels(np.sqrt(_mosaic(np.asarray(weights, dtype=np.float32), gap=1)))


def score_pixels(scores: ArrayLike) -> np.ndarray:
    """A score of every head, (L, H) in [0, 1], as bare pixels, uint8 (height, width, 3), a square for each."""
    return _pixels(np.asarray(scores, dtype=np.float32))


def printable(token: str, limit: int = MAX_LABEL) -> str:
    """A token as a label: a dot for a space, escapes for what has no glyph of its own, an ellipsis past `limit`."""
    from matplotlib.font_manager import findfont, get_font

    font = get_font(findfont(FONT))
    label = ""
    for char in token[: limit + 1]:
        if char == " ":
            label += "·"
        elif font.get_char_index(ord(char)) and unicodedata.category(char)[0] not in "CMZ" and char != "\\":
            label += char
        else:
            label += char.encode("unicode_escape").decode()
    return label if len(label) <= limit else label[: limit - 1] + "…"


def _mosaic(weights: np.ndarray, gap: int) -> np.ndarray:
    """Maps (L, H, T, T) as one image, NaN between them."""
    padded = np.pad(weights, ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=np.nan)
    layers, heads, height, width = padded.shape
    return padded.transpose(0, 2, 1, 3).reshape(layers * height, heads * width)[:-gap, :-gap]


def _pixels(values: np.ndarray) -> np.ndarray:
    """Values (height, width) in [0, 1] as colours, NaN as grey, enlarged to about PIXELS on the longer side."""
    stops = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in COLOURS])
    places = np.nan_to_num(values).ravel() * (len(stops) - 1)
    channels = [np.interp(places, range(len(stops)), channel) for channel in stops.T]
    pixels = np.stack(channels, axis=-1).round().astype(np.uint8).reshape(*values.shape, 3)
    pixels[np.isnan(values)] = 200
    zoom = max(1, PIXELS // max(values.shape))
    return pixels.repeat(zoom, axis=0).repeat(zoom, axis=1)


def _figure(
    width: float, height: float, margins: dict[str, float], title: str, title_size: float
) -> tuple[Figure, Axes]:
    """A figure with one axes of width x height pixels inside margins of as many pixels."""
    from matplotlib.figure import Figure

    full_width = max(width + margins["left"] + margins["right"], 0.62 * title_size * len(title) + 40)
    full_height = max(height, 120) + margins["top"] + margins["bottom"]
    figure = Figure(figsize=(full_width / DPI, full_height / DPI), dpi=DPI)
    top = 1 - (margins["top"] + height) / full_height
    axes = figure.add_axes((margins["left"] / full_width, top, width / full_width, height / full_height))
    axes.spines[:].set_visible(False)
    if title:
        place = (16 / full_width, 1 - 16 / full_height)
        figure.text(*place, title, ha="left", va="top", fontsize=_points(title_size), parse_math=False)
    return figure, axes


def _outline_cells(axes: Axes, rows: int, columns: int, size: int, gap: int) -> None:
    from matplotlib.patches import Rectangle

    for row, column in np.ndindex(rows, columns):
        corner = (column * (size + gap) - 0.5, row * (size + gap) - 0.5)
        axes.add_patch(Rectangle(corner, size, size, fill=False, edgecolor="#b8bcc4", linewidth=0.6, clip_on=False))


def _colour_bar(figure: Figure, axes: Axes, image, label: str, ticks: Sequence[float]) -> None:
    box, (width, height) = axes.get_position(), figure.get_size_inches() * DPI
    side = min(box.height, 220 / height) if box.height * height >= 60 else 60 / height
    bar = figure.colorbar(image, cax=figure.add_axes((box.x1 + 20 / width, box.y1 - side, 12 / width, side)))
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    bar.ax.tick_params(labelsize=_points(11), length=2)
    bar.set_label(label, fontsize=_points(12))
    bar.outline.set_edgecolor("#b8bcc4")


def _colour_map() -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("ink", COLOURS)


def _points(pixels: float) -> float:
    return pixels * 72 / DPI


def _png(figure: Figure, path: Path | None) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    if path is not None:
        write_atomically(Path(path), buffer.getvalue())
    return buffer.getvalue()
