"""Generation: one token at a time from the model's own predictions, with its keys and values cached.

Shapes: B batch, T prompt length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from model.cache import KVCache
from model.checks import check_range
from model.gpt import GPT, in_eval_mode
from model.kernels import RecordedStep, Recorder, fast_decoding


def generate(model: GPT, tokens: Tensor, max_new_tokens: int, **options: Any) -> Tensor:
    """Continues each prompt of a batch: (B, T) -> (B, T + new tokens), the prompts included. Options as in `stream`."""
    new_tokens = list(stream(model, tokens, max_new_tokens, **options))
    return torch.cat((tokens, torch.stack(new_tokens, dim=1)), dim=1)


def stream(
    model: GPT,
    tokens: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
    stop_token: int | None = None,
    record: Recorder | None = None,
) -> Iterator[Tensor]:
    """Continues each prompt of a batch, and yields each new token (B,) of the batch as soon as it is drawn.

    Of a prompt longer than the model's context_length only the end is read. When the context is full, its last half is
    read again in one pass and generation continues from there: cached keys contain their positions, so the cache
    cannot be shifted. This costs less than one extra token per token, and the model always sees at least half of its
    context.

    Args:
        model: put in eval mode while it writes.
        tokens: prompts (B, T) of one length, T >= 1, on the model's device.
        max_new_tokens: the most tokens to write, at least 1.
        temperature: divides the logits; 0 always takes the likeliest token.
        top_k: draw from the k likeliest tokens only.
        top_p: draw from the likeliest tokens that together have this probability, in (0, 1] ("nucleus",
            Holtzman et al. 2019, https://arxiv.org/abs/1904.09751); applied after temperature and top_k.
        generator: source of randomness, on the model's device; PyTorch's default one if None.
        stop_token: ends a sequence, which is then padded with it; generation stops when all sequences have ended.
        record: wraps the step of one token so that it runs faster: `model.kernels.record_cuda_graph` on a GPU, or
            `torch.compile`.

    Raises:
        TypeError: if the tokens are not integers.
        ValueError: for a value outside its range.
    """
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise TypeError(f"tokens must be integers, not {tokens.dtype}")
    if tokens.ndim != 2 or not tokens.numel():
        raise ValueError(f"tokens must be (B, T), both at least 1, not of shape {tuple(tokens.shape)}")
    vocab_size = model.config.vocab_size
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ValueError(f"token ids must lie in 0..{vocab_size - 1}, not in {tokens.min()}..{tokens.max()}")
    if stop_token is not None and not 0 <= stop_token < vocab_size:
        raise ValueError(f"stop_token must lie in 0..{vocab_size - 1}, not {stop_token}")
    check_range("max_new_tokens", max_new_tokens, 1)
    check_range("temperature", temperature, 0)
    check_range("top_k", top_k, 1)
    check_range("top_p", top_p, 0, 1, low_open=True)
    draw = partial(sample, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
    # A separate function, because the body of a generator runs, and raises, only when it is iterated.
    return _decode(model, tokens, max_new_tokens, draw, stop_token, record)


@torch.inference_mode()
def _decode(
    model: GPT,
    tokens: Tensor,
    max_new_tokens: int,
    draw: Callable[[Tensor], Tensor],
    stop_token: int | None,
    record: Recorder | None,
) -> Iterator[Tensor]:
    config = model.config
    context_length = config.context_length
    weight = model.token_embedding.weight
    cache = KVCache(
        config.num_layers,
        len(tokens),
        config.num_kv_heads,
        # Not always the whole context: a big batch that writes little needs less memory.
        min(context_length, tokens.shape[1] + max_new_tokens),
        config.head_dim,
        device=weight.device,
        dtype=weight.dtype,
    )
    step = None if record is None else RecordedStep(model, cache, record)
    unread = tokens[:, -context_length:]
    finished = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    with in_eval_mode(model), fast_decoding(model, len(tokens)):
        for _ in range(max_new_tokens):
            if cache.length + unread.shape[1] > context_length:
                kept = max(1, context_length // 2)
                recent = cache.tokens[:, context_length - kept + 1 :]
                unread = torch.cat((recent, unread), dim=1)
                cache.reset()
            if step is not None and cache.length > 0 and unread.shape[1] == 1:
                logits = step(unread)
            else:
                logits = model.unembed(model.features(unread, cache=cache)[:, -1])
            token = draw(logits)
            if stop_token is not None:
                token = token.masked_fill(finished, stop_token)
                finished = finished | (token == stop_token)
            yield token
            # The check waits for the device, so it is made only if there is a stop_token.
            if stop_token is not None and finished.all():
                return
            unread = token[:, None]


def sample(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draws one token a row: logits (B, V) -> (B,), without waiting for the device. Options as in `generate`."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    logits = logits.float()
    # With a maximum of 0 no row can overflow, however low the temperature.
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / max(temperature, torch.finfo(logits.dtype).tiny)
    nucleus = top_p is not None and top_p < 1
    token_ids = None
    if top_k is not None or nucleus:
        vocab_size = logits.shape[-1]
        logits, token_ids = logits.topk(vocab_size if top_k is None else min(top_k, vocab_size))  # likeliest first
    if nucleus:
        probabilities = logits.softmax(dim=-1)
        likelier = probabilities.cumsum(dim=-1) - probabilities  # the probability of all likelier tokens
        logits = logits.masked_fill(likelier >= top_p, -torch.inf)
    # The largest of logit + Gumbel noise is a draw from the softmax (Gumbel 1954; Maddison et al. 2014,
    # https://arxiv.org/abs/1411.0030); the logarithm of an exponential variable is such noise, negated.
    noise = torch.empty_like(logits).exponential_(generator=generator).log()
    drawn = (logits - noise).argmax(dim=-1, keepdim=True)
    return (drawn if token_ids is None else token_ids.gather(-1, drawn)).squeeze(-1)
