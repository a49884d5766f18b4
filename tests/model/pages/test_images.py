"""Pictures of maps: labels are legible and never parsed as formulas. test_export.py checks the colours."""

from dataclasses import replace

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from model.pages import images
from model.pages.describe import visible
from tests.html_pages import HOSTILE
from tests.measurements import learned_recording


def test_labels_are_those_of_the_page_and_differ_for_different_characters():
    tokens = [" ", "\n", "\\n", "\\", "n", " a\t", "", "\x00", "\u202e", "a" * 30]
    labels = [images.legible(token) for token in tokens]
    assert labels == [visible(token, images.MAX_LABEL) for token in tokens] and len({*labels}) == len(tokens)
    assert images.legible("😀") != images.legible("界")


def test_hostile_text_is_drawn_without_a_warning(recwarn, tmp_path):
    recording = replace(learned_recording(1, 2, HOSTILE, (0,), induction=False), name="$\\bad{$ </script>")
    images.draw_maps(recording, tmp_path / "picture.png", 0, [[(0, 0), (0, 1)]])
    assert imread(tmp_path / "picture.png").size
    assert not recwarn.list


def test_a_mosaic_has_a_square_in_the_colour_of_each_weight_and_grey_for_nan_and_gaps():
    maps = np.zeros((2, 3, 4, 4))
    maps[1, 2, 3, 0], maps[0, 0, 0, 0] = 1, np.nan
    zoom = images.PIXELS // (3 * 5 - 1)
    found = images.mosaic_pixels(maps)[::zoom, ::zoom]  # with a line between two heads
    brightest, darkest = (np.round(255 * np.array(to_rgb(images.COLOURS[end]))) for end in (0, -1))
    assert (found[0, 0] == 200).all() and (found[:, 4] == 200).all()
    assert (found[5:, :4] == brightest).all() and (found[5 + 3, 2 * 5] == darkest).all()
