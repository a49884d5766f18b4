"""Assigns numbers of a user's attention to the formula's names: what are its queries, keys and values?

Nobody says which matrix makes what, nor in which order its columns hold queries, keys, values and heads. There are few
possibilities, so all are tried.

Shapes: B texts, T length, D width of the tokens, N columns, H heads of queries, G heads of keys and values, K width of
a head of queries and keys, V of values, E width of the output, A possibilities.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import permutations
from typing import NamedTuple

import torch
from torch import Tensor

from model.attention import split_heads
from model.inspection.attention_calls import Attempt
from model.inspection.attention_mistakes import formula

# Orders of the axes of columns: p queries, keys or values; h heads; k width of a head.
ONE_MATRIX = ["phk", "pkh", "hpk", "hkp", "kph"]
SEVERAL = ONE_MATRIX[:3]


class Assignment(NamedTuple):
    """What the formula is given: q (A, B, H, T, K), k (A, B, G, T, K), v (A, B, G, T, V), output_matrix (H * V, E)."""

    attempt: Attempt
    q: Tensor
    k: Tensor
    v: Tensor
    output_matrix: Tensor

    @property
    def num_heads(self) -> int:
        return self.q.shape[-3]

    @torch.inference_mode()
    def explains(self, change: dict[str, str]) -> bool:
        """Does the formula, with a change, give the output?"""
        output = self.attempt.output
        x, *_ = self.attempt.inputs.values()
        for mask in self.attempt.meanings:
            with suppress(RuntimeError):  # a change that does not fit these shapes, or an output of booleans
                given = formula(self.q, self.k, self.v, mask, self.output_matrix, x, change)
                is_near = ((given - output).abs() <= self.attempt.rounding).flatten(1)
                is_open = given.isnan().flatten(1)  # a query that may see nothing
                if ((is_near | is_open).all(1) & is_near.any(1)).any():
                    return True
        return False


def assignments(
    attempt: Attempt,
    matrices: Sequence[Tensor],
) -> Iterator[Assignment]:
    """Yields the assignments for a call with tokens; or, without matrices, with queries, keys and values.

    A square matrix has to be symmetric, so that nobody has to know whether its rows or its columns are multiplied.
    """
    inputs = [*attempt.inputs.values()]
    D = inputs[0].shape[-1]
    E = attempt.output.shape[-1]
    identity = torch.eye(E)
    if len(inputs) == 3 and not matrices:
        for H in _divisors(D):
            if attempt.layout.num_heads in (1, H):
                q, k, v = (split_heads(x, x.shape[-1] * H // D)[None] for x in inputs)
                yield Assignment(attempt, q, k, v, identity)
    sources = (inputs[0], inputs[:2][-1], inputs[-1])  # of queries, keys and values
    # The matrix of the output was made last, or first, or there is none.
    for makers, last in ((matrices[:-1], matrices[-1:]), (matrices[1:], matrices[:1]), (matrices, [identity])):
        if makers and E in last[0].shape and all(D in maker.shape for maker in makers):
            columns = torch.cat([_taking(D, maker) for maker in makers], -1)
            output_matrix = _taking(E, last[0]).mT
            orders = ONE_MATRIX if len(makers) == 1 else SEVERAL
            for found in _cuts(torch.stack(sources) @ columns, len(output_matrix), orders):
                q, k, v = (torch.stack(each) for each in zip(*found, strict=True))
                yield Assignment(attempt, q[:, 0], k[:, 1], v[:, 2], output_matrix)


def _taking(
    width: int,
    matrix: Tensor,
) -> Tensor:
    """Returns a matrix, its transpose or those of each head as one matrix (width, N)."""
    axis = next(axis for axis in (-2, -1, 0) if matrix.shape[axis] == width)
    return matrix.movedim(axis, 0).flatten(1)


def _cuts(
    columns: Tensor,
    width: int,
    orders: list[str],
) -> Iterator[list[tuple[Tensor, ...]]]:
    """Cuts columns (3, B, T, N) into q (3, B, H, T, K), k (3, B, G, T, K) and v (3, B, G, T, V). Yields, for each H, G,
    K and V, the possibilities.

    width: of the values that the output's matrix reads: H * V, or V if the heads are added up.
    """
    N = columns.shape[-1]
    most = min(64, max(16, width // 2))  # many heads would take most of the time
    concatenated = {H: width // H for H in _divisors(width) if most >= H}
    added_up = {N // (3 * width): width}
    for H, V in (concatenated | added_up).items():
        found: list[tuple[Tensor, ...]] = []
        if N == 3 * H * V:
            sizes = {"p": 3, "h": H, "k": V}
            for order in orders:
                cut = columns.unflatten(-1, [sizes[axis] for axis in order])
                found += permutations(torch.einsum(f"sbt{order}->psbhtk", cut))
            yield found
            continue
        for G in _divisors(H):
            K, rest = divmod(N - G * V, H + G)
            if not rest and K > 1 and (K == V or G == H):
                heads, widths = (H, G, G), (H * K, G * K, G * V)  # of queries, keys and values
                found = []
                for places in permutations(range(3)):
                    parts = columns.split([widths[place] for place in places], -1)
                    found.append(tuple(split_heads(parts[places.index(i)], heads[i]) for i in range(3)))
                yield found


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
