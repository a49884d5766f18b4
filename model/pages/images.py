"""Attention maps as pictures (PNG, SVG, PDF), drawn by matplotlib without a display.

Import this only to draw: matplotlib takes a second. Weights and scores may be arrays or tensors on the CPU.

Shapes: L layers, H heads, T tokens; R rows and C columns of maps.
"""

import io
import math
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.colors import Colormap, LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from numpy.typing import ArrayLike

from model.files import write_atomically
from model.inspection.recording import Recording
from model.pages.describe import shortened, visible
from model.pages.export import Head, choose_step
from model.pages.template import COLOURS

DPI = 72  # dots an inch, so that a point, in which matplotlib measures text, is a pixel
MAX_SIDE = 4000  # pixels of the longer side, without the labels
PIXELS = 600  # of the longer side of a picture without text, unless there are more weights
LABEL_PITCH = 10  # pixels from one token label to the next, below which they would touch
MAX_LABEL = 12  # characters of a token
FONT = "DejaVu Sans Mono"  # comes with matplotlib
TICKS = (0, 0.01, 0.1, 0.25, 0.5, 1)  # of the colour bar
BETWEEN = "#c8c8c8"  # the colour of what is between the maps, and of NaN
SETTINGS = {
    "text.parse_math": False,  # no token is a formula
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42,
    "svg.hashsalt": "glassgpt",  # the same maps make the same file
    "image.composite_image": False,
}
NO_DATE = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def draw_maps(recording: Recording, path: Path, step: int | None = None, heads: Sequence[Head] | None = None) -> None:
    """A picture of the maps of the text at a step, by default the last: of all heads, or of some side by side.

    The ending of `path` says which kind: .png, .svg or .pdf.
    """
    step = choose_step(recording, step)
    text = recording.readings(step)["text"]
    maps = text.maps.numpy()
    rows = [f"layer {layer}" for layer in range(len(maps))]
    columns = [f"head {head}" for head in range(maps.shape[1])]
    if heads is not None:
        maps = np.stack([maps[head] for head in heads])[None]
        rows = [""]
        columns = [f"head {layer}.{head}" for layer, head in heads]
    title = f"{recording.name}, step {step}: rows attend to columns"
    kind = path.suffix.lower()
    content = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure = grid_figure(maps, text.tokens, title, rows, columns)
        # The maps fill the figure. What stands around them is outside of it, and the tight box makes room for it.
        box = {"bbox_inches": "tight", "pad_inches": 12 / DPI}
        figure.savefig(content, format=kind[1:], metadata=NO_DATE[kind], **box)
    write_atomically(path, content.getvalue())


def grid_figure(
    weights: ArrayLike, labels: Sequence[str], title: str, rows: Sequence[str], columns: Sequence[str]
) -> Figure:
    """One picture of maps in rows and columns, tokens along the edges.

    Colour grows with the square root of a weight, because most of what a head does happens below 0.1.

    Args:
        weights: (R, C, T, T), queries by keys.
        labels: the T tokens as text.
        rows, columns: their names.
    """
    mosaic = _mosaic(weights)
    size = len(labels)
    pitch = min(np.clip(400 / size, 16, 40), MAX_SIDE / max(mosaic.shape))  # pixels of a weight
    if pitch > 1:
        pitch = math.floor(pitch)
    height, width = pitch * mosaic.shape[0], pitch * mosaic.shape[1]
    # A large picture is viewed from further away, but a name has to fit beside its map.
    heading = round(np.clip(min(max(width, height) / 100, pitch * size / 5), 13, 36))

    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_title(title, loc="left", fontsize=1.2 * heading)
    # Nearest where a weight has pixels, and not smoothed by those who open an SVG or a PDF.
    smooth = "none" if pitch >= 1 else "auto"
    image = axes.imshow(mosaic, cmap=_colour_map(), norm=PowerNorm(0.5, 0, 1), aspect="auto", interpolation=smooth)

    tokens = np.arange(0, size, math.ceil(LABEL_PITCH / pitch))  # those that have room for a label
    texts = [legible(labels[token]) for token in tokens]
    small = {"fontsize": np.clip(0.8 * pitch, 8, 12), "fontfamily": [FONT, "monospace"]}
    lefts = (size + 1) * np.arange(len(columns))
    tops = (size + 1) * np.arange(len(rows))
    axes.set_xticks(np.add.outer(lefts, tokens).ravel(), texts * len(columns), rotation=90, **small)
    axes.set_yticks(np.add.outer(tops, tokens).ravel(), texts * len(rows), **small)
    above = axes.secondary_xaxis("top")
    above.set_xticks(lefts + (size - 1) / 2, columns, fontsize=heading)
    beside = axes.secondary_yaxis("right")
    beside.set_yticks(tops + (size - 1) / 2, rows, fontsize=heading, rotation=270, va="center")
    for edge in (axes, above, beside):
        edge.tick_params(length=0)
        edge.spines[:].set_color(BETWEEN)

    bar_width = max(11, 0.6 * heading)
    bar_height = min(max(height, 60), 20 * bar_width)
    left, bottom = 1 + 2.5 * heading / width, 1 - bar_height / height
    place = axes.inset_axes((left, bottom, bar_width / width, bar_height / height))
    bar = figure.colorbar(image, cax=place, ticks=TICKS, format="%g")
    bar.ax.tick_params(labelsize=bar_width)
    bar.set_label("weight", fontsize=bar_width)
    return figure


def mosaic_pixels(weights: ArrayLike) -> np.ndarray:
    """Maps (L, H, T, T) as bare pixels, uint8 (height, width, 3), layers down and heads across.

    The colours are those of `grid_figure`. Without text this takes a hundredth of the time.
    """
    return score_pixels(np.sqrt(_mosaic(weights)))


def score_pixels(scores: ArrayLike) -> np.ndarray:
    """Values (height, width) in [0, 1], such as a score of every head (L, H), as uint8 (height', width', 3).

    NaN is grey, and each value a square, about PIXELS in all on the longer side.
    """
    values = np.asarray(scores, dtype=np.float32)
    pixels = _colour_map()(values, bytes=True)[..., :3]
    zoom = max(1, PIXELS // max(values.shape))
    return pixels.repeat(zoom, axis=0).repeat(zoom, axis=1)


def legible(token: str) -> str:
    """A token as the page writes it, in at most MAX_LABEL characters; what FONT cannot draw is escaped."""
    font = get_font(findfont(FONT))
    text = ""
    for char in token[: MAX_LABEL + 1]:
        sign = visible(char)
        has_glyphs = all(font.get_char_index(ord(one)) for one in sign)
        # A mark would stand on the character before.
        alone = unicodedata.category(sign[0])[0] not in "CMZ"
        text += sign if has_glyphs and alone else char.encode("unicode_escape").decode()
    return shortened(text or visible(token), MAX_LABEL)


def _mosaic(weights: ArrayLike) -> np.ndarray:
    """Maps (R, C, T, T) side by side, with a line of NaN between two. Weights are clipped to 0 and 1."""
    maps = np.asarray(weights, dtype=np.float32).clip(0, 1)
    maps = np.pad(maps, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    return np.block([list(row) for row in maps])[:-1, :-1]


def _colour_map() -> Colormap:
    return LinearSegmentedColormap.from_list("ink", COLOURS).with_extremes(bad=BETWEEN)
