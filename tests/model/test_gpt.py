"""The GPT computes what other implementations of the same network compute, and refuses impossible options."""

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from model.gpt import ACTIVATIONS, GPT, GPTConfig
from tests.by_hand import ByHand
from tests.gpts import CONFIGS, SIZES, TOKENS, loss_of, random_gpt

FORMULAS = CONFIGS | {name: GPTConfig(**SIZES, activation=name) for name in ACTIVATIONS}


@pytest.mark.parametrize("name", FORMULAS)
def test_logits_loss_and_gradients_are_those_of_the_formulas(name):
    """A new activation needs its formula in tests/by_hand.py."""
    gpt = random_gpt(FORMULAS[name])
    expected = ByHand(gpt, TOKENS.tolist()).stops
    assert_close(gpt(TOKENS[None])[0].double(), expected["logits"], atol=1e-4, rtol=1e-4)
    loss = loss_of(gpt, TOKENS[None, :-1], TOKENS[None, 1:])
    assert_close(loss.double(), expected["loss"], atol=1e-4, rtol=1e-4)
    gradients, exact = (torch.autograd.grad(one, list(gpt.parameters())) for one in (loss, expected["loss"]))
    assert_close(gradients, exact, atol=1e-4, rtol=1e-3)


def test_ngrams_spread_evenly_over_the_rows_of_their_table():
    """Both n-grams of ids near each other, as frequent tokens have, and of ids far apart."""
    for size, count, stride in ((2, 64, 1), (2, 64, 768), (3, 16, 1), (3, 16, 3000), (4, 8, 1)):
        gpt = GPT(GPTConfig(**SIZES | {"vocab_size": 50304}, ngram_sizes=[size], ngram_buckets=4096))
        ngrams = torch.cartesian_prod(*[stride * torch.arange(count)] * size)
        rows = gpt.ngram_embedding.rows(ngrams)[:, -1, 0]
        assert rows.unique().numel() / 4096 > 0.53  # a random map would fill 1 - 1/e = 0.63


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("init", ["gpt2", "scaled"])
def test_initial_weights_have_the_distributions_of_their_formulas(init, tied):
    """D = 64 and L = 8, so there are 2 L additions to the residual stream. A deviation of thousands is known to 5%."""
    parts = {"position": "learned", "norm": "layernorm", "bias": True, "value_embeddings": True, "ngram_sizes": [2]}
    sizes = {"vocab_size": 500, "context_length": 128, "num_layers": 8, "num_heads": 4, "embed_dim": 64}
    weights = dict(GPT(GPTConfig(**sizes, **parts, init=init, tie_embeddings=tied)).named_parameters())
    normal, uniform = {"position_embedding.weight": 0.02}, math.sqrt(3 / 64)  # 64 is the fan-in, D
    normal["token_embedding.weight"] = 0.02 if init == "gpt2" else 1 / 64 if tied else 1.0
    for name, weight in weights.items():
        of_norm, ends_sublayer = "norm" in name, name.endswith(("output_proj.weight", "down_proj.weight"))
        if name.endswith("bias") or of_norm:
            assert (weight == float(of_norm and not name.endswith("bias"))).all(), name
        elif init == "gpt2" or name in normal:
            expected = 0.02 / math.sqrt(2 * 8) if ends_sublayer else normal.get(name, 0.02)
            assert weight.std().item() == pytest.approx(expected, rel=0.05), name
        elif ends_sublayer or name in ("lm_head.weight", "ngram_embedding.weight"):
            assert not weight.any(), name
        else:
            assert 0.99 * uniform < weight.abs().max() <= uniform, name
            assert weight.std().item() == pytest.approx(1 / math.sqrt(64), rel=0.05), name


def test_flops_are_those_that_pytorch_counts():
    gpt = GPT(GPTConfig(**SIZES, feed_forward_dim=96, value_embeddings=True, ngram_sizes=[2, 3], ngram_buckets=64))
    tokens = torch.randint(50, (2, 16))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss_of(gpt, tokens, tokens).backward()
    assert gpt.flops_per_token() == pytest.approx(counter.get_total_flops() / tokens.numel(), rel=0.02)


IMPOSSIBLE = [{"position": "alibi"}, {"bias": "no"}, {"ngram_sizes": [2.5]}, {"vocab_size": None}]


@pytest.mark.parametrize("options", IMPOSSIBLE)
def test_impossible_configs_are_refused(options):
    """tests/test_train_mistakes.py has those that a command line can hold."""
    with pytest.raises(ValueError, match=next(iter(options))):
        GPT(GPTConfig(**SIZES | options))


def test_autocast_keeps_the_residual_stream_in_bfloat16():
    gpt = random_gpt(GPTConfig(**SIZES))
    seen = []
    gpt.blocks[1].register_forward_pre_hook(lambda module, args: seen.append(args[0].dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = gpt(torch.randint(50, (1, 4)))
    assert seen == [torch.bfloat16]
    assert logits.dtype == torch.float32


def test_ids_may_have_any_integer_type_and_other_types_and_too_long_texts_are_refused():
    gpt = GPT(GPTConfig(**SIZES | {"vocab_size": 300}))
    ids = torch.tensor([[3, 1, 250]])
    for dtype in (torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64):
        known = gpt.known_ids(ids.to(dtype))
        assert known.dtype == torch.int64 and known.equal(ids), dtype
    with pytest.raises(TypeError, match=r"torch\.bool"):
        gpt.known_ids(ids > 1)
    with pytest.raises(ValueError, match=r"17 .*context_length 16"):
        gpt(torch.zeros(1, 17, dtype=torch.long))
