"""The film as one animated picture (GIF), drawn by matplotlib: see model/inspection/film.py.

Import this module only when you draw: importing matplotlib takes a second.

Shapes: L layers, H heads, T tokens.
"""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from model.files import atomic_file
from model.inspection.film import LEAST_RAISE, LENGTH, SOURCE, Film
from model.inspection.formation import head_name
from model.inspection.reading import RecordedReading
from model.inspection.recording import Recording
from model.mistakes import Mistake, listed
from model.pages.describe import visible
from model.pages.film import RIGHT, stops, word_reading
from model.pages.images import BETWEEN, draw_mosaic, legible
from model.pages.learning import evenly
from model.pages.pictures import SETTINGS

SIZE = (9.2, 5.2)  # inches
QUICK, STILL = 350, 1800  # milliseconds of a step; and of the last one, and of those at which the film stops
MOST_STEPS = 30  # evenly spread over the recorded steps: each adds to the size of the file
WIDEST = 6  # points of an arrow
INK, ARROW = "#275c9c", "#b05a00"


def draw_film(recording: Recording, path: Path) -> None:
    """Writes the film of a recording. Raises a `Mistake` if it has none."""
    film = recording.film
    if film is None:
        raise Mistake(f"{recording.name} has no film: no made-up word could be recorded")
    readings = {step: word_reading(recording, film, step) for step in recording.mapped}
    named = {step: what for what, step in stops(recording, film, readings).items()}
    steps = sorted({*evenly(recording.mapped, MOST_STEPS), *named})
    still = {*named, steps[-1]}
    milliseconds = [STILL if step in still else QUICK for step in steps]
    with matplotlib.rc_context(SETTINGS):
        first, *others = [_picture(readings, film, step, named.get(step)) for step in steps]
    with atomic_file(path) as file:
        first.save(
            file,
            "GIF",
            save_all=True,
            append_images=others,
            duration=milliseconds,
            loop=0,
        )


def _picture(readings: dict[int, RecordedReading], film: Film, step: int, stop: str | None) -> Image.Image:
    """readings, stop: see `stops`."""
    reading = readings[step]
    figure = Figure(SIZE)
    canvas = FigureCanvasAgg(figure)
    reads = "".join(map(visible, reading.tokens))
    figure.suptitle(f"Step {step} of {max(readings)} reads {reads}", x=0.03, ha="left", fontsize=16)
    figure.supxlabel(_sentence(film, reading, stop), fontsize=11)
    _draw_heads(figure.add_axes((0.03, 0.1, 0.53, 0.79)), film, reading)
    _draw_next(figure.add_axes((0.66, 0.2, 0.31, 0.6)), reading)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def _sentence(film: Film, reading: RecordedReading, stop: str | None) -> str:
    """stop: what happens at this step, see `stops`."""
    if film.missing:
        return f"At the last step, {film.missing}."
    writers = listed([f"head {head_name(head)}" for head in sorted(film.writers)])
    if stop == "writers":
        return f"Now {writers} {'look' if len(film.writers) > 1 else 'looks'} one token back."
    weight = reading.maps[film.finder][-1, SOURCE]
    source = visible(reading.tokens[SOURCE])
    looks = f"head {head_name(film.finder)} gives the first {source} {weight:.0%} of its attention"
    if stop == "leap":
        return f"The leap: {looks}. Arrows show which heads tell it where."
    return f"The letters are random. Only their first copy tells what comes next, and {looks}."


def _draw_heads(axes: Axes, film: Film, reading: RecordedReading) -> None:
    """Draws the map of each head, layer 0 at the bottom.

    An arrow leads from each head that raises the finder's score to the weight of this score, as thick as it does so.
    """
    maps = reading.maps.numpy()
    layers, heads = maps.shape[:2]
    rows = [[(layer, head) for head in range(heads)] for layer in reversed(range(layers))]
    draw_mosaic(axes, maps, rows)
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.set_title("Each row of a map: what one token reads.", fontsize=11, loc="left")
    if film.finder is None:
        return

    def corner(at: tuple[int, int]) -> np.ndarray:
        layer, head = at
        return (LENGTH + 1) * np.array([head, layers - 1 - layer])

    raises = np.reshape(reading.figures["raises"], (layers, heads))
    for at in zip(*np.nonzero(raises >= LEAST_RAISE), strict=True):
        axes.annotate(
            "",
            xy=corner(film.finder) + np.array([SOURCE, LENGTH - 0.5]),
            xytext=corner(at) + LENGTH / 2,
            arrowprops={
                "arrowstyle": "-|>",
                "mutation_scale": 14,
                "color": ARROW,
                "linewidth": min(WIDEST, raises[at]),
            },
        )


def _draw_next(axes: Axes, reading: RecordedReading) -> None:
    """Draws the probabilities of the next token: that of the right one above the likeliest others."""
    figures = reading.figures
    shares = {RIGHT: figures["chance"]} | dict(zip(figures["top"][-1], figures["top_probability"][-1], strict=True))
    names = [legible(figures["tokens"][number]) for number in shares]
    bars = axes.barh(
        range(len(shares)),
        list(shares.values()),
        tick_label=names,
        color=BETWEEN,
    )
    bars[0].set_color(INK)
    axes.set(xlim=(0, 1))
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.set_title(f"next: {names[0]} gets {figures['chance']:.0%}", fontsize=13, color=INK, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
