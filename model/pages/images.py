"""Attention maps as pictures (PNG, SVG, PDF), drawn by matplotlib without a display.

Import this only to draw: matplotlib takes a second. Weights and scores may be arrays or tensors on the CPU.

Shapes: L layers, H heads, T tokens; R rows and C columns of maps.
"""

import io
import math
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import Colormap, FuncNorm, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from numpy.typing import ArrayLike

from model.checks import Mistake
from model.files import write_atomically
from model.inspection.recording import Recording
from model.pages.describe import shortened, visible
from model.pages.export import Head, choose_step
from model.pages.template import COLOURS

DPI = 72  # dots an inch, so that a point, in which matplotlib measures text, is a pixel
MAX_SIDE = 4000  # pixels of the longer side, without the labels
MAX_PIXELS = 100_000_000  # of a PNG, which takes four bytes for each while it is drawn
PIXELS = 600  # of the longer side of a picture without text, unless there are more weights
LABEL_PITCH = 10  # pixels from one token label to the next, below which they would touch
MAX_LABEL = 12  # characters of a token
FONT = "DejaVu Sans Mono"  # comes with matplotlib
CHARACTER = 0.602  # width of its characters, of its size
TICKS = (0, 0.01, 0.1, 0.25, 0.5, 1)  # of the colour bar
SOFT, BETWEEN = "#5c6672", "#c8c8c8"  # the colours of what is around the maps and between them, and of NaN


def draw_maps(recording: Recording, path: Path, step: int | None = None, heads: Sequence[Head] | None = None) -> None:
    """A picture of the maps of the text at a step, by default the last: of all heads, or of some side by side."""
    step = choose_step(recording, step)
    maps = np.asarray(recording.maps(step)["text"], np.float32)
    rows = columns = None
    if heads is not None:
        maps = np.stack([maps[head] for head in heads])[None]
        rows, columns = [""], [f"head {layer}.{head}" for layer, head in heads]
    title = f"{recording.name}, step {step}: rows attend to columns"
    attention_grid(maps, recording.probes["text"].labels, path, title, rows=rows, columns=columns)


def attention_grid(weights: ArrayLike, labels: Sequence[str], path: Path, title: str = "", **options: Any) -> None:
    """Writes `grid_figure`, which takes the same options, as the ending of `path` says: .png, .svg or .pdf."""
    _write(grid_figure(weights, labels, title, **options), path)


def grid_figure(
    weights: ArrayLike,
    labels: Sequence[str],
    title: str = "",
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> Figure:
    """One picture of maps in rows and columns, tokens along the edges.

    Colour grows with the square root of a weight, because most of what a head does happens below 0.1.

    Args:
        weights: (R, C, T, T), queries by keys; by default a row is a layer and a column a head.
        labels: the T tokens as text.
        rows, columns: their names.
    """
    weights, size = np.asarray(weights, dtype=np.float32), len(labels)
    rows = [f"layer {layer}" for layer in range(len(weights))] if rows is None else rows
    columns = [f"head {head}" for head in range(weights.shape[1])] if columns is None else columns

    mosaic = _mosaic(weights)
    pitch = min(np.clip(400 / size, 16, 40), MAX_SIDE / max(mosaic.shape))  # of a weight; all lengths are in pixels
    pitch = math.floor(pitch) if pitch > 1 else pitch
    height, width, side = (pitch * length for length in (*mosaic.shape, size))  # of all maps; of one
    lefts, tops = (np.arange(len(names)) * pitch * (size + 1) for names in (columns, rows))
    # A large picture is viewed from further away, but "layer 10" has to fit beside its maps.
    heading = round(np.clip(min(max(width, height) / 100, side / 5), 13, 36))
    bar_size = max(11, round(0.6 * heading))  # of its text
    with matplotlib.rc_context({"text.parse_math": False}):  # text is never parsed as mathematics
        # The maps fill the figure. What stands around them is outside of it, and `_write` makes room for it.
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])
        axes.spines[:].set_color(BETWEEN)
        # Nearest where a weight has pixels, and not smoothed by those who open an SVG or a PDF.
        look: dict[str, Any] = {"aspect": "auto", "interpolation": "none" if pitch >= 1 else "auto"}
        norm = FuncNorm((np.sqrt, np.square), 0, 1)
        image = axes.imshow(mosaic, cmap=_colour_map(), norm=norm, extent=(0, width, height, 0), **look)
        bar_height = min(max(height, 60), 20 * bar_size)
        right = width + bar_size + heading
        box = figure.add_axes((right / width, 1 - bar_height / height, bar_size / width, bar_height / height))
        bar = figure.colorbar(image, cax=box, ticks=TICKS, format="%g")
        bar.ax.tick_params(labelsize=bar_size, length=3)
        bar.set_label("weight", fontsize=bar_size + 1)

        step = math.ceil(LABEL_PITCH * size / side)
        texts = {(number + 0.5) * side / size: printable(labels[number]) for number in range(0, size, step)}
        small = {"fontsize": np.clip(0.8 * side / size, 8, 12), "fontfamily": [FONT, "monospace"]}
        large = {"fontsize": heading, "color": SOFT}
        beside = CHARACTER * small["fontsize"] * max(map(len, texts.values())) + 0.7 * heading
        for left, name in zip(lefts, columns, strict=True):
            axes.text(left + side / 2, -6, name, ha="center", **large)
            for place, text in texts.items():
                axes.text(left + place, height + 4, text, ha="center", va="top", rotation=90, **small)
        for top, name in zip(tops, rows, strict=True):
            axes.text(-beside, top + side / 2, name, ha="right", va="center", rotation=90, **large)
            for place, text in texts.items():
                axes.text(-4, top + place, text, ha="right", va="center_baseline", **small)
        axes.text(0, -2.5 * heading, title, fontsize=1.2 * heading)
    return figure


def mosaic_pixels(weights: ArrayLike) -> np.ndarray:
    """Maps (L, H, T, T) as bare pixels, uint8 (height, width, 3), layers down and heads across.

    The colours are those of `attention_grid`. Without text this takes a hundredth of the time.
    """
    return score_pixels(np.sqrt(_mosaic(np.asarray(weights, dtype=np.float32))))


def score_pixels(scores: ArrayLike) -> np.ndarray:
    """Values (height, width) in [0, 1], such as a score of every head (L, H), as uint8 (height', width', 3).

    NaN is grey, and each value a square, about PIXELS in all on the longer side.
    """
    values = np.asarray(scores, dtype=np.float32)
    pixels = _colour_map()(values, bytes=True)[..., :3]
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


def _mosaic(weights: np.ndarray) -> np.ndarray:
    """Maps (R, C, T, T) side by side, with a line of NaN between two. Weights are clipped to 0 and 1."""
    maps = np.pad(weights.clip(0, 1), ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    return np.block([list(row) for row in maps])[:-1, :-1]


def _colour_map() -> Colormap:
    return LinearSegmentedColormap.from_list("ink", COLOURS).with_extremes(bad=BETWEEN)


def _write(figure: Figure, path: Path) -> None:
    """Text stays text, and the same numbers make the same file. Raises Mistake for a PNG that is too large."""
    kind = path.suffix.lower()
    box = figure.get_tightbbox().padded(12 / DPI)
    width, height = np.ceil(box.size * DPI).astype(int)
    if kind == ".png" and width * height > MAX_PIXELS:
        raise Mistake(f"{path} would have {width:,} x {height:,} pixels: choose fewer heads with --head, or a .pdf")
    settings = {"svg.fonttype": "none", "svg.hashsalt": "glassgpt", "pdf.fonttype": 42, "image.composite_image": False}
    no_date = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[kind]
    buffer = io.BytesIO()
    with matplotlib.rc_context(settings):
        figure.savefig(buffer, format=kind[1:], dpi="figure", metadata=no_date, bbox_inches=box)
    write_atomically(path, buffer.getvalue())
