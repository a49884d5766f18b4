"""Generation: draws one token at a time from the model's predictions, with keys and values cached.

Shapes: B batch, T prompt length, V vocabulary.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from model.cache import KVCache
from model.gpt import GPT, in_eval_mode
from model.kernels import products_by_slices
from model.mistakes import check_range


def generate(model: GPT, tokens: Tensor, max_new_tokens: int, **options: Any) -> Tensor:
    """Continues each prompt of a batch: (B, T) -> (B, T + new tokens), the prompts included. Options as in `stream`."""
    new_tokens = list(stream(model, tokens, max_new_tokens, **options))
    return torch.cat((tokens, torch.stack(new_tokens, dim=1)), dim=1)


@torch.inference_mode()
def stream(
    model: GPT,
    tokens: Tensor,
    max_new_tokens: int,
    *,
    stop_token: int | None = None,
    cache: KVCache | None = None,
    **options: Any,
) -> Iterator[Tensor]:
    """Continues each prompt of a batch, and yields each new token (B,) of the batch as soon as it is drawn.

    If a prompt is longer than the model's context_length, only its end is read. When the context is full, its last half
    is read again in one pass and generation continues from there: cached keys contain their positions, so the cache
    cannot be shifted. This costs less than one extra token for each new token, and the model always sees at least half
    of its context.

    Args:
        model: put into eval mode for each token; between tokens, others may use it.
        tokens: prompts (B, T), T >= 1, on the model's device.
        max_new_tokens: the largest number of tokens to generate, at least 1.
        stop_token: a sequence that draws this token ends, and is padded with it; generation stops when all have ended.
        cache: the cache of an earlier call, to continue its texts: `tokens` follow the cached ones. The last token that
            the earlier call yielded is not cached yet, so `tokens` must begin with it. The first call takes
            `new_cache(model, B, context_length)`.
        options: those of `sample`.

    Raises, when the first token is asked for:
        TypeError: if the tokens are not integers.
        ValueError: if a value is outside its range.
    """
    if tokens.ndim != 2 or not tokens.numel():
        raise ValueError(f"tokens must be (B, T), both at least 1, not of shape {tuple(tokens.shape)}")
    check_range("stop_token", stop_token, 0, model.config.vocab_size - 1, whole=True)
    check_range("max_new_tokens", max_new_tokens, 1, whole=True)
    unread = model.known_ids(tokens)
    B, T = unread.shape
    if cache is None:
        # Less than the whole context where possible: a large batch with few new tokens then needs less memory.
        cache = new_cache(model, B, min(model.config.context_length, T + max_new_tokens))
    finished = torch.zeros(B, dtype=torch.bool, device=unread.device)
    modules = [*model.modules()]  # listed once: to walk the model takes longer than all else that `with` does below
    for _ in range(max_new_tokens):
        with in_eval_mode(modules), products_by_slices(modules):
            if cache.length + unread.shape[1] > cache.max_len:
                # The context is full: read its last half again, or all unread tokens if those are more.
                num_kept = min(cache.max_len, max(cache.max_len // 2, unread.shape[1]))
                text = torch.cat((cache.tokens[:, : cache.length], unread), dim=1)
                unread = text[:, -num_kept:]
                cache.length = 0
            logits = model.unembed(model.features(unread, cache=cache)[:, -1])
            # Here, where no other thread reads the model: at its end, a reading sets torch's generator back.
            token = sample(logits, **options)
        if stop_token is not None:
            token = token.masked_fill(finished, stop_token)
            finished = token == stop_token  # rows that ended earlier stay finished: their token is stop_token
        yield token
        # `finished.all()` waits for the device, so it runs only if there is a stop_token.
        if stop_token is not None and finished.all():
            return
        unread = token[:, None]


def new_cache(model: GPT, batch_size: int, max_len: int) -> KVCache:
    """Returns an empty cache of this model for `batch_size` texts of up to `max_len` tokens."""
    config, weight = model.config, model.token_embedding.weight
    memory = weight.new_empty(
        config.num_layers,
        2,
        batch_size,
        config.num_kv_heads,
        max_len,
        config.head_dim,
    )
    return KVCache(memory)


def sample(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    generator: torch.Generator | list[torch.Generator] | None = None,
) -> Tensor:
    """Draws a token from each row of logits, (B, V) -> (B,), without waiting for the device.

    scripts/generate.py has an option for each parameter that its `generate` documents. A run's page draws by
    temperature and top_k only, in model/pages/browser/sampling.js: to offer another rule there, add it there too.

    Args:
        temperature: divides the logits; 0 always takes the likeliest token.
        top_k: draw from the k likeliest tokens only.
        top_p: draw from the fewest likeliest tokens that together have this probability, in (0, 1] ("nucleus",
            Holtzman et al. 2019, https://arxiv.org/abs/1904.09751); applied after temperature and top_k.
        min_p: draw only from tokens whose probability is at least min_p times the largest one, in [0, 1] (Nguyen et al.
            2024, https://arxiv.org/abs/2407.01082); applied after temperature, top_k and top_p.
        generator: source of randomness, on the model's device; PyTorch's default generator if None. With a list, which
            has one for each row, no row depends on the others.

    Raises:
        ValueError: if a value is outside its range.
    """
    check_range("temperature", temperature, 0)
    check_range("top_k", top_k, 1, whole=True)
    check_range("top_p", top_p, 0, 1, low_open=True)
    check_range("min_p", min_p, 0, 1)
    if temperature == 0:
        return logits.argmax(dim=-1)
    logits, vocab_size = logits.float(), logits.shape[-1]
    # With the maximum shifted to 0, no division by a low temperature overflows to infinity.
    logits = logits - logits.amax(dim=-1, keepdim=True)
    logits = logits / max(temperature, torch.finfo(logits.dtype).tiny)
    nucleus = top_p is not None and top_p < 1
    token_ids = None
    if top_k is not None or nucleus:
        logits, token_ids = logits.topk(vocab_size if top_k is None else min(top_k, vocab_size))  # likeliest first
    if nucleus:
        probabilities = logits.softmax(dim=-1)
        likelier = probabilities.cumsum(dim=-1) - probabilities  # the total probability of the likelier tokens
        logits = logits.masked_fill(likelier >= top_p, -torch.inf)
    if min_p:
        logits = logits.masked_fill(logits < math.log(min_p), -torch.inf)  # the likeliest token's logit is 0
    # The largest of logit + Gumbel noise is a draw from the softmax (Gumbel 1954; Maddison et al. 2014,
    # https://arxiv.org/abs/1411.0030); the logarithm of an exponential variable is such noise, negated.
    # The noise is drawn for all tokens, in the order of their ids: the result must not depend on the order in which
    # `topk` sorts almost equal logits. `new_empty`, not `empty_like`: some matrix products return transposed memory,
    # which `empty_like` would copy, and then each logit would get other noise.
    noise = logits.new_empty((len(logits), vocab_size))
    generators = generator if isinstance(generator, list) else [generator]
    for rows, source in zip(noise.chunk(len(generators)), generators, strict=True):
        rows.exponential_(generator=source)
    noise.log_()
    if token_ids is None:
        return (logits - noise).argmax(dim=-1)
    drawn = (logits - noise.gather(-1, token_ids)).argmax(dim=-1, keepdim=True)
    return token_ids.gather(-1, drawn).squeeze(-1)
