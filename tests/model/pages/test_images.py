"""Pictures of maps: labels are legible and token text is not parsed. test_export.py opens the files again."""

from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
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


def test_bare_pixels_are_squares_of_the_colours_of_their_values_and_grey_where_there_is_none():
    darkest, brightest = ([int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in images.COLOURS[::-6])
    pixels = images.score_pixels([[0, 1], [np.nan, 0.5]])
    half = images.PIXELS // 2
    assert pixels.shape == (images.PIXELS, images.PIXELS, 3) and pixels.dtype == np.uint8
    assert pixels[::half, ::half].tolist()[0] == [brightest, darkest] and pixels[half, 0].tolist() == [200] * 3
    assert (pixels[half:, half:] == pixels[-1, -1]).all()
    maps = np.zeros((2, 3, 4, 4))
    maps[1, 2, 3, 0] = 1
    zoom = images.PIXELS // (3 * 5 - 1)
    found = images.mosaic_pixels(maps)[::zoom, ::zoom]  # a line between two heads
    assert found[5 + 3, 2 * 5].tolist() == darkest and (found[:, 4] == 200).all() and (found[:4, :4] == brightest).all()
