"""What a run records of its own attention: on the path that it trains on, and nothing of a future it no longer has."""

import json
from pathlib import Path

import pytest


def captures(run: str) -> list[dict]:
    return [json.loads(line) for line in Path(run, "attention", "scores.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("precision", "kernel"), [("32-true", "float32"), ("bf16-mixed", "bfloat16")])
def test_maps_are_held_against_the_kernel_that_trains(train, precision, kernel):
    assert train("--name=run", f"--trainer.precision={precision}") == 0
    taken = captures("runs/run")
    assert {capture["precision"] for capture in taken} == {kernel}
    assert all(capture["fidelity"] <= {"float32": 1e-5, "bfloat16": 2e-2}[kernel] for capture in taken)
    assert all(capture["causality"] == 0 for capture in taken)


def test_every_validation_draws_the_maps_and_a_resumed_run_keeps_nothing_of_its_former_future(train):
    picture = "--attention.picture=true"
    assert train("--name=run", picture, "--trainer.max_steps=8", "--checkpoints.every_n_steps=2") == 0
    folder = Path("runs/run/attention")
    assert sorted(path.stem for path in folder.glob("*.png")) == ["step_00000004", "step_00000008"]
    checkpoints = Path("runs/run/checkpoints")
    (checkpoints / "previous.ckpt").replace(checkpoints / "last.ckpt")  # step 6
    assert train("--resume=runs/run", "--trainer.val_check_interval=7", "--trainer.max_steps=7") == 0
    assert sorted(path.stem for path in folder.glob("*.png")) == ["step_00000004", "step_00000007"]
    assert [capture["step"] for capture in captures("runs/run")] == [0, 1, 2, 4, 7]
