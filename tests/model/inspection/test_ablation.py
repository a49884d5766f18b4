"""Ablation changes the loss as edited weights do, and leaves nothing behind."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model.inspection import ablation as module
from model.inspection.ablation import part_means, replaced, without_each
from tests.gpts import CONFIGS, TOKENS, random_gpt

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


def tables_of(gpt):
    """The tables that a model has, with the rows that BATCH takes of them."""
    tables = {"token embedding": (gpt.token_embedding, BATCH)}
    if gpt.position_embedding:
        tables["positions"] = gpt.position_embedding, torch.arange(10)
    if gpt.ngram_embedding:
        tables["n-gram tables"] = gpt.ngram_embedding, gpt.ngram_embedding.rows(BATCH)
    return tables | {f"value embeddings {layer}": (table, BATCH) for layer, table in gpt.value_embeddings.items()}


@torch.no_grad()
def without(gpt, part, layer=None, head=None):
    """A copy of the model whose weights make a part constant."""
    edited = copy.deepcopy(gpt)
    edited.head.weight = nn.Parameter(gpt.head.weight.detach().clone())  # a tied table must not change the head
    if layer is None:
        table, ids = tables_of(edited)[part]
        table.weight[:] = table.weight[ids.flatten()].double().mean(0)
        return edited
    name = "feed_forward.down_proj" if head is None else "attention.output_proj"
    source, target = (model.blocks[layer].get_submodule(name) for model in (gpt, edited))
    K = gpt.config.head_dim
    columns = slice(None) if head is None else slice(head * K, (head + 1) * K)
    constant = source.weight[:, columns].double() @ mean_input(gpt, source)[columns]
    target.bias = nn.Parameter((constant + (0 if source.bias is None else source.bias)).float())
    target.weight[:, columns] = 0
    return edited


def test_ablation_changes_the_loss_as_edited_weights_do(each_gpt, monkeypatch):
    gpt = each_gpt
    # More than one forward pass, or one for each part.
    monkeypatch.setattr(module, "MAX_TOKENS", 1 if gpt.config.num_layers == 1 else 5 * len(TOKENS))
    found_loss, found = without_each(gpt, TOKENS, part_means(gpt, BATCH), first=FIRST)
    whole = loss(gpt)
    assert found_loss == pytest.approx(whole, abs=1e-5)
    layers, heads = range(gpt.config.num_layers), range(gpt.config.num_heads)
    parts = {f"head {layer}.{head}": ("head", layer, head) for layer in layers for head in heads}
    parts |= {f"feed-forward {layer}": ("feed-forward", layer) for layer in layers}
    parts |= {table: (table,) for table in tables_of(gpt)}
    assert found == pytest.approx({name: loss(without(gpt, *part)) - whole for name, part in parts.items()}, abs=1e-5)
    assert max(map(abs, found.values())) > 0.01


def test_a_part_replaced_at_a_token_leaves_the_others_and_shorter_texts_as_they_are():
    gpt = random_gpt(CONFIGS["tables"])
    part, vector = next(item for item in part_means(gpt, BATCH).items() if item[0].startswith("head "))
    plain = gpt(TOKENS[None])
    with replaced(gpt, {part: vector + 1}, position=4):
        edited, short = gpt(TOKENS[None]), gpt(TOKENS[None, :4])
    torch.testing.assert_close(edited[:, :4], plain[:, :4])
    torch.testing.assert_close(short, plain[:, :4])
    assert not torch.allclose(edited[:, 4:], plain[:, 4:], atol=1e-3)
