"""Sentences about heads: patterns get their names, noise gets none, and the figures are those of the maps."""

import math

import pytest
import torch

from model.inspection import heads
from model.inspection.experiments import Effect, Trial
from model.inspection.recording import Recording
from model.pages import describe
from model.pages.describe import first_formed, visible
from tests.measurements import causal_softmax, heads_of, noise, probes_of, snapshot_of

LABELS = ["def", " f", "(", "x", "):", "\n    ", "return", " x", " of", " y", "\n", "print", " the", " f", "(", "1"] * 4
PROBES = probes_of(LABELS, period=12)


def noise_maps(temperature, *sizes):
    return {name: causal_softmax(temperature * scores) for name, scores in noise(PROBES, *sizes).items()}


def following(pattern, strength=6.0, head=(1, 2), others=None):
    """Maps of noise, or other maps, except that a head follows a pattern on the probe that shows it."""
    maps = others or noise_maps(0.5)
    score = heads.SCORES[pattern]
    (keys,) = score.keys(PROBES[score.kind]).expand(1, -1, -1)
    maps[score.kind][head] = causal_softmax(strength * keys.float())
    return maps


def describe_heads(maps, effects=()):
    return describe.describe_heads(snapshot_of(maps, PROBES), effects)


def opening_view(maps):
    return describe.opening_view(Recording(PROBES, snapshots=[snapshot_of(maps, PROBES)]))


def patterns(described):
    return [head["patterns"] for head in described]


PATTERNS = [name for name, score in heads.SCORES.items() if score.keys is not None]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_head_that_follows_a_pattern_gets_its_name_and_the_page_opens_with_it(pattern):
    maps = following(pattern)
    described = describe_heads(maps)
    assert patterns(described) == [[]] * 5 + [[pattern]]
    score, sentence = heads.SCORES[pattern], described[5]["sentence"]
    assert f"({heads_of(maps, PROBES).scores[pattern][1, 2]:.2f} of its weight)" in sentence
    start = "where the text repeats itself, it " if score.kind == "repeated" else ""
    assert sentence.lower().startswith(start + score.meaning)
    assert opening_view(maps) == {"head": "1.2", "probe": score.kind, "score": pattern}


def test_a_previous_token_head_is_not_also_described_as_recent():
    """Even if half of its weight is on other recent tokens."""
    maps = following("recent", 9.0)
    before = heads.SCORES["previous_token"].keys(PROBES["text"]).float()
    maps["text"][1, 2, 1:] = (maps["text"][1, 2, 1:] + before[1:]) / 2
    assert patterns(describe_heads(maps))[5] == ["previous_token"]


def test_uniform_attention_and_noise_get_no_name_but_the_number_of_tokens_they_spread_over():
    described = describe_heads(noise_maps(0))
    assert patterns(described) == [[]] * 6
    perplexity = sum(range(2, 65)) / 63  # a query that sees n tokens spreads over n of them
    assert all(f" {perplexity:.1f} tokens" in head["sentence"] for head in described[:3])
    assert patterns(describe_heads(noise_maps(99, 1, 60))) == [[]] * 60  # in each, a query looks at one random key


def test_a_head_is_described_with_what_experiments_found():
    trial = Trial("", [], "", "", 0)
    effects = [
        Effect("A quote", "", "", "", "finds the open quote", trial, [], head, weight, (1, 0), (1, 0), (9, 9, 9))
        for head, weight in (("1.2", 0.61), ("0.0", 0.0), (None, 0.9))
    ]
    described = describe_heads(following("first_token"), effects=effects)
    assert "finds the open quote, with 61% of its weight" in described[5]["sentence"]
    assert sum("A quote" in head["sentence"] for head in described) == 1


def test_a_pattern_is_dated_by_its_first_head_or_the_strongest_of_several():
    early = following("first_token", 3.5, (0, 0))  # head 0.0 forms first and is weaker than head 1.2
    both = following("first_token", 9.0, others={name: of.clone() for name, of in early.items()})
    by_step = {0: noise_maps(0.5), 200: early, 400: early, 600: both}
    recording = Recording(PROBES, snapshots=[snapshot_of(maps, PROBES, step) for step, maps in by_step.items()])
    at_once = Recording(PROBES, snapshots=[snapshot_of(both, PROBES)])
    assert recording.formation["first_token"] == {"0.0": 200, "1.2": 600}
    for found, head, step in ((recording, "0.0", 200), (at_once, "1.2", 0)):
        stages = {stage["score"]: stage for stage in first_formed(found)}
        assert stages["first_token"] == {"score": "first_token", "head": head, "step": step}
        assert "induction" not in stages


def test_for_nan_the_sentence_says_why_there_is_no_pattern():
    maps = following("first_token")
    diverged = {kind: torch.full_like(of, math.nan) for kind, of in maps.items()}
    for head in describe_heads(maps | {"text": diverged["text"]}):
        assert head["patterns"] == [] and "diverged" in head["sentence"]
    assert patterns(describe_heads(maps | {"repeated": diverged["repeated"]}))[5] == ["first_token"]


def test_labels_are_shortened_and_show_spaces_and_invisible_characters():
    written = {" a\n\t\r": "·a↵⇥␍", "": "∅", "\x00\u202e\ud800": "\\u0000\\u202e\\ud800", "שלום": "שלום"}
    written |= {"<img src=x>": "<img·src=x>", "x" * 30: "x" * 19 + "…"}
    assert {label: visible(label) for label in written} == written


@pytest.mark.parametrize("resting", ["first_token", "current_token"])
def test_the_page_does_not_open_with_a_head_at_rest_if_another_has_a_name(resting):
    maps = following(resting, 9.0, (0, 0), following("delimiter", 3.0))
    assert opening_view(maps)["head"] == "1.2"
