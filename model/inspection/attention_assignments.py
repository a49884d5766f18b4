"""Assigns numbers of a user's attention to the formula's names: what are its queries, keys and values?

Nobody says which matrix makes what, nor in which order its columns hold queries, keys, values and heads. There are few
possibilities, so all are tried.

Shapes: B texts, T length, D width of the tokens, N columns, H heads of queries, G heads of keys and values, K width of
a head of queries and keys, V of values, E width of the output, A possibilities.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import permutations

import torch
from torch import Tensor

from model.attention import split_heads
from model.inspection.attention_calls import Attempt
from model.inspection.attention_mistakes import Explanations, explanations

# Orders of the axes of columns: p queries, keys or values; h heads; k width of a head.
ORDERS = ["phk", "pkh", "hpk", "hkp", "kph"]
Matrices = Sequence[tuple[Tensor, Tensor]]  # each with its bias, or one zero
MOST_HEADS = 64  # more would take most of the time


def assignments(
    attempt: Attempt,
    matrices: Matrices,
) -> Iterator[tuple[int, int, Explanations]]:
    """Yields the assignments for a call with tokens; or, without matrices, with queries, keys and values: H, K, and
    what explains the output, for each H, G, K, V and mask.
    """
    num_heads = attempt.tokens[0].shape[-1] // attempt.width  # that are cut already, or 1
    places = [*permutations(range(3))] if matrices else [(0, 1, 2)]
    for columns, orders, output_matrix, output_bias in _columns(attempt, matrices):
        N = columns[0].shape[-1]
        width = len(output_matrix)
        concatenated = {H: width // H for H in range(1, MOST_HEADS + 1) if width % H == 0}
        added_up = {N // (3 * width): width}
        for H, V in (concatenated | added_up).items():
            for G in range(1, H + 1) if num_heads in (1, H) else []:
                K, rest = divmod(N - G * V, H + G)
                if rest or K < 1 or H % G or (G < H and K != V):
                    continue
                heads, widths = (H, G, G), (H * K, G * K, G * V)  # of queries, keys and values
                found = []
                for order in orders if G * K == H * V else orders[:1]:
                    ordered = columns
                    if order != "phk":
                        axes = [{"p": 3, "h": H, "k": K}[axis] for axis in order]
                        ordered = [torch.einsum(f"bt{order}->btphk", x.unflatten(-1, axes)).flatten(2) for x in columns]
                    for place in places:
                        parts = [x.split([widths[i] for i in place], -1)[place.index(i)] for i, x in enumerate(ordered)]
                        found.append([split_heads(part, H) for part, H in zip(parts, heads, strict=True)])
                q, k, v = (torch.stack(each) for each in zip(*found, strict=True))
                for mask in attempt.meanings:
                    yield H, K, explanations(attempt, q, k, v, mask, output_matrix, output_bias)


def _columns(
    attempt: Attempt,
    matrices: Matrices,
) -> Iterator[tuple[list[Tensor], list[str], Tensor, Tensor]]:
    """Yields columns (B, T, N), three of them: made of the tokens of queries, keys and values; the orders that they
    may have; the matrix that makes the output of the values, (H * V, E), or (V, E) if the heads are added up; and its
    bias.

    A square matrix has to be symmetric, so that nobody has to know whether its rows or its columns are multiplied.
    """
    tokens = attempt.tokens
    sources = [tokens[0], tokens[:2][-1], tokens[-1]]  # of queries, keys and values
    D = tokens[0].shape[-1]
    E = len(attempt.identity)
    if not matrices:
        widths = [x.shape[-1] for x in sources]
        rows = torch.eye(sum(widths)).split(widths)
        columns = [x @ matrix for x, matrix in zip(sources, rows, strict=True)]
        yield columns, ORDERS[:1], attempt.identity, torch.zeros(1)
        return
    nothing = torch.eye(E), torch.zeros(1)
    # The matrix of the output was made last, or first, or there is none.
    for makers, (last, bias) in ((matrices[:-1], matrices[-1]), (matrices[1:], matrices[0]), (matrices, nothing)):
        if makers and E in last.shape and all(D in maker.shape for maker, _ in makers):
            with suppress(RuntimeError):  # the matrix of another place: its bias does not fit
                added = torch.cat([each.expand(maker.numel() // D) for maker, each in makers])
                matrix = torch.cat([_taking(D, maker, (-1, -2, 0)) for maker, _ in makers], -1)
                yield (
                    [x @ matrix + added for x in sources],
                    ORDERS[: {1: 5, 3: 2}.get(len(makers), 3)],
                    _taking(E, last, (-2, -1, 0)).mT @ attempt.identity,
                    bias.expand(E) @ attempt.identity,
                )


def _taking(
    width: int,
    matrix: Tensor,
    axes: Sequence[int],
) -> Tensor:
    """Returns a matrix, its transpose or those of each head as one matrix (width, N): the first of the axes that is as
    wide comes first."""
    axis = next(axis for axis in axes if matrix.shape[axis] == width)
    return matrix.movedim(axis, 0).flatten(1)
