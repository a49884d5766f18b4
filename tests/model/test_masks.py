"""Each mask against its definition, written as a plain loop."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from model.masks import causal_mask, document_mask, padding_mask, sliding_window_mask

LENGTHS = st.integers(0, 9)


@given(LENGTHS, st.none() | LENGTHS, st.none() | st.integers(1, 9))
def test_a_query_sees_itself_and_the_keys_before_it_within_the_window(T, S, window):
    """The last query is aligned with the last key."""
    mask, S = sliding_window_mask(T, window, S), T if S is None else S
    assert mask.dtype == torch.bool and mask.shape == (T, S)
    for t, row in enumerate(mask.tolist()):
        position = t + S - T
        assert row == [position - (window or 99) < s <= position for s in range(S)]
    assert_close(causal_mask(T, S), sliding_window_mask(T, max(T, S, 1), S))


@given(st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=1, max_size=5))
def test_padding_may_be_given_for_each_sequence_or_each_query(valid_lens):
    mask = padding_mask(torch.tensor(valid_lens), 6)
    assert mask.shape == (len(valid_lens), 1, 3, 6)
    for (rows,), lengths in zip(mask, valid_lens, strict=True):
        assert rows.tolist() == [[True] * length + [False] * (6 - length) for length in lengths]
    of_sequences = [lengths[0] for lengths in valid_lens]  # a list is accepted
    assert_close(padding_mask(of_sequences, 6), mask[:, :, :1])


def test_documents_do_not_see_each_other():
    ids = [[7, 7, 2, 7], [0, 1, 1, 1]]
    mask = document_mask(torch.tensor(ids))
    assert mask.tolist() == [[[[one == other for other in row] for one in row]] for row in ids]
    assert_close(document_mask(ids), mask)


@pytest.mark.parametrize(
    "mask, arguments, message",
    [
        (sliding_window_mask, (4, 0), "0"),
        (padding_mask, (torch.tensor(2), 4), r"\(B,\).* \(B, T\)"),
        (padding_mask, (torch.ones(1, 1, 1, dtype=torch.long), 4), r"\(1, 1, 1\)"),
        (document_mask, (torch.tensor([0, 0, 1]),), r"\(B, T\).* \(3,\)"),
    ],
)
def test_arguments_that_make_no_mask_are_refused(mask, arguments, message):
    with pytest.raises(ValueError, match=message):
        mask(*arguments)
