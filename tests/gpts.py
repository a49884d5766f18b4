"""GPTs of both families with random or hand-made weights, and their checkpoints."""

from dataclasses import replace

import torch
from torch import nn

from data.tokenizers import byte_level
from model.checkpoint import entries_of
from model.gpt import GPT, GPTConfig
from model.losses import next_token_loss

GPT2 = {"position": "learned", "norm": "layernorm", "embedding_norm": False, "activation": "gelu", "bias": True}
GPT2 |= {"tie_embeddings": True, "qk_norm": False, "logit_soft_cap": None, "init": "gpt2"}

# A small model for each option that a measurement could handle wrongly, and a text for them.
SIZES = {"vocab_size": 50, "context_length": 16, "num_layers": 3, "num_heads": 4, "embed_dim": 32}
MODERN = GPTConfig(**SIZES, logit_soft_cap=None)
CONFIGS = {
    "gpt2": replace(MODERN, **GPT2),
    "modern": MODERN,
    "grouped heads": replace(MODERN, num_kv_heads=2),
    "window": replace(MODERN, window=3),
    "tables": replace(MODERN, value_embeddings=True, ngram_sizes=[3, 2, 3], ngram_buckets=97, num_kv_heads=2),
    "soft-cap": replace(MODERN, logit_soft_cap=2.0),
    "every norm and bias": replace(MODERN, norm="layernorm", bias=True, position="learned", activation="swiglu"),
    "tables of all heads": replace(MODERN, value_embeddings=True, ngram_sizes=[2, 3], ngram_buckets=97),
    "one layer": replace(MODERN, num_layers=1, num_heads=1, num_kv_heads=1),
}
TOKENS = torch.tensor([3, 14, 15, 9, 2, 6, 5, 35, 8, 9, 7, 9])


def random_gpt(config, seed=0, std=0.3):
    """A GPT in eval mode with normal random weights: many initial weights are zero, which would hide mistakes.

    With a std of 0.15 logits are near 1, so that absolute tolerances measure rounding.
    """
    torch.manual_seed(seed)
    gpt = GPT(config).eval()
    for parameter in gpt.parameters():
        nn.init.normal_(parameter, std=std)
    return gpt


def loss_of(gpt, tokens, targets, document_ids=None):
    """The mean loss that training uses, of tokens and targets (B, T)."""
    return next_token_loss(gpt, gpt.features(tokens, document_ids=document_ids), targets)


def hand_made_gpt(layers, parts):
    """A GPT over bytes whose residual stream has `parts` of 64 numbers, one head for each. Returns the slices too.

    The first part holds the token, the second its position, the last the next letter. All other weights are zero.
    """
    sizes = {"vocab_size": 257, "context_length": 64, "num_layers": layers, "num_heads": parts, "embed_dim": 64 * parts}
    plain = {"position": "learned", "embedding_norm": False, "qk_norm": False, "logit_soft_cap": None}
    plain |= {"feed_forward_dim": 16}  # which its weights make idle
    gpt, places = GPT(GPTConfig(**sizes, **plain)).eval(), [slice(64 * i, 64 * i + 64) for i in range(parts)]
    one_hot = nn.functional.one_hot(torch.arange(257) % 64, 64).float()
    with torch.no_grad():
        for weight in gpt.parameters():
            weight.zero_()
        gpt.token_embedding.weight[:, places[0]] = one_hot
        gpt.position_embedding.weight[:, places[1]] = torch.eye(64)
        gpt.lm_head.weight[:, places[-1]] = one_hot
        gpt.lm_head.weight[[*range(97), *range(123, 257)]] = 0  # it predicts lower-case letters only
    return gpt, places


@torch.no_grad()
def set_head(gpt, layer, head, *, query, key, value, written):
    """Sets a head's weights. query, key, value: (part of the residual stream that it reads, matrix (64, 64))."""
    attention, rows = gpt.blocks[layer].attention, slice(64 * head, 64 * head + 64)
    weights = attention.qkv_proj.weight.split(gpt.config.embed_dim)
    for weight, (part, matrix) in zip(weights, (query, key, value), strict=True):
        weight[rows, part] = matrix
    attention.output_proj.weight[written, rows] = torch.eye(64)


def repeating_gpt(period=8):
    """Predicts the token of `period` tokens ago, which head 0.1 fetches."""
    gpt, (token, position, read) = hand_made_gpt(layers=1, parts=3)
    four = 4 * torch.eye(64)
    ago = position, four.roll(1 - period, 0)  # position p asks for position p - period + 1
    set_head(gpt, 0, 1, query=ago, key=(position, four), value=(token, four), written=read)
    return gpt


def induction_gpt():
    """Repeats letters: head 0.1 copies the previous token to each token, and head 1.2 finds by it what came next."""
    gpt, (token, position, previous, read) = hand_made_gpt(layers=2, parts=4)
    four = 4 * torch.eye(64)
    before = position, four.roll(-1, 0)
    set_head(gpt, 0, 1, query=before, key=(position, four), value=(token, four / 40), written=previous)
    set_head(gpt, 1, 2, query=(token, four), key=(previous, four), value=(token, four), written=read)
    return gpt


def save_checkpoint(path, gpt, step=7):
    """Writes a checkpoint as training does, with the tokenizer of bytes but without an optimizer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = {f"gpt.{name}": weight for name, weight in gpt.state_dict().items()}
    entries = entries_of(gpt, weights, byte_level(), torch.arange(20), document_masking=False)
    torch.save(entries | {"state_dict": weights, "global_step": step}, path)


def save_run(folder, **options):
    """Writes a run folder with a small random model over bytes."""
    sizes = {"vocab_size": 257, "context_length": 16, "num_layers": 2, "num_heads": 2, "embed_dim": 32}
    save_checkpoint(folder / "checkpoints/best.ckpt", random_gpt(GPTConfig(**sizes, **options)))
    return folder


def change_checkpoint(path, **entries):
    torch.save(torch.load(path, weights_only=True) | entries, path)
