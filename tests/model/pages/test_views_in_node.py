"""The pure functions of the page's views, tested in JavaScript. See views.test.mjs."""

from pathlib import Path

from tests.model.pages.node import run_node


def test_pure_functions_of_the_views():
    run_node("--test", Path(__file__).with_name("views.test.mjs"))
