"""A linear layer that can also multiply a few vectors as fast as its weights can be read from memory.

Shapes: I features in, O features out, M vectors, N slices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

FEW = 4  # vectors; eight take as long either way, and sixteen longer
SLICES = 8


class Linear(nn.Linear):
    """nn.Linear, whose products with a few vectors are made slice by slice of its weights within `sliced`."""

    slices: tuple[Tensor, Tensor | None] | None = None  # weight (N, O/N, I) and bias (N, O/N, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) -> (..., O)"""
        if self.slices is None or x.numel() > FEW * self.in_features:
            return super().forward(x)
        weight, bias = self.slices
        vectors = x.reshape(-1, self.in_features).t().expand(len(weight), -1, -1)  # (N, I, M)
        product = torch.bmm(weight, vectors) if bias is None else torch.baddbmm(bias, weight, vectors)
        return product.permute(2, 0, 1).reshape(*x.shape[:-1], self.out_features)


@contextmanager
def sliced(model: nn.Module) -> Iterator[None]:
    """Within, the model's layers multiply up to FEW vectors at two to four times the rate; for writing text.

    On processors in float32 PyTorch's product of a matrix and a few vectors reads the matrix at a third of the rate
    that memory can give. Its product of a batch of matrices, here slices of that matrix, reads it at nearly all of it.
    Elsewhere nothing changes. The weights must stay where they are meanwhile.
    """
    layers = [
        layer
        for layer in model.modules()
        if isinstance(layer, Linear) and layer.weight.is_cpu and layer.weight.dtype == torch.float32
    ]
    for layer in layers:
        number = math.gcd(SLICES, layer.out_features)
        weight = layer.weight.view(number, -1, layer.in_features)
        layer.slices = weight, None if layer.bias is None else layer.bias.view(number, -1, 1)
    try:
        yield
    finally:
        for layer in layers:
            del layer.slices  # not None: torch.compile would see another layer than before, and compile again
