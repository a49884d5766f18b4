"""Pages in the cells of a notebook: sandboxed frames of one document, offline."""

import pytest

from model.glass import open_run

pytestmark = pytest.mark.slow


def test_two_readings_in_one_notebook_do_not_disturb_each_other(trained, open_file):
    glass = open_run(trained())
    readings = [glass.read("the model reads"), glass.read("which word", without=["head 0.0"])]
    cells = [one._repr_html_() for one in readings]
    notebook = f"<!doctype html><body>{''.join(cells)}<div hidden>{cells[0]}</div>"  # the last cell is folded
    page = open_file(notebook, width=1300, height=1600)
    frames = [page.frame_locator("iframe").nth(number) for number in range(3)]
    frames.pop().locator("html[data-drawn]").wait_for(state="attached")
    shown = [frame.locator("#tokens").inner_text() for frame in frames]
    before = frames[1].locator("#sentences").inner_text()
    frames[0].locator("#grid button").last.click()  # an address that cannot be changed in a frame is no error
    frames[0].locator("body").press("ArrowRight")
    assert [frame.locator("#tokens").inner_text() for frame in frames] == shown
    assert frames[1].locator("#sentences").inner_text() == before
    assert page.locator("iframe").first.get_attribute("sandbox") == "allow-scripts allow-downloads"
