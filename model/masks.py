"""Boolean attention masks. True means *may attend*, as in PyTorch; masks combine with `&`.

Shapes: B batch, T query length, S key length.
"""

import torch
from torch import Tensor


def causal_mask(
    query_len: int,
    key_len: int | None = None,
    *,
    device: torch.device | str | None = None,
) -> Tensor:
    """(T, S): a query may attend to its own position and to earlier ones.

    Queries and keys are aligned at their ends: the last query sees the last key. With T < S the first S - T keys are
    the past (a cache); with T > S the first T - S queries see nothing.
    """
    return sliding_window_mask(query_len, None, key_len, device=device)


def sliding_window_mask(
    query_len: int,
    window: int | None,
    key_len: int | None = None,
    *,
    device: torch.device | str | None = None,
) -> Tensor:
    """(T, S): a query may attend to its own position and to the `window` - 1 positions just before it.

    With a window of 1 a token sees only itself. With None, or S or more, this is `causal_mask`. Local attention as in
    Child et al. 2019 (https://arxiv.org/abs/1904.10509) and Mistral 7B (https://arxiv.org/abs/2310.06825).

    Raises:
        ValueError: if the window is below 1.
    """
    key_len = query_len if key_len is None else key_len
    queries = torch.arange(key_len - query_len, key_len, device=device)
    # By how many positions a key comes before a query; negative if it comes after.
    distance = queries[:, None] - torch.arange(key_len, device=device)
    visible = distance >= 0
    if window is None:
        return visible
    if window < 1:
        raise ValueError(f"window must be at least 1 (the query's own position), not {window}")
    return visible & (distance < window)


def padding_mask(valid_lens: Tensor, key_len: int) -> Tensor:
    """Hides padding: each query may attend only to the first `valid_lens` keys.

    Args:
        valid_lens: integers in 0..S, one for each sequence (B,) or one for each query (B, T).
        key_len: S.

    Returns:
        (B, 1, 1, S) or (B, 1, T, S); axis 1 broadcasts over the heads.

    Raises:
        ValueError: if valid_lens is neither (B,) nor (B, T).
    """
    valid_lens = torch.as_tensor(valid_lens)
    if valid_lens.ndim not in (1, 2):
        raise ValueError(f"valid_lens must be (B,) or (B, T), not of shape {tuple(valid_lens.shape)}")
    if valid_lens.ndim == 1:
        valid_lens = valid_lens[:, None]  # one length for all queries
    keys = torch.arange(key_len, device=valid_lens.device)
    return keys < valid_lens[:, None, :, None]


def document_mask(document_ids: Tensor) -> Tensor:
    """(B, T) -> (B, 1, T, T): a token may attend to all tokens of its own document, before and after it.

    For sequences that several documents are packed into. Add causality with `&`.

    Raises:
        ValueError: if document_ids is not (B, T).
    """
    document_ids = torch.as_tensor(document_ids)
    if document_ids.ndim != 2:
        raise ValueError(f"document_ids must be (B, T), not of shape {tuple(document_ids.shape)}")
    same = document_ids[:, :, None] == document_ids[:, None, :]
    return same.unsqueeze(1)


def document_ids(tokens: Tensor, end_of_text: int | None) -> Tensor | None:
    """(..., T) -> (..., T): the number of each token's document, which end-of-text begins. None if `end_of_text` is."""
    return None if end_of_text is None else (tokens == end_of_text).cumsum(-1)


def check_mask(mask: Tensor, shape: tuple[int, ...]) -> None:
    """Checks a mask for scores of `shape` (..., T, S).

    Raises:
        TypeError: if it is not boolean.
        RuntimeError: if it does not broadcast to `shape`.
    """
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean (True = may attend), not {mask.dtype}")
    mask.expand(shape)  # raises the RuntimeError


def fill_empty_rows(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Lets queries that may attend to nothing attend to all keys. Also returns which queries those are, (..., T, 1).

    A softmax over nothing is 0 / 0, and kernels differ in what they return for it. The caller zeroes the values of
    these queries afterwards instead, so that values and gradients are 0 and never NaN.
    """
    empty = ~mask.any(dim=-1, keepdim=True)
    return mask | empty, empty
