"""The picture of a circuit in a browser: to point at a node lights its paths, to click switches it off."""

import torch

from model.inspection.circuit import Circuit, Edge, Node, Off, Response
from model.pages.circuit_picture import drawing

A, B = (Node("token", 0, ord(letter)) for letter in "ab")
LEFT, RIGHT = (Node("stream", 0, channel) for channel in (3, 4))
VALUES = [Node("value", 0, channel) for channel in (7, 8)]
QUERY, KEY = Node("query", 0, 9), Node("key", 0, 9)
PREDICTIONS = [Node("prediction", 0, ord(letter)) for letter in "ab"]
EDGES = [
    *(Edge(A, LEFT, 1.0, [0.5, -2.0]), Edge(LEFT, VALUES[0], -2.0)),
    *(Edge(VALUES[0], LEFT, 1.5), Edge(LEFT, PREDICTIONS[0], -0.5)),
    *(Edge(B, RIGHT, 1.0), Edge(RIGHT, VALUES[1], 1.0), Edge(VALUES[1], RIGHT, 1.0), Edge(RIGHT, PREDICTIONS[1], 1.0)),
    *(Edge(LEFT, QUERY, 1.0), Edge(RIGHT, KEY, 1.0)),
]
OFF = {node: Off(1.25 + place, (ord("b"), 9.0), (ord("a"), 2.0)) for place, node in enumerate([LEFT, RIGHT, *VALUES])}
RESPONSES = {VALUES[0]: Response(0, [], [ord("a")]), VALUES[1]: Response(1, [ord("b")], [])}
CIRCUIT = Circuit(EDGES, 0.1, 0.2, 5.0, OFF, RESPONSES, torch.eye(4)[None, 1:2], 3, {0: (3.0, 3.5), 800: (0.3, 2.0)})


def test_a_node_shows_its_paths_and_what_the_loss_is_without_it(open_file, tmp_path):
    path = tmp_path / "circuit.svg"
    path.write_text(drawing(CIRCUIT, chr), encoding="utf-8")
    page = open_file(path)
    told = page.locator("#sentence")
    opening = told.text_content()
    assert told.bounding_box()["x"] >= 0
    assert opening.startswith("10 weights that repeat rows of tokens: a token of the second copy costs 0.20 nats with ")
    assert opening.endswith("these weights alone, and 0.10 with all; 5.00 without these")
    assert "layer 0: head 0.0 looks at the token" in " ".join(page.locator(".level").all_text_contents())

    line = page.locator("line[data-earlier]").first
    page.locator(".step", has_text="800").click()
    assert told.text_content().startswith("Step 800: ") and "costs 2.00 nats" in told.text_content()
    assert (line.get_attribute("stroke-width"), line.get_attribute("class")) == ("2.4", "minus")
    assert line.text_content() == "weight -2.00"
    page.locator(".step", has_text="800").click()  # back to the end of the training
    assert (line.get_attribute("stroke-width"), line.get_attribute("class")) == ("1.2", "plus")

    page.hover("#value-0-7-2")
    assert told.text_content() == "value 7: low at a; where high it lowers a"
    lit = page.locator(".node:not(.far)").evaluate_all("nodes => nodes.map((node) => node.id)")
    ends = ["token-0-97-0", "stream-0-3-1", "value-0-7-2", "stream-0-3-3", "prediction-0-97-6"]
    assert sorted(lit) == sorted(ends)
    assert page.locator("line[data-weight]:not(.far)").count() == 4
    page.hover("#query-0-9-2")  # with the key that it meets
    lit = page.locator(".node:not(.far)").evaluate_all("nodes => nodes.map((node) => node.id)")
    ends = ["token-0-97-0", "stream-0-3-1", "query-0-9-2", "key-0-9-2", "stream-0-4-1", "token-0-98-0"]
    assert sorted(lit) == sorted(ends) and told.text_content() == "query 9"
    page.hover("#sentence")
    assert page.locator(".far").count() == 0 and told.text_content() == opening

    page.click("#stream-0-3-1")  # at both of its places
    said = "stream 3 held at its mean: 1.25 nats instead of 0.20, most after b (+9.00) and before a (+2.00)"
    assert told.text_content() == said and page.locator(".off").count() == 2
    assert page.locator("line[data-weight]").evaluate_all("all => all.filter((e) => e.checkVisibility()).length") == 5
    page.click("#stream-0-3-3")
    assert told.text_content() == opening and page.locator(".off").count() == 0
    page.click("#token-0-97-0")  # a token is what is read: it cannot be switched off
    assert page.locator(".off").count() == 0
