"""Generation against a loop without a cache, and sampling against the distribution it should have."""

import dataclasses
import math
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.generation import generate, sample, stream
from model.gpt import GPTConfig
from tests.gpts import GPT2, random_gpt

SIZES = {"vocab_size": 23, "context_length": 10, "num_layers": 2, "num_heads": 4, "embed_dim": 32}
MODERN = GPTConfig(**SIZES, value_embeddings=True, bigram_buckets=50)
CONFIGS = [MODERN, GPTConfig(**SIZES, **GPT2), dataclasses.replace(MODERN, num_kv_heads=2, window=3)]


@torch.no_grad()
def without_cache(gpt, tokens, max_new_tokens, choose):
    """The documented window, each token from a whole forward pass over it."""
    context_length = gpt.config.context_length
    window = tokens[:, -context_length:]
    for _ in range(max_new_tokens):
        if window.shape[1] > context_length:
            window = window[:, -(context_length // 2) :]
        token = choose(gpt(window)[:, -1])[:, None]
        window, tokens = torch.cat((window, token), dim=1), torch.cat((tokens, token), dim=1)
    return tokens


@pytest.mark.parametrize("prompt_length", [1, 4, 10, 17])
@pytest.mark.parametrize(
    "config",
    CONFIGS,
    ids=["modern", "gpt2", "grouped and windowed"],
)
def test_cached_generation_equals_uncached_within_and_past_the_context(config, prompt_length):
    gpt, tokens = random_gpt(config), torch.randint(23, (3, prompt_length))
    greedy = generate(gpt, tokens, 25, temperature=0)
    torch.testing.assert_close(greedy, without_cache(gpt, tokens, 25, lambda logits: logits.argmax(-1)))

    options = {"temperature": 0.8, "top_k": 9, "top_p": 0.9}
    drawn = generate(gpt, tokens, 25, **options, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    expected = without_cache(gpt, tokens, 25, lambda logits: sample(logits, **options, generator=generator))
    torch.testing.assert_close(drawn, expected)
    assert not drawn.equal(greedy)


def test_a_context_of_one_token():
    gpt = random_gpt(dataclasses.replace(MODERN, context_length=1))
    tokens = generate(gpt, torch.tensor([[3, 5]]), 4, temperature=0)[0]
    for before, after in pairwise(tokens[1:]):
        assert gpt(before.view(1, 1)).argmax() == after


def test_reads_the_prompt_once_and_then_one_token_at_a_time(monkeypatch):
    gpt, lengths = random_gpt(MODERN), []
    features = gpt.features
    monkeypatch.setattr(
        gpt, "features", lambda tokens, **kw: (lengths.append(tokens.shape[1]), features(tokens, **kw))[1]
    )
    generate(gpt, torch.randint(23, (2, 7)), 12)
    assert lengths == [7, 1, 1, 1, 5, 1, 1, 1, 1, 1, 5, 1]


def test_stream_yields_what_generate_returns_as_it_is_drawn():
    gpt, tokens = random_gpt(MODERN), torch.randint(23, (2, 4))
    whole = generate(gpt, tokens, 9, generator=torch.Generator().manual_seed(7))
    passes = []
    gpt.final_norm.register_forward_hook(lambda *_: passes.append(1))
    streamed = []
    for token in stream(gpt, tokens, 9, generator=torch.Generator().manual_seed(7)):
        assert token.shape == (2,)
        streamed.append(token)
        assert len(passes) == len(streamed)
    torch.testing.assert_close(torch.stack(streamed, dim=1), whole[:, 4:])
    torch.testing.assert_close(whole[:, :4], tokens)


def test_the_generator_determines_the_text():
    gpt, tokens = random_gpt(MODERN), torch.randint(23, (2, 4))

    def draw(seed):
        return generate(gpt, tokens, 20, generator=torch.Generator().manual_seed(seed))

    state = torch.get_rng_state()
    first = draw(1)
    assert torch.get_rng_state().equal(state)
    torch.manual_seed(99)
    assert draw(1).equal(first) and not draw(2).equal(first)


def test_a_stop_token_ends_each_sequence_and_then_all():
    gpt, tokens = random_gpt(MODERN), torch.randint(23, (4, 3))
    free = generate(gpt, tokens, 30, generator=torch.Generator().manual_seed(3))[:, 3:]
    stop = int(free[0, 4])
    stopped = generate(gpt, tokens, 30, generator=torch.Generator().manual_seed(3), stop_token=stop)[:, 3:]
    ends = []
    for row in stopped.tolist():
        end = row.index(stop) if stop in row else len(row)
        ends.append(end)
        assert all(token == stop for token in row[end:])
    # A row's text depends on no other row's ending.
    for row, expected, end in zip(stopped, free, ends, strict=True):
        torch.testing.assert_close(row[:end], expected[:end])
    assert min(ends) <= 4
    assert stopped.shape[1] == min(30, max(ends) + 1)


def test_generation_ends_once_every_sequence_has():
    gpt = random_gpt(MODERN)
    tokens = torch.randint(23, (2, 3)).repeat_interleave(2, dim=0)[:2]  # two equal rows end together
    free = generate(gpt, tokens, 20, temperature=0)[0, 3:].tolist()
    stopped = generate(gpt, tokens, 20, temperature=0, stop_token=free[2])[0, 3:].tolist()
    assert stopped == free[: free.index(free[2]) + 1]


def test_dropout_is_off_and_the_mode_is_restored():
    gpt, tokens = random_gpt(dataclasses.replace(MODERN, dropout=0.5)), torch.randint(23, (1, 4))
    expected = generate(gpt, tokens, 8, temperature=0)
    assert not gpt.training
    gpt.train()
    assert generate(gpt, tokens, 8, temperature=0).equal(expected)
    assert gpt.training
    unfinished = stream(gpt, tokens, 8)
    next(unfinished)
    unfinished.close()
    assert gpt.training


@pytest.mark.parametrize(
    "config",
    CONFIGS,
    ids=["modern", "gpt2", "grouped and windowed"],
)
def test_a_step_recorded_once_serves_every_position(config):
    gpt, tokens = random_gpt(config), torch.randint(23, (3, 4))
    graphs = []

    def trace(module, inputs):
        graphs.append(module)
        assert ".item()" not in module.code  # which would wait for the device
        return module.forward

    def draw(**options):
        return generate(gpt, tokens, 64, top_k=9, generator=torch.Generator().manual_seed(1), **options)

    torch.compiler.reset()
    # Whole, because a CUDA graph, which this stands for, cannot be recorded where Python decides or waits.
    recorded = draw(record=partial(torch.compile, backend=trace, fullgraph=True, dynamic=False))
    assert len(graphs) == 1  # though the text outgrew the context ten times
    torch.testing.assert_close(recorded, draw())


# Sampling


def probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    """The distribution that the options describe, by hand, in float64."""
    p = (logits.double() / temperature).softmax(0)
    order = p.argsort(descending=True)
    kept = order[: top_k or len(p)]
    if top_p is not None:
        share = p[kept] / p[kept].sum()
        count = next(n for n in range(1, len(kept) + 1) if share[:n].sum() >= top_p - 1e-9)
        kept = kept[:count]
    result = torch.zeros_like(p)
    result[kept] = p[kept] / p[kept].sum()
    return result


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_p": 0.7},
        {"top_p": 1.0},
        {"temperature": 1.5, "top_k": 6, "top_p": 0.8},
        {"top_k": 100},
    ],
    ids=str,
)
def test_draws_have_the_described_distribution(options):
    logits, draws = torch.randn(8) * 2, 40_000
    generator = torch.Generator().manual_seed(0)
    counts = sample(logits.expand(draws, 8), **options, generator=generator).bincount(minlength=8)
    expected = probabilities(logits, **options)
    assert counts[expected == 0].sum() == 0
    # Five standard deviations of each count.
    assert ((counts / draws - expected).abs() <= 5 * (expected * (1 - expected) / draws).sqrt() + 1e-9).all()


@given(
    st.lists(st.floats(-30, 30), min_size=1, max_size=12),
    st.floats(0.05, 5),
    st.one_of(st.none(), st.integers(1, 15)),
    st.one_of(st.none(), st.floats(0.01, 1)),
)
@settings(deadline=None)
def test_only_described_tokens_are_drawn(logits, temperature, top_k, top_p):
    row = torch.tensor(logits)
    drawn = sample(row.expand(50, -1), temperature=temperature, top_k=top_k, top_p=top_p)
    p = (row.double() / temperature).softmax(0)
    for token in drawn.unique():
        likelier = p[p > p[token] * (1 + 1e-4)]  # those that float32 can tell apart
        assert top_k is None or len(likelier) < top_k
        reference = p.sort(descending=True).values[: top_k or len(p)].sum()
        assert top_p is None or likelier.sum() / reference < top_p + 1e-5


def test_temperature_zero_and_its_limit_take_the_likeliest():
    logits = torch.randn(64, 23)
    assert sample(logits, temperature=0).equal(logits.argmax(-1))
    assert sample(logits, temperature=1e-45).equal(logits.argmax(-1))
    assert sample(logits, temperature=1e-45, top_k=5, top_p=0.5).equal(logits.argmax(-1))
    assert sample(logits, top_k=1).equal(logits.argmax(-1))
    assert sample(logits, top_p=1e-9).equal(logits.argmax(-1))


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, not 0"),
        ({"temperature": -0.5}, r"temperature must be .* not -0\.5"),
        ({"temperature": math.nan}, "not nan"),
        ({"temperature": math.inf}, "not inf"),
        ({"top_k": 0}, "top_k must be at least 1, not 0"),
        ({"top_p": 0.0}, r"top_p must be .* not 0\.0"),
        ({"top_p": 1.5}, r"top_p must be .* not 1\.5"),
        ({"tokens": torch.tensor([[1, 23]])}, r"0\.\.22, not in 1\.\.23"),
        ({"tokens": torch.tensor([[-1, 2]])}, r"0\.\.22, not in -1\.\.2"),
        ({"tokens": torch.zeros(1, 0, dtype=torch.long)}, r"\(1, 0\)"),
        ({"tokens": torch.tensor([1, 2])}, r"\(2,\)"),
        ({"stop_token": 23}, r"stop_token must lie in 0\.\.22, not 23"),
    ],
    ids=str,
)
@pytest.mark.parametrize("function", [generate, stream])
def test_impossible_options_are_refused(function, options, message):
    arguments = {"tokens": torch.tensor([[1, 2]]), "max_new_tokens": 3} | options
    with pytest.raises(ValueError, match=message):
        function(random_gpt(MODERN), **arguments)  # stream too, before it is iterated


def test_tokens_that_are_not_integers_are_refused():
    with pytest.raises(TypeError, match="float32"):
        generate(random_gpt(MODERN), torch.zeros(1, 2), 3)
