"""Ablation changes the loss as edited weights do, and leaves the model unchanged."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model.inspection import parts as module
from model.inspection.parts import losses_without_each, part_means, replaced, rises
from model.inspection.texts import Texts
from tests.by_hand import ByHand
from tests.gpts import MODERN, TOKENS, random_gpt

BATCH = torch.arange(3 * 10).view(3, 10)
MEASURED = Texts.of(BATCH)


@torch.no_grad()
def losses(gpt, texts, documents=None):
    """The loss (B, T - 1) of each token that has a next one, in float64, with attention within the given documents."""
    logits = gpt(texts, document_ids=documents)[:, :-1].double()
    return F.cross_entropy(logits.mT, texts[:, 1:], reduction="none")


def tables_of(gpt):
    """The tables of a model, each with the rows that BATCH uses."""
    tables = {"token embedding": (gpt.token_embedding, BATCH)}
    if gpt.position_embedding:
        tables["positions"] = gpt.position_embedding, torch.arange(10)
    if gpt.ngram_embedding:
        tables["n-gram tables"] = gpt.ngram_embedding, gpt.ngram_embedding.rows(BATCH)
    return tables | {f"value embeddings {layer}": (table, BATCH) for layer, table in gpt.value_embeddings.items()}


@torch.no_grad()
def without(gpt, part, texts):
    """A copy of the model whose weights are edited so that a part is constant. texts: the forward passes of BATCH."""
    edited = copy.deepcopy(gpt)
    edited.lm_head.weight = nn.Parameter(gpt.lm_head.weight.detach().clone())  # a tied table must not change lm_head
    if part in tables_of(edited):
        table, ids = tables_of(edited)[part]
        table.weight[:] = table.weight[ids.flatten()].double().mean(0)
        return edited
    kind, place = part.split()
    layer, *heads = map(int, place.split("."))
    block, seen = edited.blocks[layer], [text.layers[layer] for text in texts]
    if kind == "feed-forward":
        target, columns = block.feed_forward.down_proj, slice(None)
        inputs = torch.cat([one["hidden units"] for one in seen])
    else:
        [head], K = heads, gpt.config.head_dim
        target, columns = block.attention.output_proj, slice(head * K, (head + 1) * K)
        inputs = torch.cat([one["mixed values"][head] for one in seen])
    constant = target.weight[:, columns].double() @ inputs.mean(0)
    target.bias = nn.Parameter((constant + (0 if target.bias is None else target.bias)).float())
    target.weight[:, columns] = 0
    return edited


TEXTS = torch.stack([TOKENS, TOKENS.flip(0), (TOKENS + 3) % 40])
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 7, [0] * 12, [0] * 2 + [1] * 3 + [2] * 7])


def test_ablation_changes_the_loss_of_each_text_as_edited_weights_do(each_gpt, monkeypatch):
    gpt = each_gpt
    gpt.blocks[0].forward = own = gpt.blocks[0].forward  # somebody has replaced it
    # Several parts in each forward pass, or one.
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", 1 if gpt.config.num_layers == 1 else 7 * len(TOKENS))
    layers = range(gpt.config.num_layers)
    parts = {f"feed-forward {layer}" for layer in layers}
    parts |= {f"head {layer}.{head}" for layer in layers for head in range(gpt.config.num_heads)}
    parts |= {"nothing", *tables_of(gpt)}
    means, by_hand = part_means(gpt, MEASURED), [ByHand(gpt, row) for row in BATCH.tolist()]
    edited = {name: gpt if name == "nothing" else without(gpt, name, by_hand) for name in parts}
    for documents in (None, DOCUMENTS):
        found = losses_without_each(gpt, Texts.of(TEXTS, document_ids=documents), means)
        assert found.keys() == parts
        for name, of_texts in found.items():
            expected = losses(edited[name], TEXTS, documents).mean(1).tolist()
            assert of_texts.tolist() == pytest.approx(expected, abs=1e-5), name
        assert max(abs(change.rise) for change in rises(found).values()) > 0.01
    assert [vars(block)["forward"] for block in gpt.blocks if "forward" in vars(block)] == [own]


def test_what_goes_past_the_blocks_is_ablated_too():
    gpt, kept = random_gpt(MODERN), []
    gpt.token_embedding.register_forward_hook(lambda *_: kept.clear())
    gpt.blocks[0].attention.register_forward_hook(lambda *x: kept.append(x[-1]))
    gpt.blocks[2].register_forward_pre_hook(lambda _, inputs: inputs[0] + kept[0])
    means = part_means(gpt, MEASURED)
    found = losses_without_each(gpt, Texts.of(TEXTS), means)
    with replaced(gpt, {"head 1.0": means["head 1.0"]}):
        assert found["head 1.0"].tolist() == pytest.approx(losses(gpt, TEXTS).mean(1).tolist(), abs=1e-5)


def test_in_repeated_texts_only_tokens_that_repeat_earlier_ones_count(each_gpt):
    texts = torch.stack([torch.cat((TOKENS[:3], TOKENS[:6])), TOKENS[[0, 1, 0, 1, 0, 1, 2, 4, 6]], torch.arange(9)])
    found = losses_without_each(each_gpt, Texts.of(texts, kind="repeated"), part_means(each_gpt, MEASURED))
    whole = losses(each_gpt, texts)
    expected = [whole[0, 3:6].mean().item(), whole[1, 2:6].mean().item()]
    assert found["nothing"][:2].tolist() == pytest.approx(expected, abs=1e-5)
    assert all(of_texts[2].isnan() for of_texts in found.values())
