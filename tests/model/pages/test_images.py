"""Pictures of maps: colours are those of the weights, labels are legible and never parsed as formulas."""

from dataclasses import replace

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.text import Text

from model.pages import images
from model.pages.describe import visible
from tests.html_pages import HOSTILE
from tests.measurements import learned_recording
from tests.watching import before_call


def test_labels_are_those_of_the_page_except_where_the_font_lacks_a_character():
    assert images.legible(" a\t" * 9) == visible(" a\t" * 9, images.MAX_LABEL)
    assert images.legible("😀") != images.legible("界")


def test_pictures_have_the_colour_of_every_weight_at_its_place_and_labels_as_text(recwarn, tmp_path, monkeypatch):
    """In the colours of the page, and grey where there is no weight."""
    run = replace(learned_recording(2, 2, HOSTILE, (4,)), name="$\\bad{$ </script>")
    rows, figures = [[(1, 1), (0, 1)], [(0, 0), (1, 0)]], []
    before_call(monkeypatch.setattr, Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    images.draw_maps(run, tmp_path / "maps.png", 4, rows)
    assert not recwarn.list
    maps, size, [figure] = run.maps(4)["text"].astype(float), len(HOSTILE), figures
    [image] = figure.axes[0].images
    drawn = image.to_rgba(image.get_array())[..., :3]
    pixels = images.mosaic_pixels([[maps[head] for head in row] for row in rows])
    zoom = images.PIXELS // len(drawn)
    inks = LinearSegmentedColormap.from_list("ink", images.COLOURS)
    for picture in (drawn, pixels[::zoom, ::zoom] / 255):
        assert np.ptp(picture[size]) == np.ptp(picture[:, size]) == 0  # a grey pixel between two maps
        for row, column in np.ndindex(2, 2):
            found = picture[row * (size + 1) :, column * (size + 1) :][:size, :size]
            np.testing.assert_allclose(found, inks(np.sqrt(maps[rows[row][column]]))[..., :3], atol=0.02)
    texts = {text.get_text() for text in figure.findobj(Text)}
    assert {"weight", "0.25", "head 0.1", *map(images.legible, HOSTILE)} <= texts
