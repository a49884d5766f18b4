"""What a page says about a run's learning: its figures are those of the given rows."""

import csv

from model.pages.learning import learning, story
from tests.command_lines import tells

METRICS = """step,tokens,train/loss,val/loss,val/bits_per_byte,lr,tokens_per_second,attention/entropy/layer_0,train/mine
0,,,,,,,0.25,
10,1000,4.0,,,0.1,500,,
20,2000,3.0,3.5,2.5,0.1,1000,0.5,
30,3000,2.5,3.25,2.25,0.05,,,7.0
40,4000,2.0,3.375,2.375,0.0,250,,"""
ROWS = [{name: float(figure) for name, figure in row.items() if figure} for row in csv.DictReader(METRICS.splitlines())]
SAMPLES = [{"step": step, "prompt": "def ", "text": str(step)} for step in (20, 40)]


def test_facts_charts_and_samples_are_those_of_the_rows():
    data = learning(ROWS, SAMPLES, "prompt: hello", {})
    facts = {"bits per byte": "2.3750 2.2500 30", "validation loss": "3.3750 3.2500 30", "tokens per second": "500"}
    for name, value, remark in data["facts"]:
        assert tells(f"{value} {remark}", facts.pop(name))
    assert not facts
    curves = {chart["title"]: {curve["name"]: curve["points"] for curve in chart["curves"]} for chart in data["charts"]}
    assert curves["Loss"] == {
        "training": [(10, 4.0), (20, 3.0), (30, 2.5), (40, 2.0)],
        "validation": [(20, 3.5), (30, 3.25), (40, 3.375)],
    }
    figures = ["Loss", "Bits per byte", "Learning rate", "Tokens per second"]  # no MFU is known
    assert list(curves) == [*figures, "train/mine"] and curves["train/mine"] == {"train/mine": [(30, 7.0)]}
    assert data["samples"] == SAMPLES and data["config"] == "prompt: hello"
    nothing = learning([], [], "", {})
    assert not (nothing["facts"] or nothing["charts"] or nothing["samples"] or nothing["config"])


REPEATED = {"batch_size": 16, "repeat_fraction": 0.2, "repeat_from": 180, "repeat_until": 540}
TOLD = [  # a config, and names and figures of its story
    ({"model": {"gpt": {"num_layers": 6, "num_heads": 3}}}, "6 layers 3 heads"),
    ({"model": {"gpt": {"num_layers": 1, "num_heads": 1}}}, "1 layer 1 head"),
    ({"data": {"corpus": "stdlib", "files": None}}, "Python's"),
    ({"data": {"corpus": "files", "files": ["a.txt", "b.txt"]}}, "a.txt b.txt"),
    ({"data": {"corpus": "stdlib", "dataset": "some/set"}}, "some/set"),
    ({"data": {"corpus": "another"}}, "another"),
    ({"data": {"repeat_fraction": 0.25}}, "25 0"),
    ({"data": REPEATED}, "20 180 540"),
    ({"data": {"random_repeat_fraction": 0.015}}, "1.5"),
    ({"trainer": {"max_steps": 100}}, "100"),  # a run that is not finished
]


def test_the_story_says_which_model_was_trained_on_which_text_and_for_how_long():
    for config, names in TOLD:
        found = story(ROWS, {"model": {"gpt": {}}, "data": {}} | config)
        assert tells(found, f"{names} 4k 40 0:00:07"), found
    assert not tells(story(ROWS, {"model": {"gpt": {}}, "data": {}, "trainer": {"max_steps": -1}}), "-1")
