"""Numbers under stress: random networks of both families, half precision against single, and one batch by heart.

make stress ARGS="tests/stress/numbers.py"; STRESS=N changes the number of networks, SEED which ones.
"""

import math
import os
import random

import pytest
import torch

from model.gpt import GPT, GPTConfig
from model.training.optimizer import OptimizerConfig, build_optimizer
from tests.gpts import GPT2

NETWORKS = int(os.environ.get("STRESS", "400"))
SEED = int(os.environ.get("SEED", "0"))
MODERN: dict = {}


def random_config(draw: random.Random) -> GPTConfig:
    """Any sizes that fit together, of either family or between them."""
    heads, width = draw.choice([1, 2, 3, 4, 6]), draw.choice([2, 4, 8, 16, 32])
    options = {
        "vocab_size": draw.choice([2, 17, 100, 257, 1000]),
        "context_length": draw.choice([2, 5, 16, 33]),
        "num_layers": draw.randint(1, 5),
        "num_heads": heads,
        "embed_dim": heads * width,
        "num_kv_heads": draw.choice([n for n in range(1, heads + 1) if heads % n == 0]),
        "feed_forward_dim": draw.choice([None, 1, 13, 64]),
        "window": draw.choice([None, None, 1, 4]),
    }
    mixed = {
        "position": draw.choice(["rotary", "learned"]),
        "norm": draw.choice(["layernorm", "rmsnorm"]),
        "embedding_norm": draw.random() < 0.5,
        "activation": draw.choice(["gelu", "gelu_exact", "relu2", "swiglu"]),
        "bias": draw.random() < 0.5,
        "tie_embeddings": draw.random() < 0.5,
        "qk_norm": draw.random() < 0.5,
        "value_embeddings": draw.random() < 0.5,
        "bigram_buckets": draw.choice([None, 1, 50]),
        "logit_soft_cap": draw.choice([None, 5.0, 15.0]),
        "dropout": draw.choice([0.0, 0.0, 0.3]),
        "init": draw.choice(["scaled", "gpt2"]),
    }
    options |= draw.choice([GPT2, MODERN, mixed])
    if options.get("tie_embeddings"):
        # Its logits cannot be zero, as they are the embedding's own products; among a few tokens that would count.
        options |= {"vocab_size": 1000, "embed_dim": heads * max(width, 8)}
    return GPTConfig(**options)


@pytest.mark.parametrize("number", range(NETWORKS))
def test_a_random_network_starts_at_a_guess_and_learns(number):
    """Its first loss is within 2% of ln V, and three steps of either optimizer leave everything finite."""
    draw = random.Random(f"{SEED} {number}")
    config = random_config(draw)
    torch.manual_seed(number)
    gpt = GPT(config)
    optimizer = build_optimizer(gpt, OptimizerConfig(algorithm=draw.choice(["muon", "adamw"])))
    tokens = torch.randint(config.vocab_size, (256, config.context_length + 1))
    with torch.no_grad():
        first = gpt.loss(tokens[:, :-1], tokens[:, 1:]).item()
    for loss in losses(gpt, optimizer, [tokens[:16]] * 3):
        gradients = [parameter.grad for parameter in gpt.parameters() if parameter.grad is not None]
        assert math.isfinite(loss) and all(gradient.isfinite().all() for gradient in gradients), config
    assert all(p.isfinite().all() for p in gpt.parameters()), config
    assert first == pytest.approx(math.log(config.vocab_size), rel=0.02), config


def losses(gpt, optimizer, batches, half: bool = False):
    """Trains, and gives the loss before each step, with the gradients in place."""
    for tokens in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = gpt.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        yield loss.item()
        optimizer.step()


def text_batches(steps: int, vocab_size: int, size: int = 16, length: int = 32):
    """(B, T + 1) of a text that can be learned: each token tells the next, nine times of ten."""
    draw = torch.Generator().manual_seed(0)
    follower = torch.randperm(vocab_size, generator=draw)
    for _ in range(steps):
        tokens = torch.randint(vocab_size, (size, length + 1), generator=draw)
        for place in range(1, length + 1):
            follows = torch.rand(size, generator=draw) < 0.9
            tokens[:, place] = torch.where(follows, follower[tokens[:, place - 1]], tokens[:, place])
        yield tokens


FAMILIES = {"gpt2": GPT2, "modern": MODERN}
SMALL = {"vocab_size": 64, "context_length": 32, "num_layers": 3, "num_heads": 4, "embed_dim": 64}


@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_learns_as_single_does(family):
    """Over 200 steps; the mean loss of every 20 is within 1%."""
    curves = []
    for half in (False, True):
        torch.manual_seed(0)
        gpt = GPT(GPTConfig(**SMALL | FAMILIES[family]))
        optimizer = build_optimizer(gpt, OptimizerConfig(algorithm="adamw", learning_rate=1e-3))
        learned = [*losses(gpt, optimizer, text_batches(200, 64), half)]
        curves.append(torch.tensor(learned).view(-1, 20).mean(1))
    single, half = curves
    assert single[-1] < single[0] - 1
    torch.testing.assert_close(half, single, rtol=0.01, atol=0)


@pytest.mark.parametrize("algorithm", ["muon", "adamw"])
@pytest.mark.parametrize("family", FAMILIES)
def test_one_batch_is_learned_by_heart(family, algorithm):
    """Random tokens, which nothing but memory can predict, to a loss below 0.01."""
    torch.manual_seed(0)
    gpt = GPT(GPTConfig(**SMALL | FAMILIES[family]))
    rates = {"learning_rate": 0.003, "matrix_learning_rate": 0.01, "betas": (0.9, 0.95)}
    optimizer = build_optimizer(gpt, OptimizerConfig(algorithm=algorithm, **rates))
    tokens = torch.randint(64, (4, 33))
    assert any(loss < 0.01 for loss in losses(gpt, optimizer, [tokens] * 500))
