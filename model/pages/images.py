"""Attention maps as pictures (PNG, SVG, PDF), drawn by matplotlib without a display.

Import this module only when you draw: importing matplotlib takes a second.

Shapes: L layers, H heads, T tokens.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.image import AxesImage
from numpy.typing import ArrayLike

from model.files import write_atomically
from model.inspection.recording import Recording
from model.pages.describe import Head, shortened, visible
from model.pages.pictures import DPI, drawn
from model.pages.template import COLOURS

SIDE = 400  # pixels of a map's side, unless its labels need more
MAX_SIDE = 4000  # pixels of the longer side of all maps together, without labels
PIXELS = 600  # of the longer side of a picture without text; more if there are more weights
LABEL_PITCH = 10  # pixels from one token label to the next: closer labels would touch
MAX_LABEL = 12  # characters of a token's label
FONT = "DejaVu Sans Mono"  # comes with matplotlib
TICKS = (0, 0.01, 0.1, 0.25, 0.5, 1)  # of the colour bar
BETWEEN = "#c8c8c8"  # the colour between maps, and of NaN


def draw_maps(
    recording: Recording,
    path: Path,
    step: int,
    rows: Sequence[Sequence[Head]],
) -> None:
    """Writes a picture of the maps of the probe "text" at a step.

    path: its suffix sets the format: .png, .svg or .pdf. rows: of heads, see `choose_heads`.
    """
    text = recording.readings(step)["text"]
    title = f"{recording.name}, step {step}: rows attend to columns"
    content = drawn(lambda: maps_figure(text.maps.numpy(), rows, text.tokens, title), path.suffix.lower())
    write_atomically(path, content)


def maps_figure(
    maps: np.ndarray,
    heads: Sequence[Sequence[Head]],
    labels: Sequence[str],
    title: str,
) -> Figure:
    """Draws rows of maps, which fill the figure, with the tokens along the left and the lower edge.

    The colour depends on the square root of a weight, because most of a head's weights are below 0.1.

    Args:
        maps: (L, H, T, T), queries by keys.
        heads: the heads of each row of the figure.
        labels: the T tokens as text.
    """
    size = len(labels)
    rows = (size + 1) * len(heads) - 1
    columns = (size + 1) * len(heads[0]) - 1
    pitch = min(max(SIDE / size, LABEL_PITCH), MAX_SIDE / max(rows, columns))  # pixels of a weight
    height = pitch * rows
    width = pitch * columns
    figure = Figure((width / DPI, height / DPI), dpi=DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    image = draw_mosaic(axes, maps, heads)
    axes.set_title(title, loc="left")

    tokens = range(0, size, math.ceil(LABEL_PITCH / pitch))  # the tokens that get a label
    texts = [legible(labels[token]) for token in tokens]
    small = {"fontsize": 8, "fontfamily": [FONT, "monospace"]}
    for set_ticks, count, rotation in ((axes.set_xticks, len(heads[0]), 90), (axes.set_yticks, len(heads), 0)):
        starts = (size + 1) * np.arange(count)
        set_ticks(
            np.add.outer(starts, tokens).ravel(),
            texts * count,
            rotation=rotation,
            **small,
        )
    beside = axes.inset_axes((1 + 40 / width, 0, 12 / width, 1))
    figure.colorbar(
        image,
        cax=beside,
        ticks=TICKS,
        format="%g",
        label="weight",
    )
    return figure


def draw_mosaic(
    axes: Axes,
    maps: np.ndarray,
    heads: Sequence[Sequence[Head]],
) -> AxesImage:
    """Draws rows of maps, each with the name of its head. maps, heads: as in `maps_figure`."""
    image = axes.imshow(
        _mosaic([[maps[head] for head in row] for row in heads]),
        cmap=colour_map(),
        norm=PowerNorm(0.5, 0, 1),
        aspect="auto",
        interpolation="none",
    )
    axes.tick_params(length=0)
    axes.spines[:].set_color(BETWEEN)
    pitch = maps.shape[-1] + 1  # from one map to the next
    for row, heads_of_row in enumerate(heads):
        for column, (layer, head) in enumerate(heads_of_row, start=1):
            # A causal map is empty in its upper right corner.
            axes.text(
                column * pitch - 2,
                row * pitch,
                f"head {layer}.{head}",
                ha="right",
                va="top",
            )
    return image


def mosaic_pixels(weights: ArrayLike) -> np.ndarray:
    """Draws maps (L, H, T, T) without text: uint8 pixels (height, width, 3), a row of heads for each layer.

    Each weight is a square in the colour that `maps_figure` gives it, and the longer side has about PIXELS pixels. This
    takes a hundredth of the time of `maps_figure`. weights: an array, or a tensor on the CPU.
    """
    values = np.sqrt(_mosaic(weights))
    pixels = colour_map()(values, bytes=True)[..., :3]
    zoom = max(1, PIXELS // max(values.shape))
    return pixels.repeat(zoom, axis=0).repeat(zoom, axis=1)


def legible(token: str) -> str:
    """A token as the page writes it, at most MAX_LABEL characters; escaped if FONT cannot draw it."""
    font = get_font(findfont(FONT))
    text = visible(token, MAX_LABEL)
    if all(font.get_char_index(ord(char)) for char in text):
        return text
    return shortened(token.encode("unicode_escape").decode(), MAX_LABEL)


def _mosaic(weights: ArrayLike) -> np.ndarray:
    """Joins maps (R, C, T, T) into one, with a line of NaN between two. Clips weights to [0, 1]."""
    maps = np.asarray(weights, dtype=np.float32).clip(0, 1)
    maps = np.pad(
        maps,
        ((0, 0), (0, 0), (0, 1), (0, 1)),
        constant_values=np.nan,
    )
    return np.block([list(row) for row in maps])[:-1, :-1]


def colour_map() -> Colormap:
    return LinearSegmentedColormap.from_list("ink", COLOURS).with_extremes(bad=BETWEEN)
