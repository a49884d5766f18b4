"""The part of a model that does one task: the fewest nodes that are found to suffice, and the weights between them.

Gao et al. 2025, "Weight-sparse transformers have interpretable circuits", https://arxiv.org/abs/2511.13653. A node is
one channel of the residual stream, of the queries, keys or values of a layer, or of a hidden layer. A node is switched
off by mean ablation: at every position it gives its mean over the texts of the task. What is left is a circuit if it is
sufficient (the loss stays, with all other nodes off) and necessary (the loss rises, with the circuit off).

copying.py measures how much heads copy; this finds which weights do.

Shapes: B batch, T tokens, K head width, N nodes.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.gpt import GPT
from model.inspection.trace import AttendCall, blocks_of, edited, hooked, observed, undisturbed

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
class Task:
    """Texts (B, T), of which the predictions made at position `first` and after it count."""

    tokens: Tensor
    first: int


@dataclass(frozen=True)
class Response:
    """When a node is high and when low, on the texts of the task.

    back: 0 for what the token itself tells of it, 1 for what the token before tells, whichever tells more.
    explained: the share of its variance that this token tells, from 0 to 1.
    high, low: the tokens for which its mean is at least half as far above or below the others' as for any.
    """

    back: int
    explained: float
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

    nodes: channels only. edges: the weights between them, and to and from the tokens of the task, that are not zero.
    whole: of the model. alone: all other nodes at their mean. without: these nodes at their mean.
    off: what follows when one of the nodes is off too. responses: of the nodes outside the stream.
    looks_back: the mean weight that each head of the circuit alone gives to the token so many back of the last
    prediction that counts, (L, H, T - 1). period: after how many tokens the rows begin again.
    earlier: whole and alone of the model at earlier steps, by step.
    """

    nodes: list[Node]
    edges: list[Edge]
    whole: float
    alone: float
    without: float
    off: dict[Node, Off]
    responses: dict[Node, Response]
    looks_back: Tensor
    period: int
    earlier: dict[int, tuple[float, float]] = field(default_factory=dict)


def repeated(vocabulary: Tensor, length: int, seed: int, rows: int = 128) -> Task:
    """Rows of `length` different ids of the vocabulary (N,), each repeated once; what counts is the second copy.

    Its first token is not counted: nothing tells that the row begins again.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(rows, len(vocabulary), generator=generator).argsort(dim=1)[:, :length]
    return Task(vocabulary[order].repeat(1, 2), length)


def copying_circuit(gpt: GPT, tokens: set[int], earlier: Mapping[int, GPT] | None = None) -> Circuit:
    """The circuit that repeats these tokens, see `repeated` and `find_circuit`. Raises ValueError for too few."""
    length = min(len(tokens), gpt.config.context_length // 2)
    if length < 3:
        raise ValueError("a circuit that copies is looked for on at least 3 different tokens: write a longer prompt")
    vocabulary = torch.tensor(sorted(tokens), device=gpt.token_embedding.weight.device)
    held_out, task = (repeated(vocabulary, length, seed) for seed in (1, 0))
    return find_circuit(gpt, task, held_out, earlier=earlier)


class GatedNodes:
    """The nodes of a model, each between its mean over the texts (B, T) of a task (gate 0) and what it gives (gate 1).

    nodes: N of them, in the order of `node_groups`. inputs, outputs: the modules whose argument, or result, is one of
    these groups. places: by module which of the nodes these are. means: by module.
    """

    def __init__(self, gpt: GPT, tokens: Tensor) -> None:
        self.gpt, groups = gpt, node_groups(gpt)
        self.nodes = [node for group in groups for node in group]
        ends = torch.tensor([len(group) for group in groups]).cumsum(0).tolist()
        stream, *layers = (slice(end - len(group), end) for end, group in zip(ends, groups, strict=True))
        inputs: dict[nn.Module, slice] = {gpt.final_norm: stream}
        outputs: dict[nn.Module, slice] = {}
        for block, qkv, hidden in zip(blocks_of(gpt), layers[::2], layers[1::2], strict=True):
            inputs |= {block.attention_norm: stream, block.feed_forward_norm: stream}
            inputs[block.feed_forward.down_proj] = hidden
            outputs[block.attention.qkv_proj] = qkv
        self.inputs, self.outputs, self.places = inputs.keys(), outputs.keys(), inputs | outputs
        given = self.given(lambda: gpt.features(tokens))
        self.means = {module: values.flatten(0, -2).mean(0) for module, values in given.items()}

    def given(self, run: Callable[[], Any]) -> dict[nn.Module, Tensor]:
        """What the nodes give while `run` is called, by module."""
        with torch.no_grad(), undisturbed(self.gpt), hooked(self.gpt, self.places) as (arguments, results):
            run()
        return {module: (arguments if module in self.inputs else results)[module] for module in self.places}

    def losses(self, task: Task, gates: Tensor) -> Tensor:
        """The loss of each prediction that counts, (B, T - first - 1), with these gates (N,)."""

        def gated(module: nn.Module, x: Tensor) -> Tensor:
            mean = self.means[module]
            return mean + gates[self.places[module]] * (x - mean)

        with undisturbed(self.gpt), edited(self.inputs, self.outputs, gated):
            logits = self.gpt(task.tokens)[:, task.first : -1]
        return F.cross_entropy(logits.mT, task.tokens[:, task.first + 1 :], reduction="none")

    def loss(self, task: Task, gates: Tensor) -> Tensor:
        """The mean of `losses`."""
        return self.losses(task, gates).mean()

    def least_first(self, task: Task, gates: Tensor) -> list[int]:
        """The nodes that are on, in ascending order of what the loss changes by with their gate: |d loss / d gate|."""
        with torch.enable_grad():
            variable = gates.clone().requires_grad_()
            (slopes,) = torch.autograd.grad(self.loss(task, variable), variable)
        return [node for node in slopes.abs().argsort(stable=True).tolist() if gates[node]]


@torch.no_grad()
def find_circuit(
    gpt: GPT, task: Task, held_out: Task, max_rise: float = MAX_RISE, earlier: Mapping[int, GPT] | None = None
) -> Circuit:
    """Switches off as many nodes as the task allows: its loss rises by `max_rise` nats at most.

    The nodes that are estimated to matter least are tried first. A set that costs too much is halved and each half
    tried. With the circuit that is left, all of it is done again, until nothing more can be switched off.

    earlier: the model at earlier steps.
    """
    model, earlier = GatedNodes(gpt, task.tokens), earlier or {}
    if len(model.nodes) > MANY_NODES:
        log.warning("To look for a circuit among %s nodes may take hours: train a sparse model.", len(model.nodes))
    gates = torch.ones(len(model.nodes), device=task.tokens.device)
    limit = model.loss(task, gates) + max_rise

    def switch_off(nodes: list[int]) -> None:
        gates[nodes] = 0
        if model.loss(task, gates) <= limit:
            return
        gates[nodes] = 1
        if len(nodes) > 1:
            switch_off(nodes[: len(nodes) // 2])
            switch_off(nodes[len(nodes) // 2 :])

    count = None
    while count != (count := int(gates.sum())):
        switch_off(model.least_first(task, gates))
    losses, off = model.losses(held_out, gates), {}
    read, following = held_out.tokens[:, held_out.first : -1], held_out.tokens[:, held_out.first + 1 :]
    for node in gates.nonzero().flatten().tolist():
        gates[node] = 0
        after = model.losses(held_out, gates)
        rises = after - losses
        off[model.nodes[node]] = Off(after.mean().item(), _most(rises, read), _most(rises, following))
        gates[node] = 1
    responses, looks_back = _watched(model, held_out, gates)
    weights = [weights_between(one, [*off], task.tokens.unique().tolist()) for one in (*earlier.values(), gpt)]
    edges = zip(*weights, strict=True)  # one and the same weight at each step

    def whole_and_alone(model: GatedNodes) -> tuple[float, float]:
        return model.loss(held_out, torch.ones_like(gates)).item(), model.loss(held_out, gates).item()

    whole, alone = whole_and_alone(model)
    return Circuit(
        nodes=[*off],
        edges=[edge._replace(earlier=[one.weight for one in before]) for *before, edge in edges if edge.weight],
        whole=whole,
        alone=alone,
        without=model.loss(held_out, 1 - gates).item(),
        off=off,
        responses=responses,
        looks_back=looks_back,
        period=task.first,
        earlier={step: whole_and_alone(GatedNodes(other, task.tokens)) for step, other in earlier.items()},
    )


def node_groups(gpt: GPT) -> list[list[Node]]:
    """All nodes that can be switched off: the stream; for each layer queries, keys and values; its hidden units."""
    groups = [[Node("stream", 0, channel) for channel in range(gpt.config.embed_dim)]]
    for layer, block in enumerate(blocks_of(gpt)):
        attention, hidden = block.attention, block.feed_forward.down_proj.in_features
        heads = {"query": attention.num_heads, "key": attention.num_kv_heads, "value": attention.num_kv_heads}
        widths = {kind: number * attention.head_dim for kind, number in heads.items()}  # as `project` splits them
        groups.append([Node(kind, layer, index) for kind, width in widths.items() for index in range(width)])
        groups.append([Node("hidden", layer, index) for index in range(hidden)])
    return groups


def _watched(model: GatedNodes, task: Task, gates: Tensor) -> tuple[dict[Node, Response], Tensor]:
    """What the nodes of the circuit respond to, and how far back each head looks, with all other nodes off."""
    calls: list[AttendCall] = []
    with observed([block.attention for block in blocks_of(model.gpt)], calls.append):
        given = model.given(lambda: model.losses(task, gates))
    responses = {}
    for module, values in given.items():
        place = model.places[module]
        for node, gate, of_node in zip(model.nodes[place], gates[place], values.unbind(-1), strict=True):
            if gate and node.kind != "stream":
                backs = (0,) if node.kind == "value" else (0, 1)  # a value is what its own token hands on
                found = [_response(of_node, task.tokens, back) for back in backs]
                responses[node] = max(found, key=lambda response: response.explained)
    return responses, torch.stack([call.weights()[:, :, -2, :-1].mean(0).flip(-1).cpu() for call in calls])


def _response(values: Tensor, tokens: Tensor, back: int) -> Response:
    """Of a node with these values (B, T), to the token so many back."""
    known, means, place = _by_token(values[:, 1:], tokens[:, 1 - back : tokens.shape[1] - back])
    deviation = means - values[:, 1:].mean()
    explained = (means[place].var() / values[:, 1:].var().clamp(min=1e-12)).item()
    half = deviation.abs().max() / 2
    return Response(back, explained, known[deviation > half].tolist(), known[deviation < -half].tolist())


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
    (stream, *layers), known = node_groups(gpt), range(gpt.head.out_features)
    kept = {*nodes, *(Node(kind, 0, token) for kind in ("token", "prediction") for token in tokens)}

    def between(weight: Tensor, targets: list[Node], sources: list[Node]) -> list[Edge]:
        rows = [row for row, node in enumerate(targets) if node in kept]
        columns = [column for column, node in enumerate(sources) if node in kept]
        numbers = weight.detach()[rows][:, columns].tolist()
        return [
            Edge(sources[column], targets[row], number)
            for row, of_row in zip(rows, numbers, strict=True)
            for column, number in zip(columns, of_row, strict=True)
        ]

    found = between(gpt.token_embedding.weight.mT, stream, [Node("token", 0, token) for token in known])
    for block, qkv, hidden in zip(blocks_of(gpt), layers[::2], layers[1::2], strict=True):
        attention, feed_forward = block.attention, block.feed_forward
        found += between(attention.qkv_proj.weight, qkv, stream)
        values = [node for node in qkv if node.kind == "value"]
        K, shared = attention.head_dim, attention.num_heads // attention.num_kv_heads  # heads that read the same values
        read_by = [values[head // shared * K + channel] for head in range(attention.num_heads) for channel in range(K)]
        found += between(attention.output_proj.weight, stream, read_by)
        for up in filter(None, (feed_forward.up_proj, feed_forward.gate_proj)):
            found += between(up.weight, hidden, stream)
        found += between(feed_forward.down_proj.weight, stream, hidden)
    return found + between(gpt.head.weight, [Node("prediction", 0, token) for token in known], stream)
