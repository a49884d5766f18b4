"""SIGKILL, SIGTERM and Ctrl-C at random moments: the run goes on and ends in the same bits."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.faults.runs import RUN, Lab, check_nothing_aside, check_whole_files, end, run, start, watch_writes
from tests.small_runs import EVENTFUL, assert_same_run

KILLS = 10  # of one run
OPTIONS = [*EVENTFUL, "--trainer.max_steps=30"]


def cases(lab: Lab, signum: signal.Signals) -> Iterator[tuple[str, Callable[[Lab], tuple[str, int]]]]:
    number = 2 if lab.is_short else 20
    for seed in range(number):
        yield f"{signum.name} {seed}", partial(killed_and_resumed, signum=signum, seed=seed)


def killed_and_resumed(lab: Lab, signum: signal.Signals, seed: int) -> tuple[str, int]:
    """What the person saw last, and how often the run was killed."""
    draw = random.Random(f"{signum} {seed}")
    options = [*lab.options, *OPTIONS, "--name=run", f"--data.num_workers={seed % 2}"]
    said, killed, step = "nothing", 0, -1
    while killed < KILLS:
        resumes = step >= 0
        process, moment = start_and_wait(["--resume=runs/run"] if resumes else options, draw)
        if moment:
            # A terminal sends Ctrl-C to all processes of the run, loaders included; others may end its main one alone.
            (os.killpg if signum == signal.SIGINT or draw.random() < 0.5 else os.kill)(process, signum)
        ended = end(process)
        # Where the main process is gone, nobody keeps its loaders from complaining.
        assert signum == signal.SIGKILL or "Traceback" not in ended.error, ended.error
        if ended.status == 0:  # the moment never came
            step = check_and_remove(lab)
            continue
        assert ended.status in (-signum, 128 + signum), (ended.status, ended.error)
        killed += 1
        if "to continue: python train.py --resume runs/run" in ended.error:
            said = ended.said
        now = check_whole_files(RUN) if RUN.exists() else -1
        assert now >= step, f"the run was at step {step} and can be resumed from {now}"
        step = now
        if step < 0 and RUN.exists():
            refused = run(["--resume=runs/run"])
            assert refused.status == 2 and "Traceback" not in refused.error, refused.error
            shutil.rmtree(RUN)
    ended = run(["--resume=runs/run"] if step >= 0 or RUN.exists() else options)
    assert ended.status == 0, ended.error
    check_and_remove(lab)
    return said, killed


def check_and_remove(lab: Lab) -> int:
    """The finished run is the undisturbed one; gives the step from which the next run can be resumed."""
    assert_same_run(lab.folder / "runs" / "eventful", RUN)
    check_nothing_aside(RUN)
    shutil.rmtree(RUN)
    return -1


def start_and_wait(options: list[str], draw: random.Random) -> tuple[int, bool]:
    """Starts a training and waits until it is about to write its n-th file, and half of the time a little longer.

    False if it has ended before.
    """
    countdown, (there, here) = draw.randint(1, 60), os.pipe()

    def count(event: str, path: str) -> None:
        nonlocal countdown
        countdown -= 1
        if countdown == 0:
            os.write(here, b"!")

    process = start(options, lambda: watch_writes(Path("runs"), count))
    os.close(here)
    os.set_inheritable(there, False)
    readable, _, _ = select.select([there], [], [], 120)
    moment = bool(readable and os.read(there, 1))
    os.close(there)
    time.sleep(draw.choice([0, draw.uniform(0, 0.002), draw.uniform(0, 0.05)]))
    return process, moment
