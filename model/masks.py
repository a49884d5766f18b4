"""Boolean attention masks. True means *may attend*, as in PyTorch; masks combine with `&`.

Shapes: B batch, T query length, S key length.
"""

import torch
from torch import Tensor


def causal_mask(query_len: int, key_len: int | None = None, *, device: torch.device | str | None = None) -> Tensor:
    """(T, S): a query may attend to its own position and to those before it.

    Both sequences are aligned at their ends: the last query sees the last key. With T < S the first S - T keys are the
    past (a cache); with T > S the first T - S queries see nothing.

    Raises:
        TypeError, ValueError: for a length that is not an integer, or negative.
    """
    return _distance(query_len, key_len, device) >= 0


def sliding_window_mask(
    query_len: int, window: int | None, key_len: int | None = None, *, device: torch.device | str | None = None
) -> Tensor:
    """(T, S): causal, and only over the `window` nearest keys, the query's own included.

    A window of 1 is the token itself; one of S or more, or None, is `causal_mask`. Local attention as in Child et al.
    2019 (https://arxiv.org/abs/1904.10509) and Mistral 7B (https://arxiv.org/abs/2310.06825).

    Raises:
        TypeError, ValueError: as `causal_mask`; ValueError also for a window below 1.
    """
    if window is None:
        return causal_mask(query_len, key_len, device=device)
    if window < 1:
        raise ValueError(f"window must be at least 1 (the query's own position), not {window}")
    distance = _distance(query_len, key_len, device)
    return (distance >= 0) & (distance < window)


def padding_mask(valid_lens: Tensor, key_len: int) -> Tensor:
    """Hides padding: each query may attend only to the first `valid_lens` keys.

    Args:
        valid_lens: integers in 0..S, one for each sequence, (B,), or for each query, (B, T).
        key_len: S.

    Returns:
        (B, 1, 1, S) or (B, 1, T, S); the axis of length 1 is for the heads.

    Raises:
        TypeError: if the lengths are not integers.
        ValueError: for another number of axes, and for a length that is negative or beyond `key_len`.
    """
    valid_lens = torch.as_tensor(valid_lens)
    check_integers("valid_lens", valid_lens)
    valid_lens = valid_lens.long()
    if valid_lens.ndim not in (1, 2):
        raise ValueError(f"valid_lens must be (B,) or (B, T), not of shape {tuple(valid_lens.shape)}")
    # Reading the values waits for the device and cannot be traced, so they are not checked in compiled code.
    if not torch.compiler.is_compiling() and valid_lens.numel():
        shortest, longest = valid_lens.min().item(), valid_lens.max().item()
        if shortest < 0:
            raise ValueError(f"valid_lens must not be negative: the smallest is {shortest}, for {key_len} keys")
        if longest > key_len:
            raise ValueError(f"valid_lens must not exceed the number of keys: the largest is {longest}, for {key_len}")
    per_query = valid_lens[:, None, :, None] if valid_lens.ndim == 2 else valid_lens[:, None, None, None]
    return torch.arange(key_len, device=valid_lens.device) < per_query


def document_mask(document_ids: Tensor) -> Tensor:
    """(B, T) -> (B, 1, T, T): a token may attend to all tokens of its own document, before and after it.

    For documents packed into one sequence. Add causality with `&`.

    Raises:
        TypeError: if the ids are not integers.
        ValueError: if they are not (B, T).
    """
    document_ids = torch.as_tensor(document_ids)
    check_integers("document_ids", document_ids)
    if document_ids.ndim != 2:
        raise ValueError(f"document_ids must be (B, T), not of shape {tuple(document_ids.shape)}")
    return (document_ids[:, :, None] == document_ids[:, None, :]).unsqueeze(1)


def _distance(query_len: int, key_len: int | None, device: torch.device | str | None) -> Tensor:
    """(T, S): how many positions a key lies before its query; negative in the future."""
    key_len = query_len if key_len is None else key_len
    for name, length in (("query_len", query_len), ("key_len", key_len)):
        if isinstance(length, float):
            raise TypeError(f"{name} must be an integer, not {length}")
        if length < 0:
            raise ValueError(f"{name} must not be negative: it is {length}")
    queries = torch.arange(key_len - query_len, key_len, device=device)
    return queries[:, None] - torch.arange(key_len, device=device)


def check_integers(name: str, ids: Tensor) -> None:
    """Refuses a tensor of anything but integers, with a TypeError."""
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise TypeError(f"{name} must hold integers, not {ids.dtype}")


def check_mask(mask: Tensor, shape: tuple[int, ...]) -> None:
    """Refuses a mask that cannot say which of `shape` (..., T, S) scores count.

    Raises:
        TypeError: if it is not boolean.
        ValueError: if it does not broadcast to `shape`.
    """
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean (True = may attend), not {mask.dtype}")
    padded = (1,) * (len(shape) - mask.ndim) + tuple(mask.shape)
    if len(padded) > len(shape) or any(m not in (1, n) for m, n in zip(padded, shape, strict=True)):
        raise ValueError(f"mask has shape {tuple(mask.shape)}, which does not broadcast to (..., T, S) = {shape}")


def fill_empty_rows(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Unmasks the rows of queries that may attend to nothing, and returns which they are, (..., T, 1).

    A softmax over nothing is 0 / 0, and kernels differ in what they return. Computed on something and then zeroed,
    values and gradients are 0 and never NaN.
    """
    empty = ~mask.any(dim=-1, keepdim=True)
    return mask | empty, empty
