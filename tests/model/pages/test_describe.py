"""Sentences about heads: patterns get their names, noise gets none, and the numbers are those of the maps."""

import math
import re
from dataclasses import replace
from itertools import chain, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.inspection import heads
from model.inspection.probes import Probe
from model.pages import describe
from model.pages.describe import FollowedPattern, find_patterns, visible
from tests.measurements import causal_softmax, snapshot_of, survey_maps

LABELS = ["def", " f", "(", "x", "):", "\n    ", "return", " x", " of", " y", "\n", "print", " the", " f", "(", "1"] * 4
PERIOD = 12
PROBES = {
    "text": Probe([LABELS.index(label) for label in LABELS], LABELS),
    "repeated": Probe([99, *range(PERIOD), *range(PERIOD)], [f"r{i}" for i in range(2 * PERIOD + 1)], PERIOD),
}
ONE = Probe([0], ["a"])


def noise_maps(temperature: float, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = {name: len(probe.tokens) for name, probe in PROBES.items()}
    noise = {name: torch.randn(2, 3, size, size, generator=generator) for name, size in sizes.items()}
    return {name: causal_softmax(temperature * scores) for name, scores in noise.items()}


def following(pattern: str, strength: float = 6.0) -> dict[str, torch.Tensor]:
    """Noise, in which head 1.2 follows a pattern on the probe that shows it."""
    maps = noise_maps(0.5, 0)
    score = heads.SCORES[pattern]
    keys = score.keys(PROBES[score.probe])
    maps[score.probe][1, 2] = causal_softmax(strength * keys.float())
    return maps


def describe_heads(maps, probes, ablation=None):
    return describe.describe_heads(snapshot_of(maps, probes, ablation=ablation))


def describe_head(text_map, probe=PROBES["text"]):
    """The description of a single head, from its map of the text alone."""
    maps = {"text": text_map[None, None], "repeated": torch.ones(1, 1, 1, 1)}
    [[described]] = describe_heads(maps, {"text": probe, "repeated": ONE})
    return described


def opening_view(maps, probes):
    return describe.opening_view(snapshot_of(maps, probes), maps, probes)


def names(described) -> list[list[str | None]]:
    return [[head["name"] for head in layer] for layer in described]


PATTERNS = [name for name, score in heads.SCORES.items() if score.keys is not None]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_head_that_follows_a_pattern_gets_its_name_and_others_get_none(pattern):
    maps = following(pattern)
    described = describe_heads(maps, PROBES)
    assert names(described) == [[None] * 3, [None, None, pattern]]
    scores, habits = survey_maps(maps, PROBES)
    assert f"{scores[pattern][1, 2]:.2f} of its weight" in described[1][2]["evidence"]
    assert f"uniform attention: {habits.uniform[pattern]:.2f}" in described[1][2]["evidence"]
    start = "where the text repeats itself, it " if heads.SCORES[pattern].probe == "repeated" else ""
    assert described[1][2]["sentence"].lower().startswith(start + heads.SCORES[pattern].meaning)


def test_uniform_attention_gets_no_name_and_nothing_is_told_of_it():
    described = describe_heads(noise_maps(0, 0), PROBES)
    assert names(described) == [[None] * 3] * 2
    for head in described[0]:
        perplexity = sum(range(2, 65)) / 63  # a query that sees n tokens spreads over n
        spread = f"Spreads its weight over about {perplexity:.0f} tokens"
        assert head["sentence"] == f"{spread}; no token and no distance stands out."


def test_a_head_without_a_name_is_told_by_what_it_looks_at():
    scores = torch.zeros(len(LABELS), len(LABELS))
    scores[:, [LABELS.index(" of"), LABELS.index(" the")]] = 2
    described = describe_head(causal_softmax(scores))
    assert described["name"] is None and described["sentence"].startswith("Spreads its weight over about ")
    shares = causal_softmax(scores)[1:].mean(0)
    for token in (" of", " the"):
        share = sum(shares[i].item() for i, label in enumerate(LABELS) if label == token)
        assert f"“{visible(token)}” ({100 * share:.0f}%)" in described["sentence"]


@settings(max_examples=40)
@given(seed=st.integers(0, 1000), temperature=st.floats(0, 20))
def test_counts_are_shares_of_the_weight_counted_in_loops(seed, temperature):
    maps = noise_maps(temperature, seed)
    _, habits = survey_maps(maps, PROBES)
    a, later = maps["text"][1, 2].tolist(), range(1, len(LABELS))
    keys, offsets = habits.keys[1][2], habits.offsets[1][2]
    for token, share, uniform in keys:
        places = [i for i, label in enumerate(LABELS) if label == token]
        assert share == pytest.approx(sum(a[q][k] for q in later for k in places) / len(later), abs=1e-4)
        expected = sum(1 / (q + 1) for q in later for k in places if k <= q) / len(later)
        assert uniform == pytest.approx(expected, abs=1e-4)
    for offset, share, _ in offsets:
        assert share == pytest.approx(sum(a[q][q + offset] for q in later if q + offset >= 0) / len(later), abs=1e-4)
    for counts in (keys, offsets):
        excess = [share - uniform for _, share, uniform in counts]
        assert len(excess) <= 5 and all(a >= b - 2e-4 for a, b in pairwise(excess))  # rounded to 4 decimals


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("previous_token", r"\. By distance: the token just before \(\d+%\)\.$"),
        ("sink", r"\. Over 64 tokens it looks most at “def” \(\d+%\)\.$"),
    ],
)
def test_the_evidence_tells_which_tokens_and_distances_get_most(pattern, told):
    assert re.search(told, describe_heads(following(pattern, 9.0), PROBES)[1][2]["evidence"])


def test_a_delimiter_head_is_told_by_the_kinds_it_looks_at():
    breaks = torch.tensor(["\n" in label for label in LABELS])
    described = describe_head(causal_softmax(6.0 * breaks.expand(len(LABELS), -1)))
    assert described["name"] == "delimiter" and described["sentence"].endswith("here mostly line breaks.")


@pytest.mark.parametrize(
    ("change", "told"),
    [(0.1234, "rises by 0.12"), (-0.5, "falls by 0.50"), (0.001, "stays the same"), (math.nan, None)],
)
def test_ablation_says_what_the_head_is_worth(change, told):
    parts = [f"head {layer}.{head}" for layer in range(2) for head in range(3)]
    values = {"text": change, "repeated": 7.0}
    ablation = {name: dict.fromkeys(parts, 0.0) | {"head 1.2": value} for name, value in values.items()}
    evidence = describe_heads(following("sink"), PROBES, ablation)[1][2]["evidence"]
    assert (told in evidence) if told else ("without it" not in evidence)
    # Where the pattern is one of repeated text, so is the loss.
    evidence = describe_heads(following("induction"), PROBES, ablation)[1][2]["evidence"]
    assert "the loss on repeated tokens rises by 7.00 nats per token" in evidence


@pytest.mark.parametrize(
    ("probe", "weight", "told"), [(ONE, 1, "a single token"), (PROBES["text"], math.nan, "diverged")]
)
def test_of_one_token_and_of_maps_without_numbers_it_is_said_why_there_is_no_pattern(probe, weight, told):
    probes, T = PROBES | {"text": probe}, len(probe.tokens)
    maps = following("sink") | {"text": torch.full((2, 3, T, T), weight)}
    for head in chain(*describe_heads(maps, probes)):
        assert head["name"] is None and told in head["sentence"] and head["evidence"] == ""
    opening_view(maps, probes)


def test_a_map_that_is_broken_on_one_probe_only_gets_no_name_from_it():
    maps = following("sink") | {"repeated": torch.full_like(noise_maps(1, 0)["repeated"], math.nan)}
    assert names(describe_heads(maps, PROBES))[1][2] == "sink"


def test_a_label_is_written_with_signs_and_escapes_and_shortened():
    written = {" a\n\t\r": "·a↵⇥␍", "": "∅", "\x00\u202e\ud800": "\\u0000\\u202e\\ud800", "שלום": "שלום"}
    written |= {"<img src=x>": "<img·src=x>", "x" * 30: "x" * 19 + "…"}
    assert {label: visible(label) for label in written} == written


@settings(max_examples=40)
@given(st.lists(st.text(st.characters(), max_size=40), min_size=20, max_size=20))
def test_sentences_are_in_order_and_printable_whatever_the_tokens(labels):
    described = describe_head(causal_softmax(3.0 * torch.eye(20)[3].expand(20, -1)), Probe(list(range(20)), labels))
    sentence = described["sentence"].replace("\u2068", "").replace("\u2069", "")
    assert sentence.isprintable() and len(sentence) < 300
    sentence.encode()


def test_text_from_right_to_left_is_isolated():
    labels = [f"t{i}" for i in range(20)]
    labels[3] = "שלום"
    described = describe_head(causal_softmax(1.5 * torch.eye(20)[3].expand(20, -1)), Probe(list(range(20)), labels))
    assert "“\u2068שלום\u2069”" in described["sentence"]


@pytest.mark.parametrize("pattern", [name for name in PATTERNS if name not in ("sink", "current_token")])
def test_the_page_opens_with_the_head_whose_pattern_is_clearest(pattern):
    maps = following(pattern)
    score = heads.SCORES[pattern]
    opening = opening_view(maps, PROBES)
    assert opening["head"] == 5 and opening["probe"] == score.probe
    keys = score.keys(PROBES[score.probe])[opening["token"]]
    assert maps[score.probe][1, 2, opening["token"]][keys].sum() > 0.9


@pytest.mark.parametrize("window", [None, PERIOD, PERIOD - 1])
def test_the_page_does_not_open_with_a_pattern_whose_keys_no_query_of_its_probe_sees(window):
    """What followed the same token before is PERIOD - 1 tokens back; the windows may have shorter periods."""
    maps = following("induction")
    snapshot = snapshot_of(maps, PROBES)
    windowed = replace(snapshot, habits=replace(snapshot.habits, attention_window=window))
    opening = describe.opening_view(windowed, maps, PROBES)
    assert (opening["score"] == "induction") is (window != PERIOD - 1)


@pytest.mark.parametrize("resting", ["sink", "current_token"])
def test_the_page_does_not_open_with_a_head_at_rest_if_another_has_a_name(resting):
    maps = following("delimiter", strength=3.0)
    assert names(describe_heads(maps, PROBES))[1][2] == "delimiter"
    keys = heads.SCORES[resting].keys(PROBES["text"])
    maps["text"][0, 0] = causal_softmax(9.0 * keys.float())
    assert opening_view(maps, PROBES)["head"] == 5


@pytest.mark.parametrize("length", [2, 16, 40])
def test_noise_gets_no_name(length):
    """The noisiest attention there is, one random key a query, two thousand times."""
    probe = Probe(PROBES["text"].tokens[:length], LABELS[:length])
    seen = torch.ones(length, length).tril()
    generator = torch.Generator().manual_seed(0)
    keys = torch.multinomial(seen, 2000, replacement=True, generator=generator)  # (T, N)
    maps = {"text": torch.nn.functional.one_hot(keys.T, length).float()[None], "repeated": torch.ones(1, 2000, 1, 1)}
    snapshot = snapshot_of(maps, {"text": probe, "repeated": ONE})
    assert names(describe.describe_heads(snapshot)) == [[None] * 2000]
    for pattern in [*find_patterns(snapshot.habits), *find_patterns(snapshot.habits, by_half=True)]:
        assert not pattern.clear.any(), pattern.name


def test_the_threshold_is_needed_however_long_the_text():
    scores = torch.tensor([[[0.34, 0.36, 0.36]], [[0.36, 0.36, 0.34]]])
    pattern = FollowedPattern("previous_token", 0.02, [5000, 5000], scores)
    assert pattern.holds.tolist() == [[False, True, False]]


def looking_back(tokens: int | None) -> torch.Tensor:
    """A map of 64 tokens, each of which looks at the one so many before it, or at all alike."""
    if tokens is None:
        return heads.uniform_attention(64)
    return torch.stack([torch.eye(64)[max(query - tokens, 0)] for query in range(64)])


FIRST, SECOND = "in the first half of the window", "in the second"


@pytest.mark.parametrize(
    ("first", "second", "name", "sentence"),
    [
        (5, 5, "fixed_distance", "Looks exactly 5 tokens back."),
        (1, 32, "fixed_distance", f"Looks at the token just before {FIRST}, and exactly 32 tokens back {SECOND}."),
        (3, 0, "recent", f"Looks exactly 3 tokens back {FIRST}, and at the token itself {SECOND}."),
        (None, 1, None, f"{FIRST.capitalize()} it spreads its weight over about 17 tokens; {SECOND} it looks at the "),
        (1, None, None, f"Looks at the token just before {FIRST}; {SECOND} it spreads its weight over about 4"),
    ],
)
def test_a_sentence_holds_for_the_whole_window_or_says_where(first, second, name, sentence):
    described = describe_head(torch.cat([looking_back(first)[:32], looking_back(second)[32:]]))
    assert described["name"] == name and described["sentence"].startswith(sentence)


def test_too_few_tokens_are_counted():
    probe = Probe(PROBES["text"].tokens[:8], LABELS[:8])
    described = describe_head(causal_softmax(3.0 * heads.previous_token(probe).float()), probe)
    assert described["name"] is None
    assert re.search(r"^Closest to .* \(on [1-4] tokens, too few to exclude chance\)", described["evidence"])
