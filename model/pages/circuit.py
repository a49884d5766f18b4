"""A circuit in words, and as a picture: tokens below, predictions above, and a line for every weight."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from model.inspection.circuit import Circuit, Edge, Node, Response
from model.inspection.verdicts import listed
from model.pages.images import DPI, PALETTES, THEMES, printable, theme_settings, write_figure

Label = Callable[[int], str]  # the text of a token

STREAM = "the stream"
MAX_DRAWN = 2000  # weights
SWEEPS = 12  # in which nodes move to where their lines lead
PITCH = 34  # pixels from one node to the next, and
RISE = 130  # from one level to the next
WIDTH_OF_ONE = 1.2  # pixels of a line of weight 1


def told(circuit: Circuit, label: Label) -> str:
    """The circuit in lines of text: both tests, its size, and what each of its nodes responds to."""
    counts = Counter(node.kind for node in circuit.nodes)
    sizes = listed(
        [f"{count} of the {kind}" if kind == "stream" else f"{count} {kind}" for kind, count in counts.items()]
    )
    lines = [
        f"{circuit.whole:7.3f}  nats per token of the second copy: the model",
        f"{circuit.alone:7.3f}  the circuit alone, all other nodes at their mean",
        f"{circuit.without:7.3f}  the model without the circuit, its nodes at their mean",
        f"{len(circuit.nodes)} nodes ({sizes}) and {len(circuit.edges)} weights between them",
    ]
    for layer, heads in enumerate(circuit.looks_back):
        lines += [f"layer {layer}: {', '.join(looking(circuit, layer, head) for head in range(len(heads)))}"]
        for node, response in circuit.responses.items():
            if node.layer == layer:
                lines.append(
                    f"  {node.kind} {node.number}: {responding(response, label)}{writing(circuit, node, label)}"
                )
    return "\n".join(lines)


def looking(circuit: Circuit, layer: int, head: int) -> str:
    """Such as "head 1.0 looks at what followed the same token before (80%)"."""
    weights = circuit.looks_back[layer, head]
    back = int(weights.argmax())
    places = {0: "the token itself", 1: "the token before"}
    places |= {circuit.period - 1: "what followed the same token before", circuit.period: "the same token before"}
    return f"head {layer}.{head} looks at {places.get(back, f'the token {back} back')} ({weights[back]:.0%})"


def responding(response: Response, label: Label) -> str:
    """Such as "high after h, low after m"."""
    where = "at" if response.back == 0 else "after"
    sides = (("high", response.high), ("low", response.low))
    return ", ".join(f"{side} {where} {listed([label(token) for token in tokens])}" for side, tokens in sides if tokens)


def writing(circuit: Circuit, node: Node, label: Label) -> str:
    """Which predictions a node raises or lowers through the channels that it writes, such as "; raises h; lowers m"."""
    effects: dict[int, float] = defaultdict(float)
    written = {edge.target: edge.weight for edge in circuit.edges if edge.source == node}
    for edge in circuit.edges:
        if edge.source in written and edge.target.kind == "prediction":
            effects[edge.target.number] += written[edge.source] * edge.weight
    half = max(map(abs, effects.values()), default=0.0) / 2
    sides = (("raises", 1), ("lowers", -1))
    found = {
        side: [label(token) for token, effect in sorted(effects.items()) if effect * sign > half]
        for side, sign in sides
    }
    return "".join(f"; {side} {listed(tokens)}" for side, tokens in found.items() if tokens)


Place = tuple[int, Node]  # a node at a level; a channel of the stream has several


def levels(circuit: Circuit) -> list[tuple[str, list[Node]]]:
    """The nodes from below to above, by a title. A channel of the stream stands wherever something writes it."""
    tokens = list(dict.fromkeys(edge.source for edge in circuit.edges if edge.source.kind == "token"))
    found = [("token", tokens), (STREAM, _written(circuit, tokens))]
    for layer in range(len(circuit.looks_back)):
        for title, kinds in ((f"attention {layer}", ("query", "key", "value")), (f"feed-forward {layer}", ("hidden",))):
            nodes = [node for node in circuit.nodes if node.layer == layer and node.kind in kinds]
            found += [(title, nodes), (STREAM, _written(circuit, nodes))]
    targets = [edge.target for edge in circuit.edges if edge.target.kind == "prediction"]
    found = [(title, nodes) for title, nodes in found if nodes] + [("prediction", list(dict.fromkeys(targets)))]
    for edge in circuit.edges:  # what reads a channel before anything is written to it, reads what is always there
        at = next((level for level, (_, nodes) in enumerate(found) if edge.target in nodes), len(found))
        if edge.source.kind == "stream" and not any(edge.source in nodes for _, nodes in found[:at]):
            found[1][1].append(edge.source)
    return found


def _written(circuit: Circuit, writers: list[Node]) -> list[Node]:
    return list(
        dict.fromkeys(edge.target for edge in circuit.edges if edge.source in writers and edge.target.kind == "stream")
    )


def lines(circuit: Circuit) -> list[tuple[Place, Place, Edge | None]]:
    """Where each edge begins and ends; and without an edge, from one place of a channel to its next."""
    all_levels = [nodes for _, nodes in levels(circuit)]

    def below(node: Node, level: int) -> Place:
        return max((at, node) for at in range(level) if node in all_levels[at])

    found: list[tuple[Place, Place, Edge | None]] = []
    for edge in circuit.edges:
        if edge.target.kind == "stream":
            start = below(edge.source, len(all_levels))
            found.append((start, (start[0] + 1, edge.target), edge))
        else:
            end = next(level for level, nodes in enumerate(all_levels) if edge.target in nodes)
            found.append((below(edge.source, end), (end, edge.target), edge))
    for level, nodes in enumerate(all_levels):
        for node in nodes:
            if node.kind == "stream" and any(node in lower for lower in all_levels[:level]):
                found.append((below(node, level), (level, node), None))
    return found


def places(circuit: Circuit) -> dict[Place, float]:
    """How far to the right each node stands, from 0 to 1: near those that its lines lead to."""
    across: dict[Place, float] = {}
    all_levels = [[(level, node) for node in nodes] for level, (_, nodes) in enumerate(levels(circuit))]
    for row in all_levels:
        across |= {place: (number + 0.5) / len(row) for number, place in enumerate(row)}
    neighbours: dict[Place, list[Place]] = {place: [] for place in across}
    for start, end, _ in lines(circuit):
        neighbours[start].append(end)
        neighbours[end].append(start)
    for sweep in range(SWEEPS):
        for row in all_levels if sweep % 2 else reversed(all_levels):
            means = {
                place: sum(across[one] for one in neighbours[place]) / max(1, len(neighbours[place])) for place in row
            }
            for level, node in row:  # a query stands beside the key that it meets
                if (key := (level, node._replace(kind="key"))) in means and node.kind == "query":
                    means[key] = means[level, node] = (means[key] + means[level, node]) / 2
            for number, place in enumerate(sorted(row, key=means.__getitem__)):
                across[place] = (number + 0.5) / len(row)
    return across


def draw(circuit: Circuit, label: Label, path: Path, *, theme: str = "light", dpi: int | None = None) -> None:
    """Writes the picture as the ending of `path` says: .png, .svg or .pdf.

    In an SVG the id of each line names its weight, such as "token 0.10 -> stream 0.11: -2.7812".

    Raises ValueError for a circuit without weights, or of too many.
    """
    import matplotlib
    from matplotlib.figure import Figure

    if not circuit.edges:
        raise ValueError("there is no circuit to draw: without any of its nodes the model copies as well, or as badly")
    if len(circuit.edges) > MAX_DRAWN:
        raise ValueError(
            f"a picture of {len(circuit.edges):,} weights would be black, {MAX_DRAWN:,} are the most: "
            "train with --config configs/sparse.yaml"
        )
    all_levels, across, colours = levels(circuit), places(circuit), THEMES[theme]
    negative, positive = PALETTES[theme]["differences"][1], PALETTES[theme]["differences"][-2]
    width, height = PITCH * max(len(nodes) for _, nodes in all_levels), RISE * (len(all_levels) - 1)
    with matplotlib.rc_context(theme_settings(theme)):
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.axis("off")
        axes.set(xlim=(0, width), ylim=(0, height))
        point = {place: (x * width, place[0] * RISE) for place, x in across.items()}
        for start, end, edge in lines(circuit):
            (x0, y0), (x1, y1) = point[start], point[end]
            look = {"color": colours["line"], "linestyle": ":", "linewidth": 1}
            if edge is not None:
                look = {
                    "color": positive if edge.weight > 0 else negative,
                    "linewidth": WIDTH_OF_ONE * abs(edge.weight),
                }
                look["gid"] = f"{named(edge.source)} -> {named(edge.target)}: {edge.weight:.6g}"
            axes.plot((x0, x1), (y0, y1), solid_capstyle="round", clip_on=False, zorder=1, **look)
        box = {"facecolor": colours["paper"], "edgecolor": colours["line"], "boxstyle": "round,pad=0.2"}
        text = {"ha": "center", "va": "center", "zorder": 3, "linespacing": 1.1, "bbox": box}
        for (_, node), (x, y) in point.items():
            size = 14 if node.kind in ("token", "prediction") else 8
            axes.text(x, y, _sign(circuit, node, label), fontsize=size, fontfamily="monospace", **text)
        for level, (title, _) in enumerate(all_levels):
            layer = title.rpartition(" ")[2]
            heads = range(circuit.looks_back.shape[1]) if title.startswith("attention") else ()
            notes = [title, *(looking(circuit, int(layer), head) for head in heads)]
            axes.text(-20, level * RISE, "\n".join(notes), ha="right", va="center", fontsize=11, color=colours["soft"])
    write_figure(figure, path, dpi)


def named(node: Node) -> str:
    return f"{node.kind} {node.layer}.{node.number}"


def _sign(circuit: Circuit, node: Node, label: Label) -> str:
    """What stands in a node: its token, its number, or that and what it is high (+) and low (-) for; "h…": after h."""
    if node.kind in ("token", "prediction"):
        return printable(label(node.number))
    if node.kind == "stream":
        return str(node.number)
    response = circuit.responses[node]
    after = "…" if response.back else ""
    high, low = (
        " ".join(printable(label(token)) + after for token in tokens) for tokens in (response.high, response.low)
    )
    return "\n".join(
        [
            f"{node.kind[0]}{node.number}",
            *(f"+{high}" for _ in response.high[:1]),
            *(f"−{low}" for _ in response.low[:1]),
        ]
    )
