"""The part of a model that does one task: the fewest nodes that are found to suffice, and the weights between them.

Gao et al. 2025, "Weight-sparse transformers have interpretable circuits", https://arxiv.org/abs/2511.13653. A node is
one channel of the residual stream, of the queries, keys or values of a layer, or of a hidden layer. A node is switched
off by mean ablation: at every position it gives its mean over the texts. What is left is a circuit if it is
sufficient (the loss stays, with all other nodes off) and necessary (the loss rises, with the circuit off).

copying.py measures how much heads copy; this finds which weights do.

Shapes: B batch, S tokens of a row, which is repeated once; K head width, N nodes.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.gpt import GPT
from model.inspection.trace import AttendCall, blocks_of, edited, observed, undisturbed

log = logging.getLogger(__name__)
MANY_NODES = 2000  # a search among a thousand takes a minute, and each of its steps grows with the model
MAX_RISE = 0.2  # nats per token; on texts that were not used to find the circuit, somewhat more


class Node(NamedTuple):
    """A channel, or a token that is read or predicted.

    kind: "token", "stream", "query", "key", "value", "hidden" or "prediction". number: its channel, or the token's id.
    layer: of its block; 0 for what has none, as the stream, which all layers share.
    """

    kind: str
    layer: int
    number: int


class Edge(NamedTuple):
    """One weight of the model: `source` is multiplied by it and added to `target`.

    earlier: what it was at earlier steps.
    """

    source: Node
    target: Node
    weight: float
    earlier: Sequence[float] = ()


@dataclass(frozen=True)
class Response:
    """When a node is high and when low, on the texts.

    back: 0 for what the token itself tells of it, 1 for what the token before tells, whichever tells more.
    high, low: the tokens for which its mean is at least half as far above or below the others' as for any.
    """

    back: int
    high: list[int]
    low: list[int]


class Off(NamedTuple):
    """The loss with a circuit alone but one of its nodes; after which token, and where which is next, it rises most."""

    loss: float
    after: tuple[int, float]
    before: tuple[int, float]


@dataclass(frozen=True)
class Circuit:
    """The nodes that are kept, and the loss in nats per token on texts that were not used to find them.

    edges: the weights between the nodes, and to and from the tokens of the texts, that are not zero.
    whole: of the model. alone: all other nodes at their mean. without: these nodes at their mean.
    off: for each node that is kept, what follows when it is off too. responses: of those outside the stream.
    looks_back: the mean weight that each head of the circuit alone gives to the token so many back of the last
    prediction that counts, (L, H, 2S - 1). period: S.
    earlier: whole and alone of the model at earlier steps, by step.
    """

    edges: list[Edge]
    whole: float
    alone: float
    without: float
    off: dict[Node, Off]
    responses: dict[Node, Response]
    looks_back: Tensor
    period: int
    earlier: dict[int, tuple[float, float]] = field(default_factory=dict)


def repeated(vocabulary: Tensor, length: int, seed: int, rows: int = 128) -> Tensor:
    """Rows of `length` different ids of the vocabulary (N,), each repeated once: (B, 2S)."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(rows, len(vocabulary), generator=generator).argsort(dim=1)[:, :length]
    return vocabulary[order].repeat(1, 2)


def copying_circuit(gpt: GPT, tokens: set[int], earlier: Mapping[int, GPT] | None = None) -> Circuit:
    """The circuit that repeats these tokens, see `repeated` and `find_circuit`. Raises ValueError for too few."""
    length = min(len(tokens), gpt.config.context_length // 2)
    if length < 3:
        raise ValueError("a circuit that copies is looked for on at least 3 different tokens: write a longer prompt")
    vocabulary = torch.tensor(sorted(tokens), device=gpt.token_embedding.weight.device)
    held_out, texts = (repeated(vocabulary, length, seed) for seed in (1, 0))
    return find_circuit(gpt, texts, held_out, earlier=earlier)


def nodes_by_module(gpt: GPT) -> dict[nn.Module, list[Node]]:
    """All nodes that can be switched off: the channels of what a module reads, or of what a `qkv_proj` gives."""
    stream, found = [Node("stream", 0, channel) for channel in range(gpt.config.embed_dim)], {}
    for layer, block in enumerate(blocks_of(gpt)):
        attention, down = block.attention, block.feed_forward.down_proj
        heads = {"query": attention.num_heads, "key": attention.num_kv_heads, "value": attention.num_kv_heads}
        widths = {kind: number * attention.head_dim for kind, number in heads.items()}  # as `project` splits them
        found[block.attention_norm] = stream
        found[attention.qkv_proj] = [Node(kind, layer, i) for kind, width in widths.items() for i in range(width)]
        found[block.feed_forward_norm] = stream
        found[down] = [Node("hidden", layer, i) for i in range(down.in_features)]
    return {**found, gpt.final_norm: stream}


class GatedNodes:
    """The nodes of a model, each between its mean over the texts (B, 2S) (gate 0) and what it gives (gate 1).

    modules: see `nodes_by_module`. nodes: N different ones. places: by module which of these its nodes are.
    means: by module.
    """

    def __init__(self, gpt: GPT, texts: Tensor) -> None:
        self.gpt, self.modules = gpt, nodes_by_module(gpt)
        self.nodes = list(dict.fromkeys(chain.from_iterable(self.modules.values())))
        number = {node: place for place, node in enumerate(self.nodes)}
        self.places = {module: slice(number[of[0]], number[of[-1]] + 1) for module, of in self.modules.items()}
        with torch.no_grad():
            _, given = self.run(texts)
        self.means = {module: values.flatten(0, -2).mean(0) for module, values in given.items()}

    def run(self, texts: Tensor, gates: Tensor | None = None) -> tuple[Tensor, dict[nn.Module, Tensor]]:
        """With these gates (N,), the loss of each prediction in the second copies, (B, S - 1), and what the nodes give
        before their gates, by module.

        The first token of a second copy is not counted: nothing tells that the row begins again.
        """
        given: dict[nn.Module, Tensor] = {}

        def gated(module: nn.Module, x: Tensor) -> Tensor:
            given[module] = x
            if gates is None:
                return x
            mean = self.means[module]
            return mean + gates[self.places[module]] * (x - mean)

        outputs = {block.attention.qkv_proj for block in blocks_of(self.gpt)}
        with undisturbed(self.gpt), edited(self.modules.keys() - outputs, outputs, gated):
            logits = self.gpt(texts)
        second = texts.shape[1] // 2
        return F.cross_entropy(logits[:, second:-1].mT, texts[:, second + 1 :], reduction="none"), given

    def loss(self, texts: Tensor, gates: Tensor) -> Tensor:
        """The mean over all predictions."""
        return self.run(texts, gates)[0].mean()


@torch.no_grad()
def find_circuit(
    gpt: GPT, texts: Tensor, held_out: Tensor, max_rise: float = MAX_RISE, earlier: Mapping[int, GPT] | None = None
) -> Circuit:
    """Switches off as many nodes as the texts (B, 2S) allow: their loss rises by `max_rise` nats at most.

    The nodes that are estimated to matter least, by |d loss / d gate|, are tried first. A set that costs too much is
    halved and each half tried. With the circuit that is left, all of it is done again, until nothing more can be
    switched off.

    earlier: the model at earlier steps.
    """
    model, earlier = GatedNodes(gpt, texts), earlier or {}
    if len(model.nodes) > MANY_NODES:
        log.warning("To look for a circuit among %s nodes may take hours: train a sparse model.", len(model.nodes))
    gates = torch.ones(len(model.nodes), device=texts.device)
    limit = model.loss(texts, gates) + max_rise

    def switch_off(nodes: list[int]) -> None:
        gates[nodes] = 0
        if model.loss(texts, gates) <= limit:
            return
        gates[nodes] = 1
        if len(nodes) > 1:
            switch_off(nodes[: len(nodes) // 2])
            switch_off(nodes[len(nodes) // 2 :])

    count = None
    while count != (count := int(gates.sum())):
        with torch.enable_grad():
            variable = gates.clone().requires_grad_()
            (slopes,) = torch.autograd.grad(model.loss(texts, variable), variable)
        switch_off([node for node in slopes.abs().argsort(stable=True).tolist() if gates[node]])
    off, period = {}, texts.shape[1] // 2
    calls: list[AttendCall] = []
    with observed([block.attention for block in blocks_of(gpt)], calls.append):
        losses, given = model.run(held_out, gates)
    for node in gates.nonzero().flatten().tolist():
        gates[node] = 0
        after, _ = model.run(held_out, gates)
        rises = after - losses
        most = [_most(rises, held_out[:, start : start + period - 1]) for start in (period, period + 1)]
        off[model.nodes[node]] = Off(after.mean().item(), *most)
        gates[node] = 1
    weights = [weights_between(one, [*off], texts.unique().tolist()) for one in (*earlier.values(), gpt)]
    edges = zip(*weights, strict=True)  # one and the same weight at each step

    def whole_and_alone(model: GatedNodes) -> tuple[float, float]:
        return model.loss(held_out, torch.ones_like(gates)).item(), model.loss(held_out, gates).item()

    whole, alone = whole_and_alone(model)
    return Circuit(
        edges=[edge._replace(earlier=[one.weight for one in before]) for *before, edge in edges if edge.weight],
        whole=whole,
        alone=alone,
        without=model.loss(held_out, 1 - gates).item(),
        off=off,
        responses={
            node: _response(node, values, held_out)
            for module, of_module in given.items()
            for node, values in zip(model.modules[module], of_module.unbind(-1), strict=True)
            if node in off and node.kind != "stream"
        },
        looks_back=torch.stack([call.weights()[:, :, -2, :-1].mean(0).flip(-1).cpu() for call in calls]),
        period=period,
        earlier={step: whole_and_alone(GatedNodes(other, texts)) for step, other in earlier.items()},
    )


def _response(node: Node, values: Tensor, texts: Tensor) -> Response:
    """Of a node with these values (B, 2S)."""
    values, found = values[:, 1:], []
    for back in (0,) if node.kind == "value" else (0, 1):  # a value is what its own token hands on
        known, means, place = _by_token(values, texts[:, 1 - back : texts.shape[1] - back])
        deviation = means - values.mean()
        half = deviation.abs().max() / 2
        response = Response(back, known[deviation > half].tolist(), known[deviation < -half].tolist())
        found.append((means[place].var().item(), response))  # how much of the node's variance the token tells
    return max(found, key=itemgetter(0))[1]


def _most(values: Tensor, tokens: Tensor) -> tuple[int, float]:
    """The token at which the values are largest on average, and how large."""
    known, means, _ = _by_token(values, tokens)
    return int(known[means.argmax()]), means.max().item()


def _by_token(values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The different tokens, the mean of the values at each of them, and which of them each token is."""
    known, place = tokens.flatten().unique(return_inverse=True)
    return known, place.bincount(values.flatten()) / place.bincount(), place


def weights_between(gpt: GPT, nodes: list[Node], tokens: list[int]) -> list[Edge]:
    """The weights between these nodes, from the tokens to them, and from them to the predictions; also zeros.

    Tables of positions, pairs and values, and biases, are no edges.
    """
    ends = {kind: [Node(kind, 0, token) for token in range(gpt.head.out_features)] for kind in ("token", "prediction")}
    kept, nodes_of = {*nodes, *(of_kind[token] for of_kind in ends.values() for token in tokens)}, nodes_by_module(gpt)
    stream = nodes_of[gpt.final_norm]
    found: list[Edge] = []

    def add(weight: Tensor, targets: list[Node], sources: list[Node]) -> None:
        rows = [row for row, node in enumerate(targets) if node in kept]
        columns = [column for column, node in enumerate(sources) if node in kept]
        for row, numbers in zip(rows, weight.detach()[rows][:, columns].tolist(), strict=True):
            found.extend(Edge(sources[at], targets[row], one) for at, one in zip(columns, numbers, strict=True))

    add(gpt.token_embedding.weight.mT, stream, ends["token"])
    for block in blocks_of(gpt):
        attention, feed_forward = block.attention, block.feed_forward
        qkv, hidden = nodes_of[attention.qkv_proj], nodes_of[feed_forward.down_proj]
        add(attention.qkv_proj.weight, qkv, stream)
        values = [node for node in qkv if node.kind == "value"]
        K, shared = attention.head_dim, attention.num_heads // attention.num_kv_heads  # heads that read the same values
        read_by = [values[head // shared * K + channel] for head in range(attention.num_heads) for channel in range(K)]
        add(attention.output_proj.weight, stream, read_by)
        for up in filter(None, (feed_forward.up_proj, feed_forward.gate_proj)):
            add(up.weight, hidden, stream)
        add(feed_forward.down_proj.weight, stream, hidden)
    add(gpt.head.weight, ends["prediction"], stream)
    return found
