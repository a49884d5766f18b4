"""Copying scores are those of the whole V x V circuit, and value norms those of each key's vector."""

import copy
import math

import pytest
import torch
from torch import nn

from model.inspection import copying
from model.inspection.copying import copying_scores, value_norms
from model.inspection.trace import trace
from tests.by_hand import ByHand
from tests.gpts import MODERN, TOKENS, random_gpt


@torch.no_grad()
def test_copying_is_that_of_the_whole_vocabulary(each_gpt, monkeypatch):
    monkeypatch.setattr(copying, "CHUNK", 16)
    found = copying_scores(each_gpt)
    exact = copy.deepcopy(each_gpt).double()
    for module in exact.modules():  # constants that all tokens share
        if getattr(module, "bias", None) is not None and module is not exact.embedding_norm:
            nn.init.zeros_(module.bias)
    tokens = torch.arange(50)
    K, shared = exact.config.head_dim, exact.config.num_heads // exact.config.num_kv_heads
    rows = exact.head.weight * (1 if getattr(exact.final_norm, "weight", None) is None else exact.final_norm.weight)
    for layer, block in enumerate(exact.blocks):
        read = block.attention_norm(exact.embedding_norm(exact.token_embedding(tokens)))
        values = block.attention.project(read)[2]  # (H_kv, V, K)
        if str(layer) in exact.value_embeddings:
            values = values + exact.value_embeddings[str(layer)](tokens).unflatten(1, (-1, K)).transpose(0, 1)
        for head, matrix in enumerate(block.attention.output_proj.weight.split(K, dim=1)):
            written = values[head // shared] @ matrix.T
            if exact.config.norm == "layernorm":
                written = written - written.mean(-1, keepdim=True)
            eigenvalues = torch.linalg.eigvals(written @ rows.T)  # (V, V): from the token attended to, to the logits
            expected = eigenvalues.real.sum() / eigenvalues.abs().sum()
            torch.testing.assert_close(found[layer, head], expected, atol=1e-4, rtol=0)


@torch.no_grad()
def test_heads_that_copy_that_suppress_and_that_write_nothing():
    gpt = random_gpt(MODERN)
    attention, K, D = gpt.blocks[1].attention, gpt.config.head_dim, gpt.config.embed_dim
    gpt.head.weight.copy_(gpt.token_embedding.weight)
    attention.qkv_proj.weight[-D:] = torch.eye(D)
    attention.output_proj.weight[:] = torch.eye(D)
    attention.output_proj.weight[:, K : 2 * K] *= -1
    attention.output_proj.weight[:, 2 * K : 3 * K] = 0
    attention.output_proj.weight[:, 3 * K] = math.nan
    scores = copying_scores(gpt)[1]
    assert scores[:3].tolist() == pytest.approx([1, -1, 0]) and scores[3].isnan()


@torch.no_grad()
def test_value_norms_are_those_of_each_keys_vector(each_gpt):
    found, by_hand = value_norms(each_gpt, trace(each_gpt, TOKENS)), ByHand(each_gpt, TOKENS.tolist())
    K, shared = each_gpt.config.head_dim, each_gpt.config.num_heads // each_gpt.config.num_kv_heads
    for layer, (block, exact) in enumerate(zip(each_gpt.blocks, by_hand.layers, strict=True)):
        for head, matrix in enumerate(block.attention.output_proj.weight.double().split(K, dim=1)):
            expected = (exact["values"][head // shared] @ matrix.T).norm(dim=-1)
            torch.testing.assert_close(found[layer, head].double(), expected, atol=1e-4, rtol=0)
