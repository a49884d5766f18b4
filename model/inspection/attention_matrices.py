"""What a module's matrices make of its tokens, and the ways to read it as queries, keys and values.

Nobody says which matrix makes what, nor in which order its columns hold queries, keys, values and heads. There are few
possibilities, so all are given.

Shapes: B batch, T length, E width of the output, N of columns, H heads, K head width, A possibilities.
"""

from collections.abc import Iterable, Iterator
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode  # PyTorch's manual names this place; it has no public one

# Queries, keys and values (A, B, H, T, K), and the merged heads that they have to give, (2, 1, B, T, H * K): with the
# numbers of a head side by side, and with those of all heads side by side.
Assignment = tuple[Tensor, Tensor, Tensor, Tensor]


class Watch(TorchDispatchMode):
    """Records what is multiplied by a module's parameters, and what comes out, (rows, width) each."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.products: list[tuple[Tensor, Tensor]] = []
        self.made_of_parameters = {p.untyped_storage().data_ptr(): p for p in module.parameters()}

    def __torch_dispatch__(self, function, types, inputs=(), options=None) -> Any:
        output = function(*inputs, **(options or {}))
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        known = [x.untyped_storage().data_ptr() in self.made_of_parameters for x in tensors]
        if function.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm") and known[-2:] == [False, True]:
            self.products.append((tensors[-2].flatten(0, -2), output.flatten(0, -2)))
        elif known and all(known):  # a transpose, for instance
            for made in output if isinstance(output, (tuple, list)) else [output]:
                self.made_of_parameters[made.untyped_storage().data_ptr()] = made
        return output


def assignments(
    sources: list[Tensor],
    products: list[tuple[Tensor, Tensor]],
    output: Tensor,
) -> Iterator[Assignment]:
    """Yields the ways to read queries, keys and values from the products, with and without an output matrix.

    Args:
        sources: the tokens of queries, keys and values, (B, T, D) each.
        products: those that a `Watch` recorded.
        output: what the module returned, (B, T, E).
    """
    if not products:
        return
    *others, (heads, projected) = products
    for makers, merged in ((products, output), (others, _same_rows(output, projected, heads))):
        columns = [torch.cat([x[..., :0], *(_same_rows(x, *product) for product in makers)], -1) for x in sources]
        for H in range(1, 65):
            K, rest = divmod(merged.shape[-1], H)
            if not rest:
                heads_last = merged.unflatten(-1, (K, H)).mT.flatten(-2)
                for q, k, v in _cuts(torch.stack(columns), H, K):
                    yield q, k, v, torch.stack([merged, heads_last])[:, None]


def _same_rows(
    wanted: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """Returns for each vector of `wanted` (B, T, W) the rows of values (R, N) whose keys (R, W) it equals, or NaN."""
    if wanted.shape[-1] == keys.shape[-1]:
        is_same = torch.isclose(wanted.flatten(0, 1)[:, None], keys, equal_nan=True).all(-1)
        count = is_same.sum(1).min()  # many, if the tokens were repeated for each head
        if count:
            found = is_same.int().argsort(dim=1, descending=True, stable=True)[:, :count]
            return values[found].reshape(*wanted.shape[:-1], -1)
    return values.new_full((*wanted.shape[:-1], values.shape[-1]), torch.nan)


def _cuts(
    columns: Tensor,
    H: int,
    K: int,
) -> Iterator[Iterable[Tensor]]:
    """Cuts columns (3, B, T, N), made of three sources, into queries, keys and values (A, B, H, T, K) in each order."""
    N = columns.shape[-1]
    if N == 3 * H * K:
        sizes = {"p": 3, "h": H, "k": K}
        cuts = []
        for axes in permutations(sizes):
            parts = columns.unflatten(-1, [sizes[axis] for axis in axes])
            parts = torch.einsum(f"sbt{''.join(axes)}->psbhtk", parts)
            cuts += [parts[order, (0, 1, 2)] for order in permutations(range(3))]
        stacked = torch.stack(cuts, 1)
        yield stacked[:, stacked.isfinite().flatten(2).all(2).all(0)]
    H_kv, rest = divmod(N - H * K, 2 * K)
    if 0 < H_kv < H and not rest and H % H_kv == 0:
        parts = columns.split([H * K, H_kv * K, H_kv * K], -1)
        yield [part[source].unflatten(-1, (-1, K)).transpose(-3, -2)[None] for source, part in enumerate(parts)]
