"""Ablation changes the loss as edited weights do, and leaves nothing behind."""

import copy
import math
from statistics import mean, stdev

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model.inspection import ablation as module
from model.inspection.ablation import changes, losses_without_each, part_means, replaced
from tests.gpts import CONFIGS, TOKENS, random_gpt

BATCH = torch.arange(3 * 10).view(3, 10)
FIRST = 4


@torch.no_grad()
def loss(gpt, tokens):
    logits = gpt(tokens[None])[0, FIRST:-1]
    return F.cross_entropy(logits.double(), tokens[FIRST + 1 :]).item()


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


TEXTS = torch.stack([TOKENS, TOKENS.flip(0), (TOKENS + 3) % 40])
COUNTED = torch.arange(len(TOKENS) - 1).expand(3, -1) >= FIRST


def test_ablation_changes_the_loss_of_each_text_as_edited_weights_do(each_gpt, monkeypatch):
    gpt = each_gpt
    # More than one forward pass, or one for each part.
    monkeypatch.setattr(module, "MAX_TOKENS", 1 if gpt.config.num_layers == 1 else 7 * len(TOKENS))
    found = losses_without_each(gpt, TEXTS, part_means(gpt, BATCH), COUNTED)
    layers, heads = range(gpt.config.num_layers), range(gpt.config.num_heads)
    parts = {f"head {layer}.{head}": ("head", layer, head) for layer in layers for head in heads}
    parts |= {f"feed-forward {layer}": ("feed-forward", layer) for layer in layers}
    parts |= {table: (table,) for table in tables_of(gpt)}
    assert found.keys() == {"nothing", *parts}
    for name, of_texts in found.items():
        edited = gpt if name == "nothing" else without(gpt, *parts[name])
        assert of_texts.tolist() == pytest.approx([loss(edited, text) for text in TEXTS], abs=1e-5), name
    assert max(abs(change.rise) for change in changes(found).values()) > 0.01
    assert all("forward" not in vars(block) for block in gpt.blocks)


def test_a_text_counts_what_it_is_told_to_and_one_without_anything_is_not_known(each_gpt):
    counted = torch.stack([COUNTED[0], ~COUNTED[1], torch.zeros_like(COUNTED[2])])
    means = part_means(each_gpt, BATCH)
    found = losses_without_each(each_gpt, TEXTS, means, counted)
    together, other = losses_without_each(each_gpt, TEXTS, means, COUNTED), TEXTS.shape[1] - 1
    every = losses_without_each(each_gpt, TEXTS, means)
    for name, of_texts in found.items():
        assert of_texts[0] == pytest.approx(together[name][0].item(), abs=1e-6) and of_texts[2].isnan()
        rest = (other * every[name][1] - (other - FIRST) * together[name][1]) / FIRST
        assert of_texts[1] == pytest.approx(rest.item(), abs=1e-4)


def test_a_change_has_the_standard_error_of_its_mean_and_is_clear_beyond_two():
    losses = {"nothing": torch.tensor([1.0, 2.0, 3.0, 4.0]), "one": torch.tensor([1.5, 2.4, 3.6, 4.5])}
    losses |= {"other": torch.tensor([1.5, 1.4, 3.6, 3.5]), "none": losses["nothing"]}
    found = changes({name: of_texts.double() for name, of_texts in losses.items()})
    for name in ("one", "other"):
        rises = (losses[name] - losses["nothing"]).tolist()
        assert found[name] == pytest.approx((mean(rises), stdev(rises) / 2), abs=1e-6)
    assert [name for name, change in found.items() if change.is_clear] == ["one"]
    [single] = changes({"nothing": torch.ones(1), "one": torch.zeros(1)}).values()
    assert single.rise == -1 and math.isnan(single.error) and not single.is_clear


def test_a_part_replaced_at_a_token_leaves_the_others_and_shorter_texts_as_they_are():
    gpt = random_gpt(CONFIGS["tables"])
    part, vector = next(item for item in part_means(gpt, BATCH).items() if item[0].startswith("head "))
    plain = gpt(TOKENS[None])
    with replaced(gpt, {part: vector + 1}, position=4):
        edited, short = gpt(TOKENS[None]), gpt(TOKENS[None, :4])
    torch.testing.assert_close(edited[:, :4], plain[:, :4])
    torch.testing.assert_close(short, plain[:, :4])
    assert not torch.allclose(edited[:, 4:], plain[:, 4:], atol=1e-3)
