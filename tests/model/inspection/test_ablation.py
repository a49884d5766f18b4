"""Ablation changes the loss as edited weights do, and leaves nothing behind."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model.inspection import ablation as module
from model.inspection.ablation import ablation, part_means, replaced
from tests.gpts import random_gpt
from tests.model.pages.architectures import CONFIGS, TOKENS

BATCH = torch.arange(3 * 10).view(3, 10)
FIRST = 4


@torch.no_grad()
def loss(gpt):
    logits = gpt(TOKENS[None])[0, FIRST:-1]
    return F.cross_entropy(logits.double(), TOKENS[FIRST + 1 :]).item()


@torch.no_grad()
def mean_input(gpt, module):
    """The mean over all tokens of BATCH of what a module gets, sequence by sequence."""
    seen = []
    hook = module.register_forward_pre_hook(lambda _, args: seen.append(args[0][0].double().mean(0)))
    for row in BATCH:
        gpt(row[None])
    hook.remove()
    return torch.stack(seen).mean(0)


def without(gpt, part, layer=None, head=None):
    """A copy of the model whose weights make a part constant."""
    edited = copy.deepcopy(gpt)
    edited.head.weight = nn.Parameter(gpt.head.weight.detach().clone())  # a tied table must not change the head
    if part == "head":
        source, target = gpt.blocks[layer].attention.output_proj, edited.blocks[layer].attention.output_proj
        K = gpt.config.head_dim
        slices = [slice(head * K, (head + 1) * K)]
    elif part == "feed-forward":
        source, target = gpt.blocks[layer].feed_forward.down_proj, edited.blocks[layer].feed_forward.down_proj
        slices = [slice(None)]
    if part in ("head", "feed-forward"):
        mean = mean_input(gpt, source)
        with torch.no_grad():
            constant = sum(source.weight[:, s].double() @ mean[s] for s in slices)
            constant = constant if source.bias is None else constant + source.bias
            target.bias = nn.Parameter(constant.float())
            for s in slices:
                target.weight[:, s] = 0
        return edited
    table, ids = {
        "token embedding": (edited.token_embedding, BATCH),
        "positions": (edited.position_embedding, torch.arange(10)),
        "pair table": (edited.bigram_embedding, gpt.bigram_buckets(BATCH) if gpt.bigram_embedding else None),
        "value embeddings": (edited.value_embeddings[str(layer)] if layer is not None else None, BATCH),
    }[part]
    with torch.no_grad():
        table.weight[:] = table.weight[ids.flatten()].double().mean(0)
    return edited


@pytest.mark.parametrize("name", CONFIGS)
def test_ablation_changes_the_loss_as_edited_weights_do(name, monkeypatch):
    gpt = random_gpt(CONFIGS[name])
    # More than one forward pass, or one for each part.
    monkeypatch.setattr(module, "MAX_TOKENS", 1 if name == "one layer" else 5 * len(TOKENS))
    found_loss, found = ablation(gpt, TOKENS, part_means(gpt, BATCH), first=FIRST)
    whole = loss(gpt)
    assert found_loss == pytest.approx(whole, abs=1e-5)
    expected = {}
    for layer in range(gpt.config.num_layers):
        expected[found["feed_forward"][layer]] = without(gpt, "feed-forward", layer)
        for head in range(gpt.config.num_heads):
            expected[found["heads"][layer, head]] = without(gpt, "head", layer, head)
    tables = {"token embedding"}
    tables |= {"pair table"} if gpt.config.bigram_buckets else set()
    tables |= {"positions"} if gpt.config.position == "learned" else set()
    tables |= {f"value embeddings {layer}" for layer in gpt.value_embeddings}
    assert set(found["tables"]) == tables
    for table in tables:
        layer = int(table.split()[-1]) if table[-1].isdigit() else None
        expected[found["tables"][table]] = without(gpt, table.rstrip(" 0123456789"), layer)
    worst = max(abs(change - (loss(edited) - whole)) for change, edited in expected.items())
    print(f"ablation, {name}: {worst:.1e}")
    assert worst <= 1e-5
    assert max(abs(change) for change in expected) > 0.01


def test_no_prediction_has_no_loss():
    gpt = random_gpt(CONFIGS["tables"])
    found_loss, found = ablation(gpt, TOKENS[:1], part_means(gpt, TOKENS[None]))
    assert found_loss != found_loss and torch.tensor(found["heads"]).isnan().all()


def test_a_part_replaced_at_a_token_leaves_the_others_and_shorter_texts_as_they_are():
    gpt = random_gpt(CONFIGS["tables"])
    part, vector = next(item for item in part_means(gpt, BATCH).items() if item[0].name == "head")
    plain = gpt(TOKENS[None])
    with replaced(gpt, {part: vector + 1}, position=4):
        edited, short = gpt(TOKENS[None]), gpt(TOKENS[None, :4])
    torch.testing.assert_close(edited[:, :4], plain[:, :4])
    torch.testing.assert_close(short, plain[:, :4])
    assert not torch.allclose(edited[:, 4:], plain[:, 4:], atol=1e-3)
