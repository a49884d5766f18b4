"""Each mask against the sentence that defines it, written as a plain loop."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.masks import causal_mask, document_mask, padding_mask, sliding_window_mask

LENGTHS = st.integers(1, 9)


@given(LENGTHS, LENGTHS)
def test_causal_the_last_query_sees_the_last_key(T, S):
    mask = causal_mask(T, S)
    assert mask.dtype == torch.bool and mask.shape == (T, S)
    for t in range(T):
        position = t + S - T
        assert mask[t].tolist() == [s <= position for s in range(S)]


def test_causal_of_one_length_is_square():
    torch.testing.assert_close(causal_mask(4), torch.ones(4, 4).tril().bool())


@given(LENGTHS, LENGTHS, LENGTHS)
def test_sliding_window_is_causal_and_counts_the_query_itself(T, S, window):
    mask = sliding_window_mask(T, window, S)
    for t in range(T):
        position = t + S - T
        assert mask[t].tolist() == [position - window < s <= position for s in range(S)]


def test_a_window_of_one_is_the_token_itself_and_a_wide_one_is_causal():
    torch.testing.assert_close(sliding_window_mask(5, 1), torch.eye(5).bool())
    torch.testing.assert_close(sliding_window_mask(5, 5), causal_mask(5))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_padding_per_sequence(valid_lens):
    mask = padding_mask(torch.tensor(valid_lens), 6)
    assert mask.shape == (len(valid_lens), 1, 1, 6)
    for row, length in zip(mask, valid_lens, strict=True):
        assert row.flatten().tolist() == [True] * length + [False] * (6 - length)


def test_padding_per_query():
    mask = padding_mask(torch.tensor([[1, 3, 0], [2, 2, 4]]), 4)
    assert mask.shape == (2, 1, 3, 4)
    assert mask[0, 0].tolist() == [[True, False, False, False], [True, True, True, False], [False] * 4]
    assert mask[1, 0].sum(-1).tolist() == [2, 2, 4]


def test_documents_do_not_see_each_other():
    mask = document_mask(torch.tensor([[7, 7, 2, 7], [0, 1, 1, 1]]))
    assert mask.shape == (2, 1, 4, 4)
    ids = [[7, 7, 2, 7], [0, 1, 1, 1]]
    for b in range(2):
        for t in range(4):
            assert mask[b, 0, t].tolist() == [ids[b][s] == ids[b][t] for s in range(4)]


def test_masks_combine_with_and():
    combined = causal_mask(3) & document_mask(torch.tensor([[0, 0, 1]])) & padding_mask(torch.tensor([2]), 3)
    assert combined.shape == (1, 1, 3, 3)
    assert combined[0, 0].tolist() == [[True, False, False], [True, True, False], [False, False, False]]


@pytest.mark.parametrize("window", [0, -3])
def test_a_window_must_be_positive(window):
    with pytest.raises(ValueError, match=rf"at least 1 .*not {window}"):
        sliding_window_mask(4, window)


def test_lengths_are_integers_from_0_on():
    assert causal_mask(0).shape == (0, 0)
    for mask in (causal_mask, lambda *lengths: sliding_window_mask(lengths[0], 2, *lengths[1:])):
        with pytest.raises(ValueError, match="query_len must not be negative: it is -1"):
            mask(-1)
        with pytest.raises(ValueError, match="key_len must not be negative: it is -2"):
            mask(3, -2)
        with pytest.raises(TypeError, match=r"query_len must be an integer, not 2\.5"):
            mask(2.5)


@pytest.mark.parametrize(
    ("valid_lens", "error", "message"),
    [
        (torch.tensor([2, -1]), ValueError, "smallest is -1, for 4 keys"),
        (torch.tensor([2, 5]), ValueError, "largest is 5, for 4"),
        (torch.tensor([2.0]), TypeError, "float32"),
        (torch.tensor([True]), TypeError, "bool"),
        (torch.tensor(2), ValueError, r"\(B,\) or \(B, T\)"),
        (torch.ones(1, 1, 1, dtype=torch.long), ValueError, r"\(1, 1, 1\)"),
    ],
)
def test_padding_refuses(valid_lens, error, message):
    with pytest.raises(error, match=message):
        padding_mask(valid_lens, 4)


def test_lists_will_do():
    torch.testing.assert_close(document_mask([[0, 0, 1]]), document_mask(torch.tensor([[0, 0, 1]])))
    torch.testing.assert_close(padding_mask([1, 2], 3), padding_mask(torch.tensor([1, 2]), 3))


def test_documents_refuse():
    with pytest.raises(ValueError, match=r"\(B, T\), not of shape \(3,\)"):
        document_mask(torch.tensor([0, 0, 1]))
    with pytest.raises(TypeError, match="float32"):
        document_mask(torch.zeros(1, 3))


def test_padding_compiles_without_looking_at_the_values():
    compiled = torch.compile(padding_mask, fullgraph=True, backend="eager")
    valid_lens = torch.tensor([1, 4])
    torch.testing.assert_close(compiled(valid_lens, 4), padding_mask(valid_lens, 4))
