"""A circuit in words, and as a picture: tokens below, predictions above, and a line for every weight."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from textwrap import wrap
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from model.checks import listed
from model.inspection.circuit import Circuit, Edge, Node
from model.inspection.probes import Label
from model.pages.describe import visible

Place = tuple[int, Node]  # a node at a level; a channel of the stream has one at each level that writes it

MAX_DRAWN = 2000  # weights
SWEEPS = 12  # in which nodes move to where their lines lead
PITCH = 36  # pixels from one node to the next,
RISE = 120  # from one level to the next,
WIDTH_OF_ONE = 1.2  # pixels of a line of weight 1
LEFT, TOP = 270, 150  # pixels around the lines, for words
NONE = "there is no circuit to draw: without any of its nodes the model copies as well, or as badly"
ENDS = ("token", "prediction")  # kinds of nodes that are tokens
FOLDER = Path(__file__).parent


def in_words(circuit: Circuit, label: Label) -> str:
    """The circuit in lines of text: both tests, its size, and what each of its nodes responds to."""
    counts = Counter(node.kind for node in circuit.off)
    lines = [
        f"{circuit.whole:7.3f}  nats per token of the second copy: the model",
        f"{circuit.alone:7.3f}  the circuit alone, all other nodes at their mean",
        f"{circuit.without:7.3f}  the model without the circuit, its nodes at their mean",
    ]
    if not circuit.edges:
        return "\n".join([*lines, NONE])
    lines.append(
        f"{len(circuit.off)} nodes ({listed([f'{count} {kind}' for kind, count in counts.items()])}) and "
        f"{len(circuit.edges)} weights between them"
    )
    for layer in range(len(circuit.looks_back)):
        lines.append(f"layer {layer}: {looking(circuit, layer)}")
        lines += [f"  {sentence(circuit, node, label)}" for node in circuit.responses if node.layer == layer]
    return "\n".join(lines)


def looking(circuit: Circuit, layer: int) -> str:
    """Such as "head 1.0 looks at what followed the same token before (80% of its attention)"."""
    places = {0: "the token itself", 1: "the token before"}
    places |= {circuit.period - 1: "what followed the same token before", circuit.period: "the same token before"}
    found = []
    for head, weights in enumerate(circuit.looks_back[layer]):
        back = int(weights.argmax())
        place, share = places.get(back, f"the token {back} back"), f"{weights[back]:.0%} of its attention"
        found.append(f"head {layer}.{head} looks at {place} ({share})")
    return ", ".join(found)


def sentence(circuit: Circuit, node: Node, label: Label) -> str:
    """Such as "value 62: high at h, low at m; where high it raises h and lowers m", by the channels that it writes."""
    effects: dict[int, float] = defaultdict(float)
    written = {edge.target: edge.weight for edge in circuit.edges if edge.source == node}
    for edge in circuit.edges:
        if edge.source in written and edge.target.kind == "prediction":
            effects[edge.target.number] += written[edge.source] * edge.weight
    half, parts = max(map(abs, effects.values()), default=0.0) / 2, []
    if response := circuit.responses.get(node):
        where = "after" if response.back else "at"
        parts.append(", ".join(_each(label, {f"high {where}": response.high, f"low {where}": response.low})))
    raised, lowered = ([token for token in sorted(effects) if effects[token] * sign > half] for sign in (1, -1))
    if sides := _each(label, {"raises": raised, "lowers": lowered}):
        parts.append(f"{'by itself' if node.kind == 'token' else 'where high'} it {' and '.join(sides)}")
    name = f"{node.kind} {visible(label(node.number)) if node.kind in ENDS else node.number}"
    return f"{name}: {'; '.join(parts)}" if parts else name


def held(circuit: Circuit, node: Node, label: Label) -> str:
    """Such as "value 62 held at its mean: 0.41 nats instead of 0.32, most after h (+0.21) and before m (+0.80)"."""
    off = circuit.off[node]
    most = [f"{visible(label(token))} ({rise:+.2f})" for token, rise in (off.after, off.before)]
    nats = f"{off.loss:.2f} nats instead of {circuit.alone:.2f}"
    return f"{node.kind} {node.number} held at its mean: {nats}, most after {most[0]} and before {most[1]}"


def _each(label: Label, sides: dict[str, list[int]]) -> list[str]:
    """Such as ["raises h and l", "lowers m"], without a side that has no tokens."""
    return [f"{verb} {listed([visible(label(one)) for one in tokens])}" for verb, tokens in sides.items() if tokens]


def lines(circuit: Circuit) -> list[tuple[Place, Place, Edge | None]]:
    """Where each edge begins and ends; and without an edge, from one place of a channel to its next."""
    top = 2 + 4 * len(circuit.looks_back)

    def level(node: Node) -> int:
        """Of a node outside the stream; between two of these is a level for what the lower one writes."""
        return {"token": 0, "hidden": 4 + 4 * node.layer, "prediction": top}.get(node.kind, 2 + 4 * node.layer)

    written: dict[Node, set[int]] = defaultdict(set)  # the levels at which a channel of the stream is
    for edge in circuit.edges:
        if edge.target.kind == "stream":
            written[edge.target].add(level(edge.source) + 1)
    found: list[tuple[Place, Place, Edge | None]] = []
    for edge in circuit.edges:
        if edge.target.kind == "stream":
            end = (start := level(edge.source)) + 1
        else:  # what nothing writes before it is read is always there
            end = level(edge.target)
            written[edge.source].add(start := max((at for at in written[edge.source] if at < end), default=1))
        found.append(((start, edge.source), (end, edge.target), edge))
    for node, levels in written.items():
        found += [((low, node), (high, node), None) for low, high in pairwise(sorted(levels))]
    return found


def places(circuit: Circuit) -> list[dict[Place, float]]:
    """Row by row from below, how far to the right each node stands, from 0 to 1.

    Tokens and predictions stand in the order of their ids, the others near those that their lines lead to.
    """
    neighbours: dict[Place, list[Place]] = defaultdict(list)
    for start, end, _ in lines(circuit):
        neighbours[start].append(end)
        neighbours[end].append(start)
    rows = [list(row) for _, row in groupby(sorted(neighbours), key=itemgetter(0))]
    across = {place: (number + 0.5) / len(row) for row in rows for number, place in enumerate(row)}
    for sweep in range(SWEEPS):
        for row in rows[1:-1] if sweep % 2 else rows[-2:0:-1]:
            means = {place: sum(map(across.__getitem__, neighbours[place])) / len(neighbours[place]) for place in row}
            for place in row:  # a query stands beside the key that it meets
                if (key := met(place)) in means:
                    means[key] = means[place] = (means[key] + means[place]) / 2
            for number, place in enumerate(sorted(row, key=means.__getitem__)):
                across[place] = (number + 0.5) / len(row)
    return [{place: across[place] for place in row} for row in rows]


def met(place: Place) -> Place | None:
    """Where the key is with which a query is multiplied, if this is a query."""
    level, node = place
    return (level, node._replace(kind="key")) if node.kind == "query" else None


def drawing(circuit: Circuit, label: Label) -> str:
    """The picture, an SVG that opens offline. In a browser it shows what each node does and what the loss is without.

    Each line has its weight, as the checkpoint has it, as data-weight, and its ends as data-from and data-to; if there
    are earlier steps, data-earlier are its weights at each of them.

    Raises ValueError for a circuit without weights, or of too many.
    """
    if not circuit.edges:
        raise ValueError(NONE)
    if len(circuit.edges) > MAX_DRAWN:
        raise ValueError(
            f"a picture of {len(circuit.edges):,} weights would be black, {MAX_DRAWN:,} are the most: "
            "train with --config configs/sparse.yaml"
        )
    rows = places(circuit)
    width, height = PITCH * max(map(len, rows)), RISE * (len(rows) - 1)
    point = {place: (round(x * width), height - RISE * row) for row, of in enumerate(rows) for place, x in of.items()}
    shapes = [_line(start, end, point, edge) for start, end, edge in lines(circuit)]
    shapes += [_line(place, key, point) for place in point if (key := met(place)) in point]
    notes = {}
    for place, (x, y) in point.items():
        shapes.append(_box(circuit, place, x, y, label))
        node = place[1]
        attends = node.kind in ("query", "key", "value")
        notes[y] = f"layer {node.layer}: {looking(circuit, node.layer)}" if attends else node.kind
    for y, note in notes.items():
        shapes.append(_element("text", {"class": "note level", "y": y}, _rows(wrap(note, 36), -24, 14)))
    cost = "a token of the second copy costs {1:.2f} nats with these weights alone, and {0:.2f} with all".format
    for number, (step, losses) in enumerate(circuit.earlier.items()):
        shown = {"class": "step", "x": 90 * number - 250, "y": -30, "data-sentence": f"Step {step}: {cost(*losses)}"}
        shapes.append(_element("text", shown, f"step {step}"))
    opening = (
        f"{len(circuit.edges)} weights that repeat rows of tokens: {cost(circuit.whole, circuit.alone)}; "
        f"{circuit.without:.2f} without these"
    )
    document = (FOLDER / "circuit.svg").read_text(encoding="utf-8")
    view = f'viewBox="{-LEFT} {-TOP} {width + LEFT + 20} {height + TOP + 30}"'
    document = document.replace('viewBox=""', view).replace('"sentence">', f'"sentence">{opening}')
    script = (FOLDER / "browser" / "circuit.js").read_text(encoding="utf-8")
    return document.replace("<!-- shapes -->", "\n".join(shapes)).replace("/* browser/circuit.js */", script)


def _line(start: Place, end: Place, point: dict[Place, tuple[int, int]], edge: Edge | None = None) -> str:
    (x1, y1), (x2, y2) = point[start], point[end]
    shown: dict[str, Any] = {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "data-from": _id(start), "data-to": _id(end)}
    if edge is None:
        return _element("line", shown | {"class": "carried" if start[0] < end[0] else "meets"})
    shown["class"], shown["data-weight"] = "plus" if edge.weight > 0 else "minus", edge.weight
    shown["stroke-width"] = round(WIDTH_OF_ONE * abs(edge.weight), 2)
    if edge.earlier:
        shown["data-earlier"] = json.dumps(edge.earlier)
    return _element("line", shown, _element("title", {}, f"weight {edge.weight:.2f}"))


def _box(circuit: Circuit, place: Place, x: int, y: int, label: Label) -> str:
    """A node with its token, or its number and what it is high (+) and low (-) for; "h…": after h."""
    node, texts = place[1], [str(place[1].number)]
    if node.kind in ENDS:
        texts = [visible(label(node.number))]
    elif response := circuit.responses.get(node):
        after, sides = "…" * response.back, (("+", response.high), ("−", response.low))
        texts = [f"{node.kind[0]}{node.number}"]
        texts += [sign + " ".join(visible(label(one)) + after for one in tokens) for sign, tokens in sides if tokens]
    wide, tall = max(14, 6 * max(map(len, texts)) + 4), 10 * len(texts) + 5
    shown = {"class": f"node {node.kind}", "id": _id(place), "data-sentence": sentence(circuit, node, label)}
    if node in circuit.off:
        shown["data-off"] = held(circuit, node, label)
    box = _element("rect", {"x": x - wide / 2, "y": y - tall / 2, "width": wide, "height": tall, "rx": 3})
    return _element("g", shown, box + _element("text", {"y": y + 8 - 5 * len(texts)}, _rows(texts, x, 10)))


def _element(name: str, attributes: dict[str, Any], content: str = "") -> str:
    written = "".join(f" {key}={quoteattr(str(value))}" for key, value in attributes.items())
    return f"<{name}{written}>{content}</{name}>"


def _rows(texts: list[str], x: int, pitch: int) -> str:
    """Texts below each other, as the content of a text element."""
    return "".join(_element("tspan", {"x": x, "dy": pitch * (row > 0)}, escape(one)) for row, one in enumerate(texts))


def _id(place: Place) -> str:
    level, node = place
    return f"{node.kind}-{node.layer}-{node.number}-{level}"
