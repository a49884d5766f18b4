"""What goes wrong inside a run: memory, numbers, loader processes, the clock, names, Weights & Biases."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from model.checkpoint import read_checkpoint
from model.training.module import GPTModule
from tests.faults.runs import (
    RUN,
    Ended,
    Lab,
    check_mistake,
    check_nothing_aside,
    check_whole_files,
    end,
    has_ended,
    run,
    start,
    wait_until,
)
from tests.small_runs import assert_same_run

Case = Callable[[Lab], str]
RESUME = ["--resume=runs/run"]


def steps(lab: Lab) -> list[int]:
    return [1, 5, 12] if lab.is_short else list(range(1, 13))


def before_batch(number: int, action: Callable[[GPTModule], None]) -> None:
    """From now on, calls `action` before the n-th training batch of this process."""
    training_step, calls = GPTModule.training_step, []

    def step(self: GPTModule, *args):
        calls.append(None)
        if len(calls) == number:
            action(self)
        return training_step(self, *args)

    GPTModule.training_step = step


def goes_on(lab: Lab, *options: str) -> None:
    """Nothing is lost: the run can be resumed, or started again where it had no checkpoint, and ends as it should."""
    if RUN.exists() and check_whole_files(RUN) < 0:
        shutil.rmtree(RUN)
    again = run(RESUME if RUN.exists() else [*lab.options, *options, "--name=run"])
    assert again.status == 0, again.error
    assert_same_run(lab.whole, RUN)
    check_nothing_aside(RUN)


def out_of_memory(lab: Lab) -> Iterator[tuple[str, Case]]:
    def takes_all(module: GPTModule) -> None:
        torch.empty(2**60, dtype=torch.uint8)

    def raises(module: GPTModule) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    for step in steps(lab):
        for action in (takes_all, raises):
            yield f"batch {step}", partial(fails_at, step=step, action=action, expected="lower data.batch_size")


def fails_at(lab: Lab, step: int, action: Callable, expected: str, options: tuple[str, ...] = ()) -> str:
    ended = run([*lab.options, *options, "--name=run"], partial(before_batch, step, action))
    said = check_mistake(ended, expected)
    assert ("--resume runs/run" in said) == (RUN / "checkpoints" / "last.ckpt").exists(), said
    goes_on(lab, *options)
    return said


def loader_killed(lab: Lab) -> Iterator[tuple[str, Case]]:
    def kill(module: GPTModule) -> None:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        time.sleep(1)  # in which its death is noticed

    for step in steps(lab):
        options = ("--data.num_workers=2",)
        yield (
            f"batch {step}",
            partial(fails_at, step=step, action=kill, expected="lower data.num_workers", options=options),
        )


def diverges(lab: Lab) -> Iterator[tuple[str, Case]]:
    def nan_weight(module: GPTModule) -> None:
        with torch.no_grad():
            next(module.parameters()).view(-1)[0] = torch.nan

    def infinite_weights(module: GPTModule) -> None:
        with torch.no_grad():
            for weight in module.parameters():
                weight.fill_(torch.inf)

    def nan_gradient(module: GPTModule) -> None:
        next(module.parameters()).register_hook(lambda gradient: gradient * torch.nan)

    for step in steps(lab):
        for action in (nan_weight, infinite_weights, nan_gradient):
            for every in ["1"] if lab.is_short else ["null", "1"]:
                case = partial(not_finite, step=step, action=action, every=every)
                yield f"{action.__name__} in batch {step}, saved every {every}", case


def not_finite(lab: Lab, step: int, action: Callable, every: str) -> str:
    """No checkpoint holds weights that are not finite, and the run goes on from one before."""
    options = [*lab.options, f"--checkpoints.every_n_steps={every}", "--name=run"]
    said = check_mistake(run(options, partial(before_batch, step, action)), "lower the learning rates")
    for path in (RUN / "checkpoints").glob("*.ckpt"):
        state = read_checkpoint(path)
        weights = [*state["state_dict"].values()]
        for optimizer in state["optimizer_states"]:
            weights += [value for one in optimizer["state"].values() for value in one.values()]
        assert all(torch.as_tensor(weight).isfinite().all() for weight in weights), f"{path} at {state['global_step']}"
    goes_on(lab, f"--checkpoints.every_n_steps={every}")
    return said


def clock(lab: Lab) -> Iterator[tuple[str, Case]]:
    """The clock is set back by an hour or 60 years, or forward, while the run is trained or its text tokenised."""
    for jump in (-3600.0, -1.9e9, 1e9):
        for call in [3] if lab.is_short else [1, 3, 10, 30, 100]:
            for cache in ("cold", str(lab.folder / "cache")):
                yield f"{jump:.0f} seconds at call {call}", partial(clock_jumps, jump=jump, call=call, cache=cache)


def clock_jumps(lab: Lab, jump: float, call: int, cache: str) -> str:
    def prepare() -> None:
        now, calls = time.time, []

        def jumped() -> float:
            calls.append(None)
            return now() + (jump if len(calls) >= call else 0)

        time.time = jumped

    ended = run([*lab.options, f"--data.cache_dir={cache}", "--name=run"], prepare)
    assert ended.status == 0, ended.error
    assert_same_run(lab.whole, RUN)
    ended = run(["--resume=runs/run"])  # which opens the cache again
    assert ended.status == 0 and "tokenising" not in ended.error, ended.error
    return ""


def one_name(lab: Lab) -> Iterator[tuple[str, Case]]:
    for number in range(2 if lab.is_short else 10):
        yield f"{number}: started at once", partial(two_start, seed=number)
        yield f"{number}: resumed while it is trained", partial(resumed_meanwhile, seed=number)
        yield f"{number}: resumed twice", partial(two_resume, seed=number)


def two_start(lab: Lab, seed: int) -> str:
    """One of two runs of a name is trained, and is the run that it is alone; the other leaves no mark."""
    options = [*lab.options, "--name=run"]
    processes = [start(options)]
    time.sleep(random.Random(seed).uniform(0, 0.05))
    processes.append(start(options))
    return check_only_one_trained(lab, [end(process) for process in processes])


def resumed_meanwhile(lab: Lab, seed: int) -> str:
    first = start([*lab.options, "--name=run", "--trainer.max_steps=12"])
    assert wait_until((RUN / "checkpoints" / "last.ckpt").exists, first)
    os.kill(first, signal.SIGSTOP)  # as if its machine were slow
    second = run(RESUME)
    os.kill(first, signal.SIGCONT)
    return check_only_one_trained(lab, [end(first), second])


def two_resume(lab: Lab, seed: int) -> str:
    first = start([*lab.options, "--name=run"])
    assert wait_until((RUN / "checkpoints" / "last.ckpt").exists, first)
    os.kill(first, signal.SIGKILL)
    end(first)
    processes = [start(RESUME)]
    time.sleep(random.Random(seed).uniform(0, 0.05))
    processes.append(start(RESUME))
    return check_only_one_trained(lab, [end(process) for process in processes])


def check_only_one_trained(lab: Lab, ended: list[Ended]) -> str:
    assert sorted(one.status for one in ended) == [0, 2], [one.error[-1000:] for one in ended]
    assert_same_run(lab.whole, RUN)
    check_nothing_aside(RUN)
    return check_mistake(next(one for one in ended if one.status), "runs/run")


def wandb(lab: Lab) -> Iterator[tuple[str, Case]]:
    """Weights & Biases fails; the run does not."""
    for when in ("trains", "ends"):
        yield f"killed while the run {when}", partial(wandb_killed, when=when)
    yield "its folder cannot be written", wandb_unwritable


def wandb_killed(lab: Lab, when: str) -> str:
    import wandb as library

    def kill(*_) -> None:
        listed = [Path(one) for one in Path("/proc").glob("[0-9]*")]
        for one in listed:
            try:
                command, parent = (one / "cmdline").read_bytes(), (one / "stat").read_text().split()[3]
            except OSError:
                continue
            if b"wandb-core" in command and int(parent) == os.getpid():
                os.kill(int(one.name), signal.SIGKILL)
                print("killed wandb", flush=True)

    def prepare() -> None:
        if when == "trains":
            before_batch(6, kill)
        else:
            finish = library.sdk.wandb_run.Run.finish

            def killed(self, *args, **kwargs):
                kill()
                return finish(self, *args, **kwargs)

            library.sdk.wandb_run.Run.finish = killed

    process = start([*lab.options, "--name=run", "--wandb=offline"], prepare)
    assert wait_until(lambda: has_ended(process), process, seconds=120) is not None
    ended = end(process)
    assert ended.status == 0 and "Traceback" not in ended.error, ended.error
    assert "killed wandb" in ended.output, ended.output
    assert_same_run(lab.whole, RUN)
    return ended.said


def wandb_unwritable(lab: Lab) -> str:
    def occupy(module: GPTModule) -> None:
        (RUN / "wandb").write_text("a file")

    ended = run([*lab.options, "--name=run", "--wandb=offline"], partial(before_batch, 1, occupy))
    assert ended.status == 0 and "Traceback" not in ended.error, ended.error
    assert_same_run(lab.whole, RUN)
    assert "Weights & Biases failed" in ended.error, ended.error
    return ended.said
