"""The formula of attention, line by line, and the lines that people write instead: a table of its mistakes.

The lines are text: one place holds what is computed and what a learner is shown. `explanations` runs them.
Of lines that have the same cause and the same output, the last is shown.

Shapes: B batch, T query length, S key length, H heads, G key and value heads, K head width, E width of the output.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from model.inspection.attention_calls import Attempt

# What a line may use; `view` makes heads without a transpose.
TOOLS = vars(F) | vars(torch) | {"view": lambda x: x.transpose(-3, -2).reshape(x.shape)}
FORMULA = {
    "q, k, v": "q, k, v",
    "k, v": "k.repeat_interleave(H // G, -3), v.repeat_interleave(H // G, -3)",
    "scores": "q @ k.mT / K**0.5",
    "masked": "scores.masked_fill(~mask, -inf)",
    "weights": "masked.softmax(-1)",
    "values": "weights @ v",
    "merged": "values.transpose(-3, -2).flatten(-2)",
    "output": "merged @ output_matrix + output_bias",
}
MISTAKES = {
    "output": {
        FORMULA["output"]: "",  # the formula itself, which is tried first
        "merged @ identity": "the output matrix is not used",
        "merged @ output_matrix + output_bias + x @ identity": (
            "the input is added: a residual connection belongs outside"
        ),
    },
    "q, k, v": {
        "q, q, v": "queries and keys are made alike",
        "k, k, v": "queries and keys are made alike",
        "q, k, k": "keys and values are made alike",
        "q, k, q": "queries and values are made alike",
        "q, q, q": "queries, keys and values are made alike",
        "k, q, v": "queries and keys are exchanged",
        "q, v, k": "keys and values are exchanged",
        "view(q), view(k), view(v)": "heads are split by view, without a transpose",
        "view(q), k, v": "the heads of the queries are split by view, without a transpose",
        "q, view(k), v": "the heads of the keys are split by view, without a transpose",
        "q, k, view(v)": "the heads of the values are split by view, without a transpose",
        "q, k, x.unflatten(-1, (H, -1)).transpose(-3, -2).expand_as(v)": (
            "the tokens themselves are used as values: no matrix makes them"
        ),
        "q[..., :1, :, :].expand_as(q), k[..., :1, :, :].expand_as(k), v[..., :1, :, :].expand_as(v)": (
            "one head is used for all"
        ),
        "q[..., :1, :, :].expand_as(q), k, v": "the queries of one head are used for all",
        "q, k[..., :1, :, :].expand_as(k), v": "the keys of one head are used for all",
        "q, k, v[..., :1, :, :].expand_as(v)": "the values of one head are used for all",
    },
    "k, v": {
        "cat([k] * (H // G), -3), cat([v] * (H // G), -3)": "the heads of keys and values are repeated as a whole",
        "cat([k] * (H // G), -3), v.repeat_interleave(H // G, -3)": (
            "the heads of the keys are repeated otherwise than the values'"
        ),
        "k.repeat_interleave(H // G, -3), cat([v] * (H // G), -3)": (
            "the heads of the values are repeated otherwise than the keys'"
        ),
    },
    "scores": {
        "q @ k.mT": "the scores are not divided by the root of the head's width",
        "q @ k.mT / K": "the scores are divided by the head's width, not by its root; or twice by its root",
        "q @ k.mT / K**1 / 2": "`K**1 / 2` is no root: write `K**0.5`",
        "q @ k.mT / (K**1 / 2)": "`K**1 / 2` is no root: write `K**0.5`",
        "q @ k.mT / K**0.25": "the scores are divided by the fourth root of the head's width, not by its root",
        "q @ k.mT * K**0.5": "the scores are multiplied by the root of the head's width, not divided",
        "q @ k.mT * K": "the scores are multiplied by the head's width, not divided by its root",
        "q @ k.mT / x.shape[-1]**0.5": (
            "the scores are divided by the root of the width of all heads or of the tokens, not of one head"
        ),
        "q @ k.mT / (H * K)**0.5": (
            "the scores are divided by the root of the width of all heads or of the tokens, not of one head"
        ),
        "q @ k.mT / (H * K)": "the scores are divided by the width of all heads, not by the root of one head's",
        "q @ k.mT / S**0.5": "the scores are divided by the root of the number of keys, not of the head's width",
        "q @ k.reshape(*k.shape[:-2], K, S) / K**0.5": "the keys are reshaped, not transposed",
        "normalize(q, dim=-1) @ normalize(k, dim=-1).mT": "queries and keys are normalised: the scores are cosines",
        "normalize(q, dim=-1) @ normalize(k, dim=-1).mT / K**0.5": (
            "queries and keys are normalised: the scores are cosines"
        ),
        "q @ k.mT / H**0.5": "the scores are divided by the root of the number of heads, not of the head's width",
        "q @ k.mT / (K**0.5 // 1)": "the root of the head's width is rounded down",
        "(q @ k.mT).relu() / K**0.5": "negative scores are 0: there is no relu before the softmax",
        **dict.fromkeys(
            (f"q @ k.mT / {2**n}**0.5" for n in range(3, 10)),
            "the scores are divided by a constant, not by the root of the head's width",
        ),
    },
    "masked": {
        "scores": "the mask changes nothing: it is not used",
        "scores.masked_fill(mask, -inf)": "the mask is inverted: True must mean may attend",
        "scores.masked_fill(~(mask | mask.roll(1, -1)), -inf)": "the mask is off by one: a query sees the next one",
        "scores.masked_fill(~pad(mask[..., 1:], (0, 1)), -inf)": "the mask is off by one: it hides one token too many",
        "scores.masked_fill(~(mask & ones(T, S).tril(-1).bool()), -inf)": (
            "the mask is off by one: it hides one token too many"
        ),
        "scores.masked_fill(~mask.mT, -inf)": "the mask is transposed: its rows are queries, its columns keys",
        "scores.masked_fill(~ones(T, S).tril().bool(), -inf)": (
            "the mask is not used, but a causal one that is made inside: with fewer queries than keys, as with a "
            "cache, that must be tril(S - T)"
        ),
        "scores.masked_fill(~mask.repeat(H, 1, 1, 1).reshape(-1, H, *mask.shape[-2:]), -inf)": (
            "the masks or lengths of the texts are repeated as a whole: use repeat_interleave"
        ),
        "scores.masked_fill(~mask[:1], -inf)": "the mask or length of the first text is used for all",
        "scores.masked_fill(~mask & (ones(H, 1, 1).cumsum(0) == 1), -inf)": "only the first head is masked",
        "scores.masked_fill(~mask, 0)": "hidden scores are 0, and e^0 is 1: they must be -inf",
        "scores.masked_fill(~mask, 1e9)": "hidden scores are large and positive: they must be -inf",
        "scores.masked_fill(~mask, -1)": "hidden scores are -1: they must be -inf",
        "scores.masked_fill(~mask, -10)": "hidden scores are -10: they must be -inf",
        "scores + 1.0 * mask": "the mask adds 1 to the scores that are seen: hidden ones must be -inf",
        "scores - 5.0 * ~mask": "the mask takes only 5 off the hidden scores: they must be -inf",
        "scores - 10.0 * ~mask": "the mask takes only 10 off the hidden scores: they must be -inf",
    },
    "weights": {
        "scores.softmax(-1) * mask": "the mask is applied after the softmax, or to the values",
        "masked.softmax(-2)": "the softmax runs over queries, not keys",
        "masked.softmax(-3)": "the softmax runs over heads, not keys",
        "masked.softmax(-4)": "the softmax runs over texts, not keys",
        "masked.softmax(-1).mean(-3, keepdim=True)": "the weights are averaged over the heads: each needs its own",
        "masked.softmax(-1).softmax(-1)": "the softmax is applied twice",
        "masked.softmax(-1) / K**0.5": "the weights are divided once more after the softmax",
        "masked.softmax(-1) / S": "the weighted values are averaged, not added up",
        "masked.softmax(-1) * K**0.5": "the weights are multiplied after the softmax",
        "(masked * K**0.5).softmax(-1) / K**0.5": "the weights are divided, not the scores before the softmax",
        "masked.exp() / masked.exp().sum(-1, keepdim=True).mT": (
            "the exponentials of a query are divided by the sums of other queries: the sum needs keepdim=True"
        ),
        "(1e6 * masked).softmax(-1)": "the largest score takes all: there is no softmax",
        "masked.sigmoid()": "a sigmoid replaces the softmax",
        "masked.exp()": "the exponentials are not divided by their sum",
        "(masked - masked.amax(-1, keepdim=True)).exp()": "the exponentials are not divided by their sum",
        "masked.flatten(-2).softmax(-1).view(masked.shape)": "the softmax runs over all queries and keys together",
        "(masked - masked.amax(-1, keepdim=True)).exp() / (masked - masked.amax(-1, keepdim=True)).exp().sum(-2, "
        "keepdim=True)": "the exponentials are divided by their sum over queries, not keys",
        "(masked - masked.amax(-1, keepdim=True)).exp() / (masked - masked.amax(-1, keepdim=True)).exp().sum((-2, -1), "
        "keepdim=True)": "the exponentials are divided by their sum over all queries and keys",
        "masked.relu()": "a relu replaces the softmax",
        "scores * mask": "there is no softmax",
        "scores.masked_fill(~mask, -1e9)": "there is no softmax",
        "scores * mask / (scores * mask).sum(-1, keepdim=True)": "the scores are divided by their sum: no softmax",
    },
    "values": {
        "weights.mT @ v": "the weights are transposed",
        "weights[..., -1:] * v[..., -1:, :]": "only the value of the last key counts: add up all",
        "v": "the weights are not used: each query gets its own value",
        "(q * k / K**0.5).softmax(-1) * v": (
            "q * k multiplies number by number: `q @ k.mT` compares each query with each key"
        ),
    },
    "merged": {
        "values.flatten(-3).unflatten(-1, (T, -1))": "heads are merged without transposing back",
        "values.movedim(-3, -1).flatten(-2)": "the numbers of all heads are merged in turns",
        "values.sum(-3)": "the heads are added up: they must be concatenated",
        "values.mean(-3)": "the heads are averaged: they must be concatenated",
        "values[..., -1, :, :]": "only the last head is used: all must be concatenated",
        "values[..., 0, :, :]": "only the first head is used: all must be concatenated",
        "values.flip(-3).transpose(-3, -2).flatten(-2)": "heads are merged in the reverse order",
        "((q.transpose(-3, -2) @ k.transpose(-3, -2).mT / K**0.5).softmax(-1) @ v.transpose(-3, -2)).flatten(-2)": (
            "each token attends over its own heads: (B, T, H, K) is not transposed to (B, H, T, K)"
        ),
        "((view(q) @ view(k).mT / K**0.5).masked_fill(~mask, -inf).softmax(-1) @ view(v)).flatten(-3)"
        ".unflatten(-1, (T, -1))": "heads are split and merged by view, without a transpose",
    },
}
_compiled = cache(compile)
Explanations = Iterator[tuple[str, str] | None]


@torch.inference_mode()
def explanations(
    attempt: Attempt,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    output_matrix: Tensor,
    output_bias: Tensor,
) -> Explanations:
    """Yields for each line of `MISTAKES`, the formula itself first, None if it does not give the output; if it does,
    the cause and the line.

    Args:
        q: (A, B, H, T, K); k and v: (A, B, G, S, K); any of the A may be right.
        mask: boolean (B or 1, 1, T or 1, S), True means may attend.
        output_matrix: (H * K, E), and output_bias, (E,) or (1,).
    """
    x = attempt.tokens[0]
    identity = attempt.identity
    H, T, K = q.shape[-3:]
    G, S = k.shape[-3:-1]
    given = {**locals()}
    for name, changes in MISTAKES.items():
        for change, cause in changes.items():
            names = {**given}
            is_found = False
            with suppress(RuntimeError):  # a change that does not fit these shapes
                lines = FORMULA | {name: change}
                exec(_compiled("\n".join(map(" = ".join, lines.items())), "formula", "exec"), TOOLS, names)
                difference = ((names["output"] - attempt.output).abs() - attempt.rounding).flatten(1)
                # NaN is a query that may see nothing.
                is_found = bool((~(difference > 0).any(1) & (difference <= 0).any(1)).any())
            line = f"`{name} = {change}` for `{name} = {FORMULA[name]}`".replace(" @ identity", "")
            yield (cause, line) if is_found else None
