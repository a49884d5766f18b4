"""The film as one animated picture (GIF), drawn by matplotlib: see model/inspection/film.py.

Import this module only when you draw: importing matplotlib takes a second.

Shapes: L layers, H heads, T tokens.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib
import numpy as np
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch

from model.files import write_atomically
from model.inspection.film import LEAST_RAISE, SOURCE, Film, Frame
from model.inspection.recording import Recording
from model.mistakes import Mistake
from model.pages.describe import visible
from model.pages.film import film_of, formed_steps
from model.pages.images import BETWEEN, colour_map, legible
from model.pages.learning import evenly
from model.pages.pictures import SETTINGS

SIZE = (9.2, 5.2)  # inches
DPI = 100
SECONDS = 12
MOST_STEPS = 40  # evenly spread over the recorded steps: each frame adds to the size of the file
AT_A_FORMATION, AT_THE_END = 3, 5  # for how many frames the picture stands still
BARS = 5  # next tokens that are shown
INK, SOFT, RIGHT, ARROW = "#191d23", "#5c6672", "#275c9c", "#b05a00"


def draw_film(recording: Recording, path: Path) -> None:
    """Writes the film of a recording, SECONDS long. Raises a `Mistake` if it has none."""
    film = film_of(recording)
    if film is None:
        raise Mistake(f"{recording.name} has no film: no made-up word could be recorded")
    formed = formed_steps(recording, film)
    steps = sorted({*evenly(recording.mapped, MOST_STEPS), *formed.values()})
    pauses = dict.fromkeys(formed.values(), AT_A_FORMATION) | {steps[-1]: AT_THE_END}
    shown = [step for step in steps for _ in range(pauses.get(step, 1))]
    with TemporaryDirectory() as folder, matplotlib.rc_context(SETTINGS):
        file = Path(folder, "film.gif")
        figure = Figure(SIZE, dpi=DPI)
        writer = PillowWriter(fps=len(shown) / SECONDS)
        with writer.saving(figure, str(file), DPI):
            for step in shown:
                figure.clear()
                _draw(figure, recording, film, step, [role for role in formed if formed[role] == step])
                writer.grab_frame()
        write_atomically(path, file.read_bytes())


def _draw(figure: Figure, recording: Recording, film: Film, step: int, forming: list[str]) -> None:
    """Draws a step. forming: the roles of the heads that begin to form there."""
    frame = recording.frame(step)
    *labels, right = map(visible, recording.words.labels[film.word])
    chance = frame.chance[film.word].item()
    last = recording.mapped[-1]
    figure.text(0.03, 0.94, f"step {step} of {last}", fontsize=17, color=INK, weight="bold")
    figure.text(0.28, 0.945, f"reads  {''.join(labels)}", fontsize=14, color=INK, family="monospace")
    figure.text(0.03, 0.02, _sentence(film, frame, labels[SOURCE], forming), fontsize=11, color=INK)
    thumbs = _draw_heads(figure, frame.maps[film.word].numpy())
    if film.finder:
        _mark_source(thumbs[film.finder], len(labels))
        _draw_arrows(figure, thumbs, film.finder, frame.raises[(film.word, *film.finder)].numpy())
    _draw_bars(figure, film, frame, right, chance)


def _sentence(film: Film, frame: Frame, source: str, forming: list[str]) -> str:
    if film.missing:
        return f"At the last step, {film.missing}."
    names = {role: "head {}.{}".format(*place) for role, place in film.heads.items() if place}
    does = {"writer": "to look one token back", "finder": "to look at what followed the same token before"}
    if forming:
        return " and ".join(f"{names[role]} begins {does[role]}" for role in forming).capitalize() + "."
    weight = frame.maps[(film.word, *film.finder)][-1, SOURCE].item()  # type: ignore[misc]
    start = "The letters are random: only their first copy tells what comes next."
    return f"{start} {names['finder'].capitalize()} gives the first {source} {weight:.0%} of its attention."


def _draw_heads(figure: Figure, maps: np.ndarray) -> dict[tuple[int, int], Axes]:
    """Draws the map of each head, layer 0 at the bottom, and returns where."""
    layers, heads = maps.shape[:2]
    grid = figure.add_gridspec(layers, heads, left=0.03, right=0.56, bottom=0.1, top=0.88, hspace=0.28, wspace=0.1)
    thumbs = {}
    for layer, head in np.ndindex(layers, heads):
        axes = figure.add_subplot(grid[layers - 1 - layer, head])
        axes.imshow(maps[layer, head], cmap=colour_map(), norm=PowerNorm(0.5, 0, 1), interpolation="none")
        axes.set_title(f"head {layer}.{head}", fontsize=9, color=SOFT, pad=2)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color(BETWEEN)
        thumbs[layer, head] = axes
    return thumbs


def _mark_source(axes: Axes, length: int) -> None:
    """Frames the weight of the last token on the source."""
    box: dict[str, Any] = {"fill": False, "edgecolor": ARROW, "linewidth": 1.5}
    axes.add_patch(matplotlib.patches.Rectangle((SOURCE - 0.5, length - 1.5), 1, 1, **box))


def _draw_arrows(figure: Figure, thumbs: dict[tuple[int, int], Axes], finder: tuple[int, int], raises: Any) -> None:
    """Draws an arrow into the finder from each head that raises its score, as thick as it does so."""
    for place in zip(*np.nonzero(raises >= LEAST_RAISE), strict=True):
        ends = {
            "xyA": (0.5, 1),
            "xyB": (0.5, 0),
            "coordsA": thumbs[place].transAxes,
            "coordsB": thumbs[finder].transAxes,
        }
        look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 14, "color": ARROW, "alpha": 0.85}
        figure.add_artist(ConnectionPatch(**ends, **look, linewidth=min(6, raises[place])))


def _draw_bars(figure: Figure, film: Film, frame: Frame, right: str, chance: float) -> None:
    """Draws the probabilities of the next token: that of the right one above the likeliest others."""
    texts = [visible(text) for text in frame.top[film.word, -1]]
    shares = dict(zip(texts, frame.top_probability[film.word, -1].tolist(), strict=True)) | {right: chance}
    names = [right, *(text for text in texts if text != right)][:BARS]
    axes = figure.add_axes((0.66, 0.2, 0.31, 0.6))
    axes.barh(range(len(names)), [shares[name] for name in names], color=[RIGHT, *[BETWEEN] * (len(names) - 1)])
    axes.set(xlim=(0, 1), ylim=(BARS - 0.5, -0.5), xticks=(0, 0.5, 1), xticklabels=("0%", "50%", "100%"))
    axes.set_yticks(range(len(names)), [legible(name) for name in names], family="monospace", fontsize=12)
    axes.set_title(f"next: {legible(right)} gets {chance:.0%}", fontsize=13, color=RIGHT, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
