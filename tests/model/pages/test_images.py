"""Pictures of maps: labels are legible and token text is not parsed. test_export.py opens the files again."""

from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.font_manager import findfont, get_font
from matplotlib.image import imread
from matplotlib.text import Text

from model.pages import images
from model.pages.describe import visible
from tests.html_pages import HOSTILE
from tests.measurements import learned_recording


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (12, 12)])
def test_no_two_labels_overlap_at_64_tokens(layers, heads):
    tokens = [*HOSTILE, "return", " self", "supercalifragilistic"]
    labels = [tokens[i % len(tokens)] for i in range(64)]
    rows = [[(layer, head) for head in range(heads)] for layer in range(layers)]
    with matplotlib.rc_context(images.SETTINGS):
        figure = images.maps_figure(np.zeros((layers, heads, 64, 64)), rows, labels, "A title that is long enough")
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw_without_rendering()
    shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    boxes = np.array([text.get_window_extent(renderer).extents for text in shown])  # (N, 4): two corners
    assert len(boxes) > (layers + heads) * 20
    overlap = np.minimum(boxes[:, None, 2:], boxes[:, 2:]) - np.maximum(boxes[:, None, :2], boxes[:, :2])
    both_ways = overlap.min(-1)
    np.fill_diagonal(both_ways, 0)
    assert both_ways.max() <= 1, np.argwhere(both_ways > 1)  # one pixel of antialiasing


@given(st.text(max_size=40))
def test_labels_hold_only_visible_glyphs(token):
    label = images.legible(token)
    font = get_font(findfont(images.FONT))
    assert len(label) <= images.MAX_LABEL
    assert all(font.get_char_index(ord(char)) and char.isprintable() and char != " " for char in label)


def test_labels_are_written_as_on_the_page_and_those_of_different_characters_differ():
    for token in ("\n", " a\t", "", "\x00", "\\", "a" * 30):
        assert images.legible(token) == visible(token, images.MAX_LABEL)
    characters = [" ", "·", "\n", "\\n", "\\", "n", "\x00", "😀", "界", "\u0301", "\u202e"]
    labels = {char: images.legible(char) for char in characters}
    assert labels[" "] == labels.pop("·")  # the one exception
    assert len(set(labels.values())) == len(labels)


def test_hostile_text_is_drawn_without_a_warning(recwarn, tmp_path):
    recording = replace(learned_recording(1, 2, HOSTILE, (0,), induction=False), name="$\\bad{$ </script>")
    images.draw_maps(recording, tmp_path / "picture.png")
    assert imread(tmp_path / "picture.png").size
    assert not recwarn.list


def test_bare_pixels_have_the_colours_of_the_grid_and_of_each_score():
    weights = np.zeros((2, 3, 4, 4))
    weights[1, 2, 3, 0], weights[0, 0, 0, 0] = 1, -0.1  # which is shown as 0
    pixels = images.mosaic_pixels(weights)
    assert pixels.dtype == np.uint8 and max(pixels.shape) == pixels.shape[1] <= images.PIXELS
    zoom = pixels.shape[1] // (3 * 5 - 1)
    assert pixels.shape == ((2 * 5 - 1) * zoom, (3 * 5 - 1) * zoom, 3)
    darkest, brightest = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in images.COLOURS[::6]][::-1]
    row, column = (5 + 3) * zoom, (2 * 5) * zoom
    assert (pixels[row : row + zoom, column : column + zoom] == darkest).all()
    assert (pixels[:zoom, :zoom] == brightest).all()
    assert (pixels[: 4 * zoom, 4 * zoom : 5 * zoom] == 200).all()  # between two heads
    # A heat map has a square for each head, and grey where a model diverged.
    pixels = images.score_pixels([[0, 1], [np.nan, 0.5]])
    assert pixels.shape == (images.PIXELS, images.PIXELS, 3)
    half = images.PIXELS // 2
    corners = pixels[::half, ::half].tolist()
    assert corners[0] == [[255, 255, 255], [13, 18, 56]] and corners[1][0] == [200, 200, 200]
    assert (pixels[half:, half:] == pixels[-1, -1]).all()
