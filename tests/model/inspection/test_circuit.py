"""Nodes that are off give their mean, edges are the model's weights, and what a task needs is found and drawn."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch
import torch.nn.functional as F
from model.pages.circuit_picture import drawing, in_words, lines

from model.gpt import GPTConfig
from model.inspection.ablation import replaced
from model.inspection.circuit import GatedNodes, find_circuit, nodes_by_module, repeated, weights_between
from tests.gpts import GPT2, random_gpt, repeating_gpt

SIZES = {"vocab_size": 17, "context_length": 12, "num_layers": 2, "num_heads": 4, "embed_dim": 16}
FAMILIES = [{"num_kv_heads": 2, "activation": "swiglu"}, GPT2]
SVG = "{http://www.w3.org/2000/svg}"
TEXTS = repeated(torch.arange(17), 5, seed=0)


def nats(logits):
    return F.cross_entropy(logits[:, 5:-1].flatten(0, 1), TEXTS[:, 6:].flatten())


@pytest.mark.parametrize("options", FAMILIES)
def test_with_all_nodes_on_the_loss_is_the_models_and_with_all_off_that_of_its_mean(options):
    gpt = random_gpt(GPTConfig(**SIZES, **options))
    assert torch.equal(TEXTS[:, :5], TEXTS[:, 5:]) and TEXTS[:, :5].sort().values.diff().all()
    model = GatedNodes(gpt, TEXTS)
    on = torch.ones(len(model.nodes))
    torch.testing.assert_close(model.loss(TEXTS, on), nats(gpt(TEXTS)))
    constant = gpt.unembed(gpt.final_norm(model.means[gpt.final_norm])).expand(*TEXTS.shape, -1)
    torch.testing.assert_close(model.loss(TEXTS, 0 * on), nats(constant))


def test_a_head_whose_values_are_off_gives_their_mean_everywhere():
    gpt = random_gpt(GPTConfig(**SIZES))
    model = GatedNodes(gpt, TEXTS)
    gates = torch.tensor([(node[:2], node.number // 4) != (("value", 0), 2) for node in model.nodes]).float()
    assert gates.sum() == len(gates) - 4  # of head 2
    mean = model.means[gpt.blocks[0].attention.qkv_proj][32 + 8 : 32 + 12]
    with replaced(gpt, {"head 0.2": mean}):
        expected = nats(gpt(TEXTS))
    torch.testing.assert_close(model.loss(TEXTS, gates), expected)


@pytest.mark.parametrize("options", FAMILIES)
def test_the_edges_between_all_nodes_are_all_weights_of_the_matrices(options):
    gpt, expected, stream = random_gpt(GPTConfig(**SIZES, **options)), [], ("stream", 0)
    gpt.head.weight.data[0] = 0  # zeros are weights too

    def add(source, target, matrix):
        """A row for each node of the target, a column for each of the source."""
        for row, weights in enumerate(matrix.tolist()):
            expected.extend(((*source, column), (*target, row), weight) for column, weight in enumerate(weights))

    add(("token", 0), stream, gpt.token_embedding.weight.T)
    add(stream, ("prediction", 0), gpt.head.weight)
    K, H_kv = 4, gpt.config.num_kv_heads
    for layer, block in enumerate(gpt.blocks):
        parts = block.attention.qkv_proj.weight.split((16, K * H_kv, K * H_kv))
        for kind, matrix in zip(("query", "key", "value"), parts, strict=True):
            add(stream, (kind, layer), matrix)
        heads = block.attention.output_proj.weight.split(K, dim=1)
        for first in range(4 // H_kv):  # as many heads read the same values
            add(("value", layer), stream, torch.cat(heads[first :: 4 // H_kv], dim=1))
        for module in filter(None, (block.feed_forward.up_proj, block.feed_forward.gate_proj)):
            add(stream, ("hidden", layer), module.weight)
        add(("hidden", layer), stream, block.feed_forward.down_proj.weight)
    nodes = [node for nodes in nodes_by_module(gpt).values() for node in nodes]
    assert sorted(edge[:3] for edge in weights_between(gpt, nodes, list(range(17)))) == sorted(expected)


def copying_gpt():
    """Its head 0.1 fetches the token of 8 tokens ago, and writes it with a minus that the last matrix undoes."""
    gpt = repeating_gpt(8)
    with torch.no_grad():
        gpt.blocks[0].attention.output_proj.weight.neg_()
        gpt.head.weight.neg_()
    return gpt


@pytest.fixture(scope="module")
def copying():
    found, check = (repeated(torch.arange(97, 109), 8, seed, rows=32) for seed in (0, 1))
    before = copying_gpt()
    with torch.no_grad():
        before.head.weight.mul_(0.5)
    return find_circuit(copying_gpt(), found, check, max_rise=0.05, earlier={7: before})


def test_the_circuit_is_found_is_sufficient_and_necessary_and_is_told_in_words(copying):
    assert copying.alone < copying.whole + 0.3 and copying.without > copying.whole + 2
    assert {node.kind for node in copying.off} == {"stream", "query", "key", "value"}
    assert all(64 <= node.number < 128 for node in copying.off if node.kind != "stream")
    assert len(copying.off) < 100  # of 192 + 3 * 192 + 768
    values = {node: response for node, response in copying.responses.items() if node.kind == "value"}
    assert all((response.back, response.high) == (0, [64 + node.number % 64]) for node, response in values.items())
    text = in_words(copying, chr)
    assert f"{copying.whole:7.3f}  nats" in text and f"and {len(copying.edges)} weights" in text
    assert "head 0.1 looks at what followed the same token before" in text
    node = next(node for node in copying.off if node.kind == "value")
    letter = chr(64 + node.number % 64)
    assert f"value {node.number}: high at {letter}; where high it raises {letter}\n" in text + "\n"


def test_a_circuit_of_no_weights_and_of_too_many_is_not_drawn(copying, monkeypatch):
    nothing = replace(copying, edges=[], off={}, responses={})
    with pytest.raises(ValueError, match="there is no circuit") as error:
        drawing(nothing, chr)
    assert in_words(nothing, chr).splitlines()[3:] == [str(error.value)]
    monkeypatch.setattr("model.pages.circuit_picture.MAX_DRAWN", 5)
    with pytest.raises(ValueError, match="weights would be black, 5 are the most"):
        drawing(copying, chr)


def test_every_weight_is_drawn_once_as_it_is_in_the_model(copying):
    drawn, shown = [line.attrib for line in ElementTree.fromstring(drawing(copying, chr)).iter(f"{SVG}line")], []
    for line in drawn:
        (source, _, column, _), (target, _, row, _) = line["data-from"].split("-"), line["data-to"].split("-")
        if line["class"] in ("carried", "meets"):
            assert "data-weight" not in line
            assert (source, target) == (("stream", "stream") if line["class"] == "carried" else ("query", "key"))
            assert column == row
            continue
        weight = float(line["data-weight"])
        assert json.loads(line["data-earlier"]) == [weight / 2 if target == "prediction" else weight]
        assert line["class"] == ("plus" if weight > 0 else "minus")
        shown.append((source, int(column), target, int(row), weight))
    edges = weights_between(copying_gpt(), [*copying.off], list(range(97, 109)))
    expected = [(one.kind, one.number, other.kind, other.number, weight) for one, other, weight, _ in edges if weight]
    assert sorted(shown) == sorted(expected) and len(shown) > 20
    queries = {node for node in copying.off if node.kind == "query" and node._replace(kind="key") in copying.off}
    assert sum(line["class"] == "meets" for line in drawn) == len(queries) > 0


def test_every_node_is_drawn_and_says_the_loss_without_it(copying):
    boxes = [box.attrib for box in ElementTree.fromstring(drawing(copying, chr)).iter(f"{SVG}g") if "id" in box.attrib]
    found = {tuple(box["id"].split("-")[:3]): box.get("data-off") for box in boxes}
    linked = {node for edge in copying.edges for node in edge[:2]}
    for kind, layer, number in linked:
        told = None
        if off := copying.off.get((kind, layer, number)):
            told = f"{kind} {number} held at its mean: {off.loss:.2f} nats instead of {copying.alone:.2f}, most after "
            told += f"{chr(off.after[0])} ({off.after[1]:+.2f}) and before {chr(off.before[0])} ({off.before[1]:+.2f})"
        assert found.pop((kind, str(layer), str(number))) == told
    assert not found and len(linked) > 20
    assert any(off.loss > copying.alone + 0.05 for off in copying.off.values())
    for off in copying.off.values():  # the most, of a mean
        assert min(off.after[1], off.before[1]) >= off.loss - copying.alone - 1e-6


def test_a_node_that_is_off_says_where_it_is_needed_most(copying):
    found, check = (repeated(torch.arange(97, 109), 8, seed, rows=32) for seed in (0, 1))
    model, node = GatedNodes(copying_gpt(), found), list(copying.off)[-1]
    gates = torch.tensor([float(one in copying.off) for one in model.nodes])
    rises = -model.run(check, gates)[0]
    gates[model.nodes.index(node)] = 0
    rises += model.run(check, gates)[0]
    for (token, rise), side in ((copying.off[node].after, slice(8, 15)), (copying.off[node].before, slice(9, 16))):
        means = {one: rises[check[:, side] == one].mean().item() for one in range(97, 109)}
        assert max(means, key=means.get) == token and means[token] == pytest.approx(rise, abs=1e-5)


def test_lines_go_up_from_where_a_channel_was_last_written(copying):
    for (start, source), (end, target), edge in lines(copying):
        assert start < end
        assert edge is None or edge[:2] == (source, target)
        if target.kind == "prediction":
            assert source.kind == "stream" and (start, end) == (3, 6)  # after the attention of the only layer


def test_hostile_tokens_stay_text(copying):
    root = ElementTree.fromstring(drawing(copying, lambda token: f'</text><script>"&{token}'))
    assert len(list(root.iter(f"{SVG}script"))) == 1
