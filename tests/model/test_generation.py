"""Generation against a loop without a cache, and sampling against the distribution that its options describe."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import zip_longest
from threading import Event

import pytest
import torch
from torch.testing import assert_close

from model import generation, kernels
from model.generation import generate, new_cache, sample, stream
from model.inspection.passes import undisturbed
from tests.gpts import CONFIGS, random_gpt

MODERN, GPT2 = (replace(CONFIGS[name], context_length=10) for name in ("tables of all heads", "gpt2"))
EVERY_CONFIG = pytest.mark.parametrize("config", [MODERN, GPT2, replace(MODERN, num_kv_heads=2, window=3)])


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@torch.no_grad()
def without_cache(gpt, tokens, max_new_tokens, choose):
    """Generates each token from a whole forward pass over the documented window."""
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
def test_generation_with_a_cache_equals_generation_without_within_and_past_the_context(config, prompt_length):
    gpt, tokens = random_gpt(config), torch.randint(50, (3, prompt_length))
    greedy = generate(gpt, tokens, 25, temperature=0)
    assert_close(greedy, without_cache(gpt, tokens, 25, lambda logits: logits.argmax(-1)))
    options = {"temperature": 0.8, "top_k": 9, "top_p": 0.9}
    drawn = generate(gpt, tokens, 25, **options, generator=seeded(1))
    generator = seeded(1)
    expected = without_cache(gpt, tokens, 25, lambda logits: sample(logits, **options, generator=generator))
    assert_close(drawn, expected)
    assert not drawn.equal(greedy)


def lengths_read(gpt):
    """A list to which each forward pass appends its number of tokens."""
    lengths = []
    gpt.final_norm.register_forward_hook(lambda _, args, result: lengths.append(result.shape[1]))
    return lengths


def test_stream_yields_the_tokens_of_generate_one_by_one_and_only_the_generator_draws():
    """The prompt is read once, then one token at a time; a full context is cut to half, which is read again."""
    gpt, tokens, state = random_gpt(MODERN), torch.randint(50, (2, 7)), torch.get_rng_state()
    passes = lengths_read(gpt)
    whole = generate(gpt, tokens, 12, generator=seeded(7))
    assert torch.get_rng_state().equal(state) and passes == [7, 1, 1, 1, 5, 1, 1, 1, 1, 1, 5, 1]
    torch.manual_seed(99)
    streamed = []
    for token in stream(gpt, tokens, 12, generator=seeded(7)):
        streamed.append(token)
        assert len(passes) == 12 + len(streamed)
    assert_close(torch.stack(streamed, dim=1), whole[:, 7:])


def test_a_stop_token_ends_each_text_and_generation_ends_with_the_last():
    gpt, tokens = random_gpt(MODERN), torch.randint(50, (4, 3))
    free = generate(gpt, tokens, 30, generator=seeded(3))[:, 3:]
    stop = int(free[0, 4])
    stopped = generate(gpt, tokens, 30, generator=seeded(3), stop_token=stop)[:, 3:]
    ends = []
    for row, unstopped in zip(stopped.tolist(), free.tolist(), strict=True):  # no text depends on another's end
        end = row.index(stop) if stop in row else len(row)
        ends.append(end)
        assert row == unstopped[:end] + [stop] * (len(row) - end)
    assert min(ends) <= 4 and stopped.shape[1] == min(30, max(ends) + 1)


def test_texts_written_in_turns_or_in_threads_are_those_written_alone(monkeypatch):
    """Between two tokens the model is as it was, even if a text is never finished."""
    monkeypatch.setattr(kernels, "has_slow_vector_products", lambda: True)
    gpt = random_gpt(replace(MODERN, dropout=0.5)).train()
    gpt.blocks[1].eval()  # a frozen part stays frozen
    modes = [module.training for module in gpt.modules()]

    def text(seed):
        return stream(gpt, torch.tensor([[seed]]), 4 + seed, generator=seeded(seed))

    expected = [[*map(int, text(seed))] for seed in range(4)]
    in_turns = [[] for _ in expected]
    for tokens in zip_longest(*map(text, range(4))):
        assert [module.training for module in gpt.modules()] == modes
        assert not any("forward" in vars(module) for module in gpt.modules())
        for written, token in zip(in_turns, tokens, strict=True):
            written += [] if token is None else [int(token)]
    assert in_turns == expected
    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(lambda seed: [*map(int, text(seed))], range(4))] == expected


def test_a_reading_in_another_thread_does_not_repeat_the_draws_of_a_text(monkeypatch):
    drawing, reading = Event(), Event()

    def draw(logits):
        drawing.set()
        reading.wait(0.3)  # in vain: the reading begins when the token is drawn
        return sample(logits)

    monkeypatch.setattr(generation, "sample", draw)
    gpt, state = random_gpt(MODERN), torch.get_rng_state()
    with ThreadPoolExecutor(1) as threads:
        written = threads.submit(generate, gpt, torch.tensor([[1]]), 1)
        drawing.wait()
        with undisturbed(gpt):
            reading.set()
            written.result()
    assert not torch.get_rng_state().equal(state)


@EVERY_CONFIG
def test_a_kept_cache_continues_a_text_and_reads_only_new_tokens(config):
    gpt = random_gpt(replace(config, context_length=40))
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


def probabilities(logits, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0):
    """The distribution that the options describe, computed by hand in float64."""
    p = (logits.double() / temperature).softmax(0)
    kept = p.argsort(descending=True)[:top_k]
    shares = p[kept] / p[kept].sum()
    kept = kept[shares.cumsum(0) - shares < top_p]  # those before a token do not suffice
    kept = kept[p[kept] >= min_p * p.max()]
    result = torch.zeros_like(p)
    result[kept] = p[kept] / p[kept].sum()
    return result


def test_draws_do_not_depend_on_the_memory_layout_nor_on_a_sort():
    def draw(logits, **options):
        return sample(logits, **options, generator=seeded(5))

    logits = torch.randn(6, 50)
    turned = logits.mT.contiguous().mT
    for options in ({}, {"top_k": 20}):
        assert torch.equal(draw(turned, **options), draw(logits, **options))
    assert torch.equal(draw(logits, top_k=50), draw(logits))  # sorts, but leaves no token out


DRAWS = [{}, {"temperature": 2.0}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.1}]
DRAWS += [{"temperature": 1.5, "top_k": 6, "top_p": 0.8, "min_p": 0.2}]


@pytest.mark.parametrize("options", DRAWS, ids=str)
def test_draws_have_the_described_distribution(options):
    logits, draws = torch.randn(8) * 2, 100_000
    generator = seeded(0)
    counts = sample(logits.expand(draws, 8), **options, generator=generator).bincount(minlength=8)
    p = probabilities(logits, **options)
    deviation = (draws * p * (1 - p)).sqrt()  # that of a binomial distribution: 0 where p is 0 or 1
    assert ((counts - draws * p).abs() <= 4 * deviation).all()


def test_temperature_zero_and_its_limit_take_the_likeliest():
    logits = torch.randn(64, 23)
    limits = ({"temperature": 0}, {"temperature": 1e-45}, {"temperature": 1e-45, "top_k": 5, "top_p": 0.5})
    for options in (*limits, {"top_k": 1}, {"top_p": 1e-9}):
        assert sample(logits, **options).equal(logits.argmax(-1))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"tokens": torch.tensor([[1, 50]])}, r"49.* 1\.\.50"),
        ({"tokens": torch.zeros(1, 0, dtype=torch.long)}, r"\(1, 0\)"),
        ({"stop_token": 50}, "stop_token .*49.* 50"),
    ],
    ids=str,
)
def test_impossible_options_are_refused(options, message):
    arguments = {"tokens": torch.tensor([[1, 2]]), "max_new_tokens": 3} | options
    with pytest.raises(ValueError, match=message):
        next(stream(random_gpt(MODERN), **arguments))
