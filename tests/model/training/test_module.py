"""The training step and the validation pass against plain loops."""

import math
from pathlib import Path
from statistics import mean
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from model.checkpoint import load_gpt, read_checkpoint
from model.gpt import GPTConfig
from model.runs.code import read_code
from model.runs.recorder import Recorder, Samples
from model.training import module
from model.training.module import GPTModule
from model.training.optimizer import MuonAdamW, OptimizerConfig
from model.training.schedule import ScheduleConfig, learning_rate_factor
from tests.small_runs import column
from tests.watching import before_call

pytestmark = pytest.mark.usefixtures("no_pages")
ONE_BATCH, QUIET = "--trainer.limit_val_batches=1", "--recording.enabled=false"


def validation_nats(gpt, text, length, num_tokens=None):
    """Nats per token and per byte of the last tenth of a text, each token predicted once, in float64, without batches.
    Also returns the number of bytes.

    The nats per byte leave out end-of-text, which has no bytes.
    """
    validation = text.read_bytes()[int(0.9 * text.stat().st_size) :]
    tokens, nats = torch.tensor([256, *validation, 256][:num_tokens]), []
    with torch.no_grad():
        for start in range(0, len(tokens) - 1, length):
            window = tokens[start : start + length + 1]
            logits = gpt(window[None, :-1])[0].double()
            nats += F.cross_entropy(logits, window[1:], reduction="none").tolist()
    of_bytes = nats[: len(validation)]
    return mean(nats), mean(of_bytes), len(of_bytes)


@pytest.mark.parametrize("options, num_tokens", [([], None), ([ONE_BATCH, QUIET], 1 + 32 * 16)])
def test_validation_losses_are_those_of_a_plain_loop(trained, small_text, options, num_tokens):
    run = trained(*options)
    gpt, _ = load_gpt(run / "checkpoints/last.ckpt")
    per_token, per_byte, num_bytes = validation_nats(gpt, small_text, gpt.config.context_length, num_tokens)
    assert column(run, "val/loss")[12] == pytest.approx(per_token, rel=1e-6)
    assert column(run, "val/bits_per_byte")[12] == pytest.approx(per_byte / math.log(2), rel=1e-6)
    assert read_code(run)[0]["validation_bytes"] == num_bytes


def test_updates_have_the_schedules_learning_rates_and_clipped_gradients_and_float32_weights(train, monkeypatch):
    rates, norms, step = [], [], MuonAdamW.step

    def spy(self, closure):
        loss = closure()
        rates.append([group["lr"] for group in self.param_groups])
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norms.append(torch.stack([p.grad.norm() for p in parameters]).norm().item())
        step(self)
        return loss

    monkeypatch.setattr(MuonAdamW, "step", spy)
    options = """--model.optimizer.learning_rate=0.5 --model.optimizer.lm_head_learning_rate=0.25
        --model.optimizer.matrix_learning_rate=0.125 --trainer.accumulate_grad_batches=2
        --trainer.gradient_clip_val=0.01 --trainer.precision=bf16-mixed --name=run"""
    assert train(*options.split(), QUIET) == 0
    config = ScheduleConfig(warmup_steps=5, decay="linear", decay_fraction=0.5)
    factors = [learning_rate_factor(step, 12, config) for step in range(12)]
    assert rates == [[base * factor for base in (0.5, 0.25, 0.125)] for factor in factors]
    assert norms == pytest.approx([0.01] * 12, rel=1e-3)
    weights = read_checkpoint(Path("runs/run/checkpoints/last.ckpt"))["state_dict"]
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


def test_a_loss_that_is_kept_does_not_change_when_a_later_step_overwrites_its_memory(monkeypatch):
    memory = torch.zeros(())  # as a CUDA graph has
    monkeypatch.setattr(GPTModule, "training_loss", lambda self: memory.add_(1.0))
    trained = GPTModule(GPTConfig(), OptimizerConfig(), ScheduleConfig())
    assert [loss.item() for loss in [trained.training_step({}, 0), trained.training_step({}, 1)]] == [1.0, 2.0]


def test_accumulating_batches_equals_one_large_batch_and_the_compiler_is_told_of_it(train, monkeypatch):
    """With equal numbers of sequences a step the windows are equal, and so are the losses up to rounding."""
    told = []
    monkeypatch.setattr(module, "compile_options", lambda *_, adds_gradients: told.append(adds_gradients))
    options = ["--model.optimizer.algorithm=adamw", "--trainer.max_steps=6", QUIET]
    for name, size, batches in (("one", 8, 1), ("two", 4, 2)):
        sizes = [f"--data.batch_size={size}", f"--trainer.accumulate_grad_batches={batches}"]
        assert train(f"--name={name}", *options, *sizes) == 0
    assert column("runs/one", "train/loss") == pytest.approx(column("runs/two", "train/loss"), abs=1e-4)
    assert told == [False, True]


def test_throughput_and_mfu_count_training_steps_only(train, monkeypatch):
    """Not validation, samples or recordings. A clock that moves half a second a batch makes the rate exact."""
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[-1])
    monkeypatch.setattr("model.runs.metrics.time", clock)  # not the clock of generation
    monkeypatch.setattr("model.runs.metrics.peak_flops", lambda trainer: 1e12)

    def slow_down(owner, name, seconds):
        before_call(monkeypatch.setattr, owner, name, lambda *_, **__: now.append(now[-1] + seconds))

    slow_down(GPTModule, "training_step", 0.5)
    slow_down(GPTModule, "validation_step", 100)
    slow_down(Recorder, "record", 1000)
    slow_down(Samples, "write", 10000)
    assert train("--name=run", "--trainer.val_check_interval=3", "--trainer.accumulate_grad_batches=2", QUIET) == 0
    rate, steps = 4 * 16 / 0.5, (2, 3, 4, 6, 8, 9, 10, 12)
    assert column("runs/run", "tokens_per_second") == dict.fromkeys(steps, rate)
    share = rate * load_gpt("runs/run/checkpoints/last.ckpt")[0].flops_per_token() / 1e12
    assert column("runs/run", "mfu") == pytest.approx(dict.fromkeys(steps, share))
