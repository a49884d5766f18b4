"""The order of what happens after a training step, and which state a run leaves."""

import json
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from model.runs import end_of_step
from model.runs.end_of_step import EndOfStep
from model.runs.metrics import Diverged
from model.runs.recorder import Recorder, Samples
from model.runs.run import Run
from model.runs.saving import Checkpoints
from model.runs.stop_signals import TrainingInterrupted
from model.training.module import GPTModule
from tests.watching import before_call

pytestmark = pytest.mark.usefixtures("no_pages")

PARTS = {GPTModule: "on_validation_epoch_end", Recorder: "record", Samples: "write", Checkpoints: "save"}


@pytest.fixture
def events(monkeypatch):
    """(step, name) of every part of the sequence that runs."""
    seen = []

    def note(name, part, trainer=None, *_, **__):
        seen.append(((trainer or part.trainer).global_step, name))

    monkeypatch.setattr(end_of_step, "log_metrics", lambda trainer, _: note("log_metrics", None, trainer))
    for owner, name in PARTS.items():
        before_call(monkeypatch.setattr, owner, name, partial(note, name))
    return seen


VALIDATED = ["log_metrics", "on_validation_epoch_end", "record", "log_metrics", "write", "save"]


LOGGED = ["log_metrics"]
RUNS = {  # options, and what happens at which step
    """max_steps=6 --trainer.log_every_n_steps=3 --checkpoints.every_n_steps=3
    --trainer.accumulate_grad_batches=2""": {
        0: ["record"],
        3: [*LOGGED, "save"],
        4: VALIDATED,
        6: VALIDATED,
    },
    "max_steps=3 --trainer.limit_val_batches=0": {0: ["record"], 2: LOGGED, 3: [*LOGGED, "save"]},
    "max_steps=3 --trainer.val_check_interval=null": {0: ["record"], 2: LOGGED, 3: VALIDATED},
}


@pytest.mark.parametrize("options", RUNS)
def test_a_step_is_logged_validated_recorded_sampled_and_saved_in_this_order_and_once(train, events, options):
    """The last step is always validated, if there is a validation at all."""
    assert train(*f"--trainer.{options}".split()) == 0
    assert events == [(step, name) for step, names in RUNS[options].items() for name in names]


def test_the_state_of_a_run_is_in_a_file_from_its_first_step_on(train, monkeypatch):
    ends = {"finished": None, "stopped": TrainingInterrupted(signal.SIGTERM)}
    ends |= {"failed": RuntimeError("a bug"), "diverged": Diverged("NaN")}
    for state, error in ends.items():
        run = Path("runs", state)

        def fail(_, trainer, *__, run=run, error=error):
            assert Run(run).state == "running"
            if error and trainer.global_step == 3:
                raise error

        with monkeypatch.context() as patch, suppress(RuntimeError):
            before_call(patch.setattr, EndOfStep, "end_step", fail)
            train(f"--name={state}", "--trainer.max_steps=4", "--recording.enabled=false")
        assert json.loads((run / "state.json").read_text()) == {"state": state, "step": 3 if error else 4}
        assert (run / "checkpoints/last.ckpt").exists() == (state in ("finished", "failed"))


def test_an_epoch_of_lightning_is_what_lies_between_two_validations(train, monkeypatch):
    """Callbacks count epochs. The first epoch of a resumed run may be shorter than the others, and so may the last."""
    epochs = []

    def note(_, trainer, __):
        epochs.append((trainer.current_epoch, trainer.global_step))

    before_call(monkeypatch.setattr, end_of_step.EndOfStep, "on_train_epoch_end", note)
    resume = "--resume=runs/run/checkpoints/step_00000006.ckpt"
    for options, expected in (
        (["--name=run", "--checkpoints.keep_steps=[6]", "--recording.enabled=false"], [(0, 4), (1, 8), (2, 12)]),
        ([resume, "--trainer.accumulate_grad_batches=2", "--trainer.max_steps=13"], [(1, 8), (2, 12), (3, 13)]),
        ([resume, "--trainer.val_check_interval=5"], [(1, 10), (2, 13)]),
    ):
        epochs.clear()
        assert train(*options) == 0
        assert epochs == expected
