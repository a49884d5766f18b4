"""Texts for measurements: evenly spread windows, and random tokens that repeat."""

import numpy as np
import pytest
import torch

from model.inspection.texts import PERIODS, Texts, repeated_tokens, repeated_windows, spread_starts


def test_windows_are_spread_evenly_over_the_text():
    starts = spread_starts(1000, 50)
    assert starts[0] == 0 and starts[-1] == 950 and len(starts) == 16
    assert max(np.diff(starts)) - min(np.diff(starts)) <= 1
    assert spread_starts(7, 50) == spread_starts(50, 50) == [0] and spread_starts(120, 50) == [0, 70]


def test_a_repeated_probe_repeats_distinct_tokens_once():
    some = range(0, 100, 2)
    tokens = repeated_tokens(some, 10, first=0)
    assert tokens[0] == 0 and tokens[1:11] == tokens[11:] and len(set(tokens)) == 11 and set(tokens) <= set(some)
    assert Texts.of(tokens, kind="repeated").period == 10 and Texts.of(tokens).period is None
    assert sorted(repeated_tokens(range(4), 8, first=0)) == [0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("length", [24, 128, 1024])
def test_repeated_windows_have_several_periods_below_half_a_window(length):
    windows = repeated_windows(range(5000), length, first=0)
    assert repeated_windows(range(5000), length, first=0) == windows != repeated_windows(range(5000), length)
    periods = set()
    for first, *tokens in windows:
        period = next(p for p in range(1, length) if tokens[p:] == tokens[:-p])
        assert first == 0 and len(tokens) == length - 1 and len(set(tokens)) == period
        periods.add(period)
    assert len(periods) == len(PERIODS) and max(periods) <= length / 2 - 2


def test_texts_are_the_same_in_pieces_and_after_json():
    texts = Texts.of(torch.arange(15).view(5, 3), document_ids=torch.arange(15).view(5, 3) % 2, attention_window=2)
    pieces = [piece.to_json() for piece in texts.pieces(2 * 3)]
    whole = Texts.from_json("text", texts.to_json()).to_json()
    assert [len(piece["tokens"]) for piece in pieces] == [2, 2, 1] and whole == texts.to_json()
    for name in ("tokens", "labels", "document_ids"):
        assert [row for piece in pieces for row in piece[name]] == whole[name]
    assert {piece["attention_window"] for piece in pieces} == {2}
