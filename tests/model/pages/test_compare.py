"""Two whole runs side by side: their losses and the options in which they differ."""

import math
from dataclasses import replace

import pytest

from model.pages.compare import config_differences, losses, options
from tests.model.pages.test_page import random_captures

ROWS = [
    {"step": 0, "attention/fidelity": 0.1},
    {"step": 10, "train/loss": 5.0},
    {"step": 20, "train/loss": 4.0, "val/loss": 4.5, "val/bits_per_byte": 2.5},
    {"step": 30, "train/loss": math.nan},
]


def runs(one=(), other=(), **fields):
    """Two runs, the fields of each as a pair."""
    found = [replace(random_captures(), name=name) for name in ("one", "other")]
    pairs = fields | {"metrics": (one, other)}
    return [replace(run, **{name: pair[i] for name, pair in pairs.items()}) for i, run in enumerate(found)]


def test_losses_of_one_tokenizer_are_training_and_validation_of_both():
    chart = losses(runs(ROWS, ROWS[:2]))
    assert chart["title"] == "Loss, nats per token" and chart["note"] == ""
    assert chart["curves"] == [
        {"run": 0, "name": "training", "points": [(10, 5.0), (20, 4.0)]},
        {"run": 0, "name": "validation", "points": [(20, 4.5)]},
        {"run": 1, "name": "training", "points": [(10, 5.0)]},
    ]


def test_runs_of_different_tokenizers_are_compared_by_bits_per_byte():
    chart = losses(runs(ROWS, ROWS, tokenizer=("a", "b")))
    assert chart["title"] == "Validation, bits per byte" and "cannot be compared" in chart["note"]
    assert [curve["points"] for curve in chart["curves"]] == [[(20, 2.5)], [(20, 2.5)]]


@pytest.mark.parametrize("metrics", [ROWS[:2], []])
def test_where_one_has_no_bits_per_byte_the_losses_come_with_a_warning(metrics):
    chart = losses(runs(ROWS, metrics, tokenizer=("a", "b")))
    assert chart["title"] == "Loss, nats per token" and "need not be a better model" in chart["note"]
    assert ("other has no metrics.csv." in chart["note"]) == (not metrics)


def test_without_any_metrics_there_is_no_chart():
    assert losses(runs()) is None


def test_a_long_curve_keeps_both_ends():
    rows = [{"step": step, "train/loss": 1.0 / (1 + step)} for step in range(5000)]
    (curve,) = losses(runs(rows))["curves"]
    assert 100 < len(curve["points"]) <= 300 and (curve["points"][0][0], curve["points"][-1][0]) == (0, 4999)


def test_options_that_differ_are_dotted_and_sorted():
    one = {
        "seed": 1,
        "model": {"gpt": {"heads": 3, "bias": True}, "same": 1},
        "list": [0.8, 0.95],
        "empty": "",
        "no": {},
    }
    other = {"seed": 1, "model": {"gpt": {"heads": 4, "bias": None}, "same": 1}, "list": [0.8], "empty": "x", "new": 1}
    assert config_differences(one, other) == [
        ("empty", '""', "x"),
        ("list", "[0.8, 0.95]", "[0.8]"),
        ("model.gpt.bias", "true", "null"),
        ("model.gpt.heads", "3", "4"),
        ("new", "–", "1"),
        ("no", "{}", "–"),
    ]
    assert config_differences(one, one) == []


def test_a_configuration_that_is_missing_is_named():
    config = {"seed": 1}
    assert options(runs(config=({}, {}))) is None
    assert options(runs(config=(config, {})))["note"] == "other has no config.yaml that can be read."
    assert options(runs(config=(config, config))) == {"differences": [], "note": "All options are the same."}
    assert options(runs(config=(config, {"seed": 2}))) == {"differences": [("seed", "1", "2")], "note": ""}
