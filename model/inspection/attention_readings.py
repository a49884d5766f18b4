"""The ways to read what an attention computes as the formula: what are its queries, keys and values?

Nobody says which matrix makes what, nor in which order its columns hold queries, keys, values and heads. There are few
possibilities, so all are tried.

Shapes: T length, D width of the tokens, N columns, H heads, K head width, E width of the output, A possibilities.
There are two texts.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

from model.attention import split_heads
from model.inspection.attention_calls import Call
from model.inspection.attention_mistakes import formula

# Of the largest value, what may be rounding: in float32; and if the output is float16 or bfloat16, whose scores are
# rounded too.
ROUNDING = 1e-3
HALF_ROUNDING = 0.1
# Orders of the axes of columns: part (queries, keys or values), head, width of a head.
ONE_MATRIX = ["".join(order) for order in permutations("phk")]
SEVERAL = ["phk", "pkh", "hpk"]


@dataclass
class Reading:
    """What a call computes, as the formula reads it."""

    call: Call
    qkv: list[Tensor]  # (A, 2, H, T, K) each
    output_matrix: Tensor  # (H * K, E)

    @property
    def num_heads(self) -> int:
        return self.qkv[0].shape[-3]

    @torch.no_grad()
    def is_given_by(self, change: dict[str, str]) -> bool:
        """Does the formula, with a change, give the same output?"""
        q, k, v = self.qkv
        output = self.call.output
        limit = ROUNDING if output.dtype == torch.float32 else HALF_ROUNDING
        x, *_ = self.call.inputs.values()
        largest = output.nan_to_num().abs().amax(-1, keepdim=True)
        for mask in self.call.meanings:
            with suppress(RuntimeError):  # a change that does not fit these shapes
                given = formula(q, k, v, mask, self.output_matrix, x, change)
                difference = ((given - output).abs() / largest).flatten(1)
                is_nan = difference.isnan()  # of queries that may see nothing
                is_near = difference < limit
                is_equal = (is_near | is_nan).all(1)
                is_known = is_near.any(1)
                if (is_equal & is_known).any():
                    return True
        return False


def readings(
    call: Call,
    matrices: list[Tensor],
) -> Iterator[Reading]:
    """Yields the ways to read a call of tokens; or, without matrices, of queries, keys and values.

    A square matrix has to be symmetric, so that nobody has to know whether its rows or its columns are multiplied.
    """
    inputs = [*call.inputs.values()]
    D = inputs[0].shape[-1]
    E = call.output.shape[-1]
    identity = torch.eye(E)
    if len(inputs) == 3 and not matrices:
        most = D if inputs[0].ndim == 3 else 2  # heads that are cut already are not cut again
        for H in range(1, most):
            if D % H == 0:
                heads = [split_heads(x, H).reshape(1, 2, -1, x.shape[-2], D // H) for x in inputs]
                yield Reading(call, heads, identity)
    sources = (inputs[0], inputs[:2][-1], inputs[-1])  # of queries, keys and values
    for makers, last in (
        (matrices[:-1], matrices[-1:]),
        (matrices[1:], matrices[:1]),  # the matrix of the output was made first
        (matrices, [identity]),
    ):
        do_fit = all(D in maker.shape for maker in makers)
        if makers and do_fit and E in last[0].shape:
            columns = torch.cat([_taking(D, maker) for maker in makers], -1)
            rows = _taking(E, last[0]).mT
            orders = ONE_MATRIX if len(makers) == 1 else SEVERAL
            cuts = [_cuts(x @ columns, len(rows), orders) for x in sources]
            for (q, _, _), (_, k, _), (_, _, v) in zip(*cuts, strict=True):
                yield Reading(call, [part.transpose(-3, -2) for part in (q, k, v)], rows)


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
    orders: Sequence[str],
) -> Iterator[list[Tensor]]:
    """Cuts columns (2, T, N) into queries, keys and values, (A, 2, T, H, K) each, with each number of heads.

    width: of the values that the output's matrix reads: of all heads, or of one head if they are added up.
    orders: of the axes that the columns are cut into.
    """
    N = columns.shape[-1]
    other_width, odd = divmod(N - width, 2)
    for K in range(2, width + 1):
        H, rest = divmod(N, 3 * K)
        if not rest and width in (K, H * K):  # as many heads of each, in any order
            sizes = {"p": 3, "h": H, "k": K}
            found: list[tuple[Tensor, ...]] = []
            for letters in orders:
                shape = [sizes[axis] for axis in letters]
                parts = torch.einsum(f"bt{letters}->pbthk", columns.unflatten(-1, shape))
                found += permutations(parts)
            yield [torch.stack(each) for each in zip(*found, strict=True)]
        H, rest = divmod(width, K)
        if odd or rest or other_width <= 0 or other_width == width:
            continue
        if other_width < width and other_width % K == 0:  # fewer heads of keys and values than of queries
            parts = columns.split([width, other_width, other_width], -1)
            yield [part.unflatten(-1, (-1, K))[None] for part in parts]
        if other_width % H == 0:  # values of another width than queries and keys
            q, k, v = columns.split([other_width, other_width, width], -1)
            yield [torch.stack(pair).unflatten(-1, (H, -1)) for pair in ((q, k), (k, q), (v, v))]
