"""A circuit in words, and as a picture: tokens below, predictions above, and a line for every weight."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from model.inspection.circuit import Circuit, Edge, Node, Response
from model.inspection.verdicts import listed
from model.pages.describe import visible

Label = Callable[[int], str]  # the text of a token
Place = tuple[int, Node]  # a node at a level; a channel of the stream has one at each level that writes it

MAX_DRAWN = 2000  # weights
SWEEPS = 12  # in which nodes move to where their lines lead
PITCH = 36  # pixels from one node to the next,
RISE = 120  # from one level to the next,
WIDTH_OF_ONE = 1.2  # pixels of a line of weight 1
LEFT, TOP = 270, 130  # pixels around the lines, for words
FOLDER = Path(__file__).parent


def told(circuit: Circuit, label: Label) -> str:
    """The circuit in lines of text: both tests, its size, and what each of its nodes responds to."""
    counts = Counter(node.kind for node in circuit.nodes)
    lines = [
        f"{circuit.whole:7.3f}  nats per token of the second copy: the model",
        f"{circuit.alone:7.3f}  the circuit alone, all other nodes at their mean",
        f"{circuit.without:7.3f}  the model without the circuit, its nodes at their mean",
        f"{len(circuit.nodes)} nodes ({listed([f'{count} {kind}' for kind, count in counts.items()])}) and "
        f"{len(circuit.edges)} weights between them",
    ]
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
    half = max(map(abs, effects.values()), default=0.0) / 2
    parts = [responding(circuit.responses[node], label)] if node in circuit.responses else []
    sides = []
    for side, sign in (("raises", 1), ("lowers", -1)):
        tokens = [visible(label(token)) for token, effect in sorted(effects.items()) if effect * sign > half]
        sides += [f"{side} {listed(tokens)}"] if tokens else []
    if sides:
        where = "by itself" if node.kind == "token" else "where high"
        parts.append(f"{where} it {' and '.join(sides)}")
    is_token = node.kind in ("token", "prediction")
    name = f"{node.kind} {visible(label(node.number)) if is_token else node.number}"
    return f"{name}: {'; '.join(parts)}" if parts else name


def responding(response: Response, label: Label) -> str:
    """Such as "high after h, low after m"."""
    where = "after" if response.back else "at"
    sides = (("high", response.high), ("low", response.low))
    found = [
        f"{side} {where} {listed([visible(label(token)) for token in tokens])}" for side, tokens in sides if tokens
    ]
    return ", ".join(found)


def lines(circuit: Circuit) -> list[tuple[Place, Place, Edge | None]]:
    """Where each edge begins and ends; and without an edge, from one place of a channel to its next."""
    top = 2 + 4 * len(circuit.looks_back)

    def level(node: Node) -> int:
        """Of a node outside the stream; between two of these is a level for what the lower one writes."""
        return {"token": 0, "hidden": 4 + 4 * node.layer, "prediction": top}.get(node.kind, 2 + 4 * node.layer)

    written: dict[Node, set[int]] = defaultdict(set)
    for edge in circuit.edges:
        if edge.target.kind == "stream":
            written[edge.target].add(level(edge.source) + 1)
        elif not any(at < level(edge.target) for at in written[edge.source]):
            written[edge.source].add(1)  # nothing writes it before it is read: it is always there
    found: list[tuple[Place, Place, Edge | None]] = []
    for edge in circuit.edges:
        if edge.target.kind == "stream":
            found.append(((level(edge.source), edge.source), (level(edge.source) + 1, edge.target), edge))
        else:
            end = level(edge.target)
            found.append(((max(at for at in written[edge.source] if at < end), edge.source), (end, edge.target), edge))
    for node, levels in written.items():
        found += [((low, node), (high, node), None) for low, high in pairwise(sorted(levels))]
    return found


def places(circuit: Circuit) -> dict[Place, tuple[float, int]]:
    """How far to the right each node stands, from 0 to 1, near those that its lines lead to; and in which row."""
    neighbours: dict[Place, list[Place]] = defaultdict(list)
    for start, end, _ in lines(circuit):
        neighbours[start].append(end)
        neighbours[end].append(start)
    rows = [
        [place for place in neighbours if place[0] == level] for level in sorted({level for level, _ in neighbours})
    ]
    across = {place: (number + 0.5) / len(row) for row in rows for number, place in enumerate(row)}
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 else reversed(rows):
            means = {place: sum(map(across.__getitem__, neighbours[place])) / len(neighbours[place]) for place in row}
            for level, node in row:  # a query stands beside the key that it meets
                if (key := (level, Node("key", node.layer, node.number))) in means and node.kind == "query":
                    means[key] = means[level, node] = (means[key] + means[level, node]) / 2
            for number, place in enumerate(sorted(row, key=means.__getitem__)):
                across[place] = (number + 0.5) / len(row)
    return {place: (across[place], number) for number, row in enumerate(rows) for place in row}


def drawing(circuit: Circuit, label: Label) -> str:
    """The picture, an SVG that opens offline. In a browser it shows what each node does and what the loss is without.

    Each line has its weight, as the checkpoint has it, as data-weight, and its ends as data-from and data-to.

    Raises ValueError for a circuit without weights, or of too many.
    """
    if not circuit.edges:
        raise ValueError("there is no circuit to draw: without any of its nodes the model copies as well, or as badly")
    if len(circuit.edges) > MAX_DRAWN:
        raise ValueError(
            f"a picture of {len(circuit.edges):,} weights would be black, {MAX_DRAWN:,} are the most: "
            "train with --config configs/sparse.yaml"
        )
    found = places(circuit)
    rows = Counter(row for _, row in found.values())
    width, height = PITCH * max(rows.values()), RISE * (len(rows) - 1)
    point = {place: (round(x * width), height - row * RISE) for place, (x, row) in found.items()}
    shapes = [_line(start, end, point, edge) for start, end, edge in lines(circuit)]
    notes = {}
    for place, (x, y) in point.items():
        shapes.append(_box(circuit, place, x, y, label))
        node = place[1]
        attends = node.kind in ("query", "key", "value")
        notes[y] = f"layer {node.layer}: {looking(circuit, node.layer)}" if attends else node.kind
    for y, note in notes.items():
        shapes.append(_element("text", {"class": "note level", "y": y}, _rows(wrap(note, 36), -24, 14)))
    opening = (
        f"{len(circuit.edges)} weights that repeat rows of tokens. A token of the second copy costs "
        f"{circuit.alone:.2f} nats with them alone, all else at its mean; {circuit.whole:.2f} with all, "
        f"{circuit.without:.2f} without them"
    )
    document = (FOLDER / "circuit.svg").read_text(encoding="utf-8")
    view = f'viewBox="{-LEFT} {-TOP} {width + LEFT + 20} {height + TOP + 30}"'
    document = document.replace('viewBox=""', view).replace('"told">', f'"told">{opening}')
    script = (FOLDER / "browser" / "circuit.js").read_text(encoding="utf-8")
    return document.replace("<!-- shapes -->", "\n".join(shapes)).replace("/* browser/circuit.js */", script)


def _line(start: Place, end: Place, point: dict[Place, tuple[int, int]], edge: Edge | None) -> str:
    (x1, y1), (x2, y2) = point[start], point[end]
    shown: dict[str, Any] = {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "data-from": _id(start), "data-to": _id(end)}
    if edge is None:
        return _element("line", shown | {"class": "carried"})
    shown |= {
        "class": "plus" if edge.weight > 0 else "minus",
        "stroke-width": round(WIDTH_OF_ONE * abs(edge.weight), 2),
    }
    return _element("line", shown | {"data-weight": edge.weight}, _element("title", {}, f"weight {edge.weight:.2f}"))


def _box(circuit: Circuit, place: Place, x: int, y: int, label: Label) -> str:
    node, texts = place[1], _texts(circuit, place[1], label)
    wide, tall = max(14, 6 * max(map(len, texts)) + 4), 10 * len(texts) + 5
    shown = {"class": f"node {node.kind}", "id": _id(place), "data-told": sentence(circuit, node, label)}
    if node in circuit.off:
        nats, token, rise = circuit.off[node]
        most = f"; after {visible(label(token))} {rise:.2f} more"
        shown["data-off"] = f"without {node.kind} {node.number}: {nats:.2f} nats instead of {circuit.alone:.2f}{most}"
    box = _element("rect", {"x": x - wide / 2, "y": y - tall / 2, "width": wide, "height": tall, "rx": 3})
    return _element("g", shown, box + _element("text", {"y": y + 8 - 5 * len(texts)}, _rows(texts, x, 10)))


def _element(name: str, attributes: dict[str, Any], content: str = "") -> str:
    written = "".join(f" {key}={quoteattr(str(value))}" for key, value in attributes.items())
    return f"<{name}{written}>{content}</{name}>"


def _rows(texts: list[str], x: int, pitch: int) -> str:
    """Texts below each other, as the content of a text element."""
    return "".join(
        _element("tspan", {"x": x, "dy": pitch if row else 0}, escape(text)) for row, text in enumerate(texts)
    )


def _id(place: Place) -> str:
    level, node = place
    return f"{node.kind}-{node.layer}-{node.number}-{level}"


def _texts(circuit: Circuit, node: Node, label: Label) -> list[str]:
    """What stands in a node: its token, its number, or that and what it is high (+) and low (-) for; "h…": after h."""
    if node.kind in ("token", "prediction"):
        return [visible(label(node.number))]
    if node not in circuit.responses:
        return [str(node.number)]
    response = circuit.responses[node]
    after = "…" if response.back else ""
    sides = (("+", response.high), ("−", response.low))
    signs = [sign + " ".join(visible(label(one)) + after for one in tokens) for sign, tokens in sides if tokens]
    return [f"{node.kind[0]}{node.number}", *signs]
