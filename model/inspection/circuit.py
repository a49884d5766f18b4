"""The part of a model that does one task: the fewest nodes that are found to suffice, and the weights between them.

Gao et al. 2025, "Weight-sparse transformers have interpretable circuits", https://arxiv.org/abs/2511.13653. A node is
one channel of the residual stream, of the queries, keys or values of a layer, or of a hidden layer. A node is switched
off by mean ablation: at every position it gives its mean over the texts of the task. What is left is a circuit if it is
sufficient (the loss stays, with all other nodes off) and necessary (the loss rises, with the circuit off).

copying.py measures how much heads copy; this finds which weights do.

Shapes: B batch, T tokens, K head width.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.gpt import GPT
from model.inspection.trace import AttendCall, blocks_of, hooked, observed, undisturbed

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
    """One weight of the model: `source` is multiplied by it and added to `target`."""

    source: Node
    target: Node
    weight: float


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


@dataclass(frozen=True)
class Circuit:
    """The nodes that are kept, and the loss in nats per token on texts that were not used to find them.

    nodes: channels only. edges: the weights between them, and to and from the tokens of the task, that are not zero.
    whole: of the model. alone: all other nodes at their mean. without: these nodes at their mean.
    off: the loss with the circuit alone but one of its nodes, after which token it rises most then, and by how much
    there. responses: of the nodes outside the stream. looks_back: the mean weight that each head of the circuit alone
    gives to the token so many back of the last prediction that counts, (L, H, T - 1). period: after how many tokens
    the rows begin again.
    """

    nodes: list[Node]
    edges: list[Edge]
    whole: float
    alone: float
    without: float
    off: dict[Node, tuple[float, int, float]]
    responses: dict[Node, Response]
    looks_back: Tensor
    period: int


def repeated(vocabulary: list[int], length: int, seed: int, rows: int = 128) -> Task:
    """Rows of `length` different tokens of the vocabulary, each repeated once; what counts is the second copy.

    Its first token is not counted: nothing tells that the row begins again.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(rows, len(vocabulary), generator=generator).argsort(dim=1)[:, :length]
    return Task(torch.tensor(vocabulary)[order].repeat(1, 2), length)


@torch.no_grad()
def find_circuit(gpt: GPT, task: Task, held_out: Task, max_rise: float = MAX_RISE) -> Circuit:
    """Switches off as many nodes as the task allows: its loss rises by `max_rise` nats at most.

    Nodes are tried in ascending order of |d loss / d gate|, the first-order estimate of what they matter. A set that
    costs too much is halved and each half tried. With the circuit that is left, all of it is done again, until nothing
    more can be switched off.
    """
    groups = node_groups(gpt)
    with undisturbed(gpt):
        means = node_means(gpt, task.tokens)
        gates = [torch.ones(len(nodes)) for nodes in groups]
        limit = loss(gpt, task, gates, means).item() + max_rise

        def switch_off(places: list[tuple[int, int]]) -> None:
            for group, index in places:
                gates[group][index] = 0
            if loss(gpt, task, gates, means) <= limit:
                return
            for group, index in places:
                gates[group][index] = 1
            if len(places) > 1:
                switch_off(places[: len(places) // 2])
                switch_off(places[len(places) // 2 :])

        count = None
        while count != (count := sum(int(gate.sum()) for gate in gates)):
            switch_off(_least_first(gpt, task, gates, means))
        all_on, opposite = [torch.ones_like(gate) for gate in gates], [1 - gate for gate in gates]
        whole, without = (loss(gpt, held_out, these, means).item() for these in (all_on, opposite))
        responses, looks_back = _watched(gpt, held_out, gates, means)
        before, off = token_losses(gpt, held_out, gates, means), {}
        for group, index in _places(gates):
            gates[group][index] = 0
            after = token_losses(gpt, held_out, gates, means)
            known, rises, _ = _by_token(after - before, held_out.tokens[:, held_out.first : -1])
            off[groups[group][index]] = after.mean().item(), int(known[rises.argmax()]), rises.max().item()
            gates[group][index] = 1
    nodes = list(off)
    found = edges(gpt, nodes, task.tokens.unique().tolist())
    return Circuit(nodes, found, whole, before.mean().item(), without, off, responses, looks_back, period=task.first)


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


Site = tuple[nn.Module, bool, int]  # a module, whether its input or its output holds nodes, and which of `node_groups`


def _sites(gpt: GPT) -> list[Site]:
    """Where each group of nodes can be replaced: the stream wherever it is read."""
    sites: list[Site] = [(gpt.final_norm, True, 0)]
    for layer, block in enumerate(blocks_of(gpt)):
        sites += [(block.attention_norm, True, 0), (block.feed_forward_norm, True, 0)]
        sites += [(block.attention.qkv_proj, False, 1 + 2 * layer), (block.feed_forward.down_proj, True, 2 + 2 * layer)]
    return sites


@torch.no_grad()
def node_means(gpt: GPT, tokens: Tensor) -> dict[nn.Module, Tensor]:
    """The mean of the nodes of each site over all positions of the texts (B, T)."""
    sites = _sites(gpt)
    with undisturbed(gpt), hooked(gpt, [module for module, *_ in sites]) as (inputs, outputs):
        gpt.features(tokens)
    return {module: (inputs if is_input else outputs)[module].flatten(0, -2).mean(0) for module, is_input, _ in sites}


def loss(gpt: GPT, task: Task, gates: list[Tensor], means: dict[nn.Module, Tensor]) -> Tensor:
    """The mean of `token_losses`."""
    return token_losses(gpt, task, gates, means).mean()


def token_losses(gpt: GPT, task: Task, gates: list[Tensor], means: dict[nn.Module, Tensor]) -> Tensor:
    """The loss of each prediction that counts, (B, T - first - 1), each node between its mean (gate 0) and what it
    gives (gate 1)."""
    with ExitStack() as hooks:
        for module, is_input, group in _sites(gpt):

            def gated(x: Tensor, gate: Tensor = gates[group], mean: Tensor = means[module]) -> Tensor:
                return mean + gate * (x - mean)

            if is_input:
                handle = module.register_forward_pre_hook(lambda _, args, gated=gated: (gated(args[0]),))
            else:
                handle = module.register_forward_hook(lambda _, args, result, gated=gated: gated(result))
            hooks.callback(handle.remove)
        logits = gpt(task.tokens)[:, task.first : -1]
    return F.cross_entropy(logits.mT, task.tokens[:, task.first + 1 :], reduction="none")


def _least_first(gpt: GPT, task: Task, gates: list[Tensor], means: dict[nn.Module, Tensor]) -> list[tuple[int, int]]:
    """The nodes that are on, by group and index, in ascending order of what the loss changes by with their gate."""
    variable = [gate.clone().requires_grad_() for gate in gates]
    with torch.enable_grad():
        slopes = torch.autograd.grad(loss(gpt, task, variable, means), variable)
    return sorted(_places(gates), key=lambda place: abs(slopes[place[0]][place[1]].item()))


def _places(gates: list[Tensor]) -> list[tuple[int, int]]:
    """The nodes that are on, by group and index."""
    return [(group, index) for group, gate in enumerate(gates) for index in gate.nonzero().flatten().tolist()]


def _watched(
    gpt: GPT, task: Task, gates: list[Tensor], means: dict[nn.Module, Tensor]
) -> tuple[dict[Node, Response], Tensor]:
    """What the nodes of the circuit respond to, and how far back each head looks, with all other nodes off."""
    calls: list[AttendCall] = []
    sites, groups = {group: site for site in _sites(gpt) if (group := site[2])}, node_groups(gpt)
    modules = [module for module, *_ in sites.values()]
    with hooked(gpt, modules) as (inputs, outputs), observed([b.attention for b in blocks_of(gpt)], calls.append):
        loss(gpt, task, gates, means)
    responses = {}
    for group, index in _places(gates):
        if group in sites:
            module, is_input, _ = sites[group]
            values = (inputs if is_input else outputs)[module][..., index]
            node = groups[group][index]
            backs = (0,) if node.kind == "value" else (0, 1)  # a value is what its own token hands on
            responses[node] = _response(values, task.tokens, backs)
    return responses, torch.stack([call.weights()[:, :, -2, :-1].mean(0).flip(-1) for call in calls])


def _response(values: Tensor, tokens: Tensor, backs: Sequence[int]) -> Response:
    """Of a node with these values (B, T), to the token so many back that tells most."""
    found = []
    for back in backs:
        told, by = values[:, 1:].flatten(), tokens[:, 1 - back : tokens.shape[1] - back].flatten()
        known, deviation, place = _by_token(told - told.mean(), by)
        explained = (deviation[place].var() / told.var().clamp(min=1e-12)).item()
        half = deviation.abs().max() / 2
        found.append(Response(back, explained, known[deviation > half].tolist(), known[deviation < -half].tolist()))
    return max(found, key=lambda response: response.explained)


def _by_token(values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The different tokens, the mean of the values at each of them, and which of them each token is."""
    known, place = tokens.flatten().unique(return_inverse=True)
    return known, place.bincount(values.flatten()) / place.bincount(), place


def edges(gpt: GPT, nodes: list[Node], tokens: list[int]) -> list[Edge]:
    """The weights that are not zero between these nodes, from the tokens to them, and from them to the predictions.

    Tables of positions, pairs and values, and biases, are no edges.
    """
    stream, *layers = node_groups(gpt)
    known, read = range(gpt.head.out_features), [Node("token", 0, token) for token in tokens]
    written = [Node("prediction", 0, token) for token in tokens]
    kept = {*nodes, *read, *written}

    def between(weight: Tensor, targets: list[Node], sources: list[Node]) -> list[Edge]:
        rows = [row for row, node in enumerate(targets) if node in kept]
        columns = [column for column, node in enumerate(sources) if node in kept]
        some = weight.detach()[rows][:, columns]
        places = some.nonzero().tolist()
        return [Edge(sources[columns[c]], targets[rows[r]], some[r, c].item()) for r, c in places]

    found = between(gpt.token_embedding.weight.mT, stream, [Node("token", 0, token) for token in known])
    for layer, block in enumerate(blocks_of(gpt)):
        qkv, hidden = layers[2 * layer : 2 * layer + 2]
        attention, feed_forward = block.attention, block.feed_forward
        found += between(attention.qkv_proj.weight, qkv, stream)
        values = [node for node in qkv if node.kind == "value"]
        K, shared = attention.head_dim, attention.num_heads // attention.num_kv_heads  # heads that read the same values
        read_by = [values[head // shared * K + channel] for head in range(attention.num_heads) for channel in range(K)]
        found += between(attention.output_proj.weight, stream, read_by)
        for up in (feed_forward.up_proj, feed_forward.gate_proj):
            found += [] if up is None else between(up.weight, hidden, stream)
        found += between(feed_forward.down_proj.weight, stream, hidden)
    return found + between(gpt.head.weight, [Node("prediction", 0, token) for token in known], stream)
