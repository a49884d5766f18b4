"""When a head has formed: one rule for the pages, the report and the pictures."""

from dataclasses import replace

import numpy as np
import pytest

from model.inspection.heads import SCORES
from model.inspection.probes import Probe
from model.pages.history import History
from tests.measurements import snapshot_with

STEPS = (0, 10, 20, 40, 80)
PROBES = {"text": Probe([*range(10)], ["x"] * 10), "repeated": Probe([0] + 2 * [1, 2, 3, 4], ["x"] * 9, 4)}


@pytest.mark.parametrize(
    ("sinks", "formed"),
    [
        ([0.1, 0.1, 0.8, 0.9, 0.9], 20),
        ([0.1, 0.8, 0.1, 0.9, 0.9], 40),  # what is lost again did not form
        ([0.1, 0.1, 0.1, 0.1, 0.9], 80),
        ([0.9, 0.9, 0.9, 0.9, 0.1], None),
        ([0.45, 0.45, 0.45, 0.45, 0.45], None),  # not a third of the way from uniform attention to 1
        ([0.5, 0.5, 0.5, 0.5, 0.5], 0),
    ],
)
def test_a_head_has_formed_from_the_step_on_at_which_every_snapshot_has_the_pattern_beyond_chance(sinks, formed):
    snapshots = []
    for step, sink in zip(STEPS, sinks, strict=True):
        scores = {name: np.full((1, 1), sink if name == "sink" else 0.1, np.float32) for name in SCORES}
        snapshots.append(snapshot_with(scores, PROBES, step))
    assert 0.45 < (1 + 2 * snapshots[0].habits.uniform["sink"]) / 3 < 0.5
    history = History("demo", PROBES, snapshots, {}.get, STEPS)
    found = {score: heads["0.0"] for score, heads in history.formation.items() if heads}
    assert found == ({} if formed is None else {"sink": formed})
    # Ten tokens are too few: what they show may be chance.
    few = [replace(one, habits=replace(one.habits, queries=dict.fromkeys(SCORES, (4, 5)))) for one in snapshots]
    assert not any(replace(history, snapshots=few).formation.values())
