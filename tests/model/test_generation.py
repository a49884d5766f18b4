"""Generation against a loop without a cache, and sampling against the distribution it should have."""

import dataclasses

import pytest
import torch

from model.generation import generate, new_cache, sample, stream
from model.gpt import GPTConfig
from tests.gpts import GPT2, random_gpt

SIZES = {"vocab_size": 23, "context_length": 10, "num_layers": 2, "num_heads": 4, "embed_dim": 32}
MODERN = GPTConfig(**SIZES, value_embeddings=True, ngram_sizes=[2, 3], ngram_buckets=50)
CONFIGS = [MODERN, GPTConfig(**SIZES, **GPT2), dataclasses.replace(MODERN, num_kv_heads=2, window=3)]
EVERY_CONFIG = pytest.mark.parametrize("config", CONFIGS, ids=["modern", "gpt2", "grouped and windowed"])


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
@EVERY_CONFIG
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


def lengths_read(gpt):
    """A list that gets the number of tokens of each forward pass."""
    lengths = []
    gpt.final_norm.register_forward_hook(lambda _, args, result: lengths.append(result.shape[1]))
    return lengths


def test_stream_yields_what_generate_returns_as_it_is_drawn_with_the_generator_alone():
    """The prompt is read once, and then one token at a time."""
    gpt, tokens, state = random_gpt(MODERN), torch.randint(23, (2, 7)), torch.get_rng_state()
    passes = lengths_read(gpt)
    whole = generate(gpt, tokens, 12, generator=torch.Generator().manual_seed(7))
    assert torch.get_rng_state().equal(state) and passes == [7, 1, 1, 1, 5, 1, 1, 1, 1, 1, 5, 1]
    torch.manual_seed(99)
    streamed = []
    for token in stream(gpt, tokens, 12, generator=torch.Generator().manual_seed(7)):
        assert token.shape == (2,)
        streamed.append(token)
        assert len(passes) == 12 + len(streamed)
    torch.testing.assert_close(torch.stack(streamed, dim=1), whole[:, 7:])
    torch.testing.assert_close(whole[:, :7], tokens)


def test_a_stop_token_ends_each_sequence_and_then_all():
    gpt, tokens = random_gpt(MODERN), torch.randint(23, (4, 3))
    free = generate(gpt, tokens, 30, generator=torch.Generator().manual_seed(3))[:, 3:]
    stop = int(free[0, 4])
    stopped = generate(gpt, tokens, 30, generator=torch.Generator().manual_seed(3), stop_token=stop)[:, 3:]
    ends = []
    for row, unstopped in zip(stopped.tolist(), free.tolist(), strict=True):  # a text depends on no other's end
        end = row.index(stop) if stop in row else len(row)
        ends.append(end)
        assert row == unstopped[:end] + [stop] * (len(row) - end)
    assert min(ends) <= 4 and stopped.shape[1] == min(30, max(ends) + 1)


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


@EVERY_CONFIG
def test_a_kept_cache_continues_the_text_and_reads_only_what_is_new(config):
    gpt = random_gpt(dataclasses.replace(config, context_length=40))
    read = lengths_read(gpt)
    cache = new_cache(gpt, 1, 40)
    text = []
    for turn in ([1, 2, 3], [], [9, 8, 7, 6]):
        unread = text[-1:] + turn
        whole = generate(gpt, torch.tensor([text + turn]), 5, temperature=0)
        read.clear()
        new = [int(token) for token in stream(gpt, torch.tensor([unread]), 5, cache=cache, temperature=0)]
        assert read == [len(unread), 1, 1, 1, 1]
        text += turn + new
        assert text == whole[0].tolist()


def test_a_kept_cache_slides_when_a_turn_does_not_fit():
    gpt = random_gpt(MODERN)
    cache = new_cache(gpt, 1, 10)
    first = generate(gpt, torch.tensor([[1, 2, 3, 4]]), 4, temperature=0, cache=cache)
    turn = torch.cat((first[:, -1:], torch.tensor([[5, 6, 7]])), dim=1)
    # Of the 11 tokens, the last half of the context is read again.
    new = generate(gpt, turn, 3, temperature=0, cache=cache)[:, 4:]
    expected = generate(gpt, torch.cat((first, turn[:, 1:]), dim=1)[:, -5:], 3, temperature=0)[:, 5:]
    assert new.tolist() == expected.tolist()


def probabilities(logits, temperature=1.0, top_k=None, top_p=None, min_p=None):
    """The distribution that the options describe, by hand, in float64."""
    p = (logits.double() / temperature).softmax(0)
    order = p.argsort(descending=True)
    kept = order[: top_k or len(p)]
    if top_p is not None:
        share = p[kept] / p[kept].sum()
        count = next(n for n in range(1, len(kept) + 1) if share[:n].sum() >= top_p - 1e-9)
        kept = kept[:count]
    if min_p is not None:
        kept = kept[p[kept] >= min_p * p.max()]
    result = torch.zeros_like(p)
    result[kept] = p[kept] / p[kept].sum()
    return result


DRAWS = [{}, {"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 3}, {"top_k": 100}, {"top_p": 0.7}, {"top_p": 1.0}]
DRAWS += [{"min_p": 0.1}, {"min_p": 0.0}, {"min_p": 0.05, "temperature": 1.5}]
DRAWS += [{"temperature": 1.5, "top_k": 6, "top_p": 0.8}, {"min_p": 0.2, "temperature": 2.0, "top_k": 6, "top_p": 0.9}]


@pytest.mark.parametrize("options", DRAWS, ids=str)
def test_draws_have_the_described_distribution(options):
    logits, draws = torch.randn(8) * 2, 100_000
    generator = torch.Generator().manual_seed(0)
    counts = sample(logits.expand(draws, 8), **options, generator=generator).bincount(minlength=8)
    p = probabilities(logits, **options)
    deviation = (draws * p * (1 - p)).sqrt()  # of a binomial distribution: 0 where p is 0 or 1
    assert ((counts - draws * p).abs() <= 4 * deviation).all()


def test_draws_depend_on_no_order_in_memory_nor_on_a_sort():
    def draw(logits, **options):
        return sample(logits, **options, generator=torch.Generator().manual_seed(5))

    logits = torch.randn(6, 50)
    turned = logits.mT.contiguous().mT
    for options in ({}, {"top_k": 20}):
        assert torch.equal(draw(turned, **options), draw(logits, **options))
    assert torch.equal(draw(logits, top_k=50), draw(logits))  # sorted, but nothing is left out


def test_temperature_zero_and_its_limit_take_the_likeliest():
    logits = torch.randn(64, 23)
    limits = ({"temperature": 0}, {"temperature": 1e-45}, {"temperature": 1e-45, "top_k": 5, "top_p": 0.5})
    for options in (*limits, {"top_k": 1}, {"top_p": 1e-9}):
        assert sample(logits, **options).equal(logits.argmax(-1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens .*0"),
        ({"temperature": -0.5}, r"temperature .*-0\.5"),
        ({"top_k": 0}, "top_k .*0"),
        ({"top_p": 0.0}, r"top_p .*0\.0"),
        ({"min_p": 1.5}, r"min_p .*1\.5"),
        ({"tokens": torch.tensor([[1, 23]])}, r"0\.\.22, not in 1\.\.23"),
        ({"tokens": torch.zeros(1, 0, dtype=torch.long)}, r"\(1, 0\)"),
        ({"tokens": torch.tensor([1, 2])}, r"\(2,\)"),
        ({"tokens": torch.zeros(1, 2)}, "float32"),
        ({"stop_token": 23}, "stop_token .*22, not 23"),
    ],
    ids=str,
)
@pytest.mark.parametrize("function", [generate, stream])
def test_impossible_options_are_refused(function, options, message):
    arguments = {"tokens": torch.tensor([[1, 2]]), "max_new_tokens": 3} | options
    with pytest.raises(TypeError if message == "float32" else ValueError, match=message):
        function(random_gpt(MODERN), **arguments)  # stream too, before it is iterated
