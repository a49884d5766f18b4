"""Trains in processes that are killed (SIGKILL) and resumed until the run is done; a program for test_train.py.

    python kill_and_resume.py NAME SEED KILLS TRAINING_OPTION...

Half of the kills wait for a moment in which a checkpoint is being written. Every process is forked from this one,
which has imported everything, because starting afresh costs a hundred times as much. Its last line is the number of
kills; its exit status that of the last process.
"""

import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from train import main


def start(options: list[str]) -> int:
    process = os.fork()
    if process == 0:
        os.setpgid(0, 0)  # to be killed together with its loader processes
        os._exit(main(options))
    with suppress(PermissionError):
        os.setpgid(process, process)
    return process


def written(checkpoints: Path) -> int | None:
    with suppress(FileNotFoundError):
        return (checkpoints / "last.ckpt").stat().st_mtime_ns
    return None


def exit_status(process: int, *, wait: bool) -> int | None:
    ended, status = os.waitpid(process, 0 if wait else os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def kill_after(process: int, checkpoints: Path, saves: int, while_writing: bool) -> int | None:
    """Kills the process once it has saved so often; gives its exit status if it has ended before."""
    last = written(checkpoints)
    while True:
        if (status := exit_status(process, wait=False)) is not None:
            return status
        if (now := written(checkpoints)) not in (last, None):
            last, saves = now, saves - 1
        if saves <= 0 and (not while_writing or any(checkpoints.glob(".*.aside"))):
            os.killpg(process, signal.SIGKILL)
            exit_status(process, wait=True)
            return None
        time.sleep(0.0002)


def run(name: str, seed: int, kills: int, options: list[str]) -> int:
    draw = random.Random(seed)
    checkpoints = Path("runs", name, "checkpoints")
    process = start([*options, f"--name={name}"])
    for killed in range(kills):
        status = kill_after(process, checkpoints, draw.randint(1, 3), draw.random() < 0.5)
        if status is not None:
            print(killed)
            return status
        process = start([f"--resume=runs/{name}"])
    status = exit_status(process, wait=True)
    print(kills)
    return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
