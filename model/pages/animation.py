"""The film as one animated picture (GIF), drawn by matplotlib: see model/inspection/film.py.

Import this module only when you draw: importing matplotlib takes a second.

Shapes: L layers, H heads, T tokens.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib
import numpy as np
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from model.files import write_atomically
from model.inspection.film import LEAST_RAISE, SOURCE, Film, Frame
from model.inspection.reading import TOP
from model.inspection.recording import Recording
from model.mistakes import Mistake
from model.pages.describe import visible
from model.pages.film import LENGTH, film_of, formed_steps
from model.pages.images import BETWEEN, draw_mosaic, legible
from model.pages.learning import evenly
from model.pages.pictures import SETTINGS

SIZE = (9.2, 5.2)  # inches
SECONDS = 12
MOST_STEPS = 40  # evenly spread over the recorded steps: each frame adds to the size of the file
AT_A_FORMATION, AT_THE_END = 3, 5  # for how many frames the picture stands still
WIDEST = 6  # points of an arrow
RIGHT, ARROW = "#275c9c", "#b05a00"
BEGINS = {"writer": "to look one token back", "finder": "to look at what followed the same token before"}


def draw_film(recording: Recording, path: Path) -> None:
    """Writes the film of a recording, SECONDS long. Raises a `Mistake` if it has none."""
    film = film_of(recording)
    if film is None:
        raise Mistake(f"{recording.name} has no film: no made-up word could be recorded")
    formed = formed_steps(recording, film)
    steps = {*evenly(recording.mapped, MOST_STEPS), *formed.values()}
    frames = dict.fromkeys(sorted(steps), 1)
    frames |= dict.fromkeys(formed.values(), AT_A_FORMATION)
    frames[recording.mapped[-1]] = AT_THE_END
    figure = Figure(SIZE)
    writer = PillowWriter(fps=sum(frames.values()) / SECONDS)
    with TemporaryDirectory() as folder, matplotlib.rc_context(SETTINGS):
        file = Path(folder, "film.gif")
        with writer.saving(figure, str(file), figure.dpi):
            for step, count in frames.items():
                figure.clear()
                forming = [role for role in formed if formed[role] == step]
                _draw(figure, recording, film, step, forming)
                for _ in range(count):
                    writer.grab_frame()
        write_atomically(path, file.read_bytes())


def _draw(
    figure: Figure,
    recording: Recording,
    film: Film,
    step: int,
    forming: list[str],
) -> None:
    """Draws a step. forming: the roles of the heads that begin to form there."""
    frame = recording.frame(step)
    *labels, right = recording.words.labels[film.word]
    reads = "".join(map(visible, labels))
    sentence = _sentence(film, frame, visible(labels[SOURCE]), forming)
    figure.suptitle(f"Step {step} of {recording.mapped[-1]} reads {reads}", x=0.03, ha="left", fontsize=16)
    figure.supxlabel(sentence, fontsize=11)
    _draw_heads(figure.add_axes((0.03, 0.1, 0.53, 0.79)), film, frame)
    _draw_next(figure.add_axes((0.66, 0.2, 0.31, 0.6)), film, frame, right)


def _sentence(
    film: Film,
    frame: Frame,
    source: str,
    forming: list[str],
) -> str:
    if film.finder is None or film.missing:
        return f"At the last step, {film.missing}."
    begun = ["head {}.{} begins ".format(*film.heads[role]) + BEGINS[role] for role in forming]
    if begun:
        return " and ".join(begun).capitalize() + "."
    weight = frame.maps[(film.word, *film.finder)][-1, SOURCE]
    head = "Head {}.{}".format(*film.finder)
    start = "The letters are random: only their first copy tells what comes next."
    return f"{start} {head} gives the first {source} {weight:.0%} of its attention."


def _draw_heads(axes: Axes, film: Film, frame: Frame) -> None:
    """Draws the map of each head, layer 0 at the bottom.

    An arrow leads from each head that raises the finder's score to the weight of this score, as thick as it does so.
    """
    maps = frame.maps[film.word].numpy()
    layers, heads = maps.shape[:2]
    rows = [[(layer, head) for head in range(heads)] for layer in reversed(range(layers))]
    draw_mosaic(axes, maps, rows)
    axes.set(xticks=[], yticks=[], aspect="equal")
    if film.finder is None:
        return
    raises = frame.raises[(film.word, *film.finder)].numpy()
    corners = {}
    for layer, head in np.ndindex(layers, heads):
        corners[layer, head] = (LENGTH + 1) * np.array([head, layers - 1 - layer])
    for place in zip(*np.nonzero(raises >= LEAST_RAISE), strict=True):
        axes.annotate(
            "",
            xy=corners[film.finder] + [SOURCE, LENGTH - 0.5],
            xytext=corners[place] + LENGTH / 2,
            arrowprops={
                "arrowstyle": "-|>",
                "mutation_scale": 14,
                "color": ARROW,
                "linewidth": min(WIDEST, raises[place]),
            },
        )


def _draw_next(axes: Axes, film: Film, frame: Frame, right: str) -> None:
    """Draws the probabilities of the next token: that of the right one above the likeliest others."""
    texts = frame.top[film.word, -1]
    probabilities = frame.top_probability[film.word, -1].tolist()
    chance = frame.chance[film.word].item()
    shares = {right: chance} | dict(zip(texts, probabilities, strict=True))
    bars = axes.barh(
        range(len(shares)),
        list(shares.values()),
        tick_label=[legible(text) for text in shares],
        color=BETWEEN,
    )
    bars[0].set_color(RIGHT)
    axes.set(xlim=(0, 1), ylim=(TOP + 0.5, -0.5))
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.set_title(f"next: {legible(right)} gets {chance:.0%}", fontsize=13, color=RIGHT, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
