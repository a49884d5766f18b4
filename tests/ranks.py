"""Processes of a training or two, forked from one that has imported what they need, as importing takes seconds."""

import multiprocessing
import os
import runpy
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.small_runs import REPOSITORY

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["train"])


def run_ranks(target: Callable[..., int | None], *arguments) -> None:
    """Calls the target in both, in this folder and as a launcher of distributed trainings does; both must end well."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1]), "WORLD_SIZE": "2"}
    ranks = [address | {"RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    processes = [started(run_rank, rank, Path.cwd(), target, arguments) for rank in ranks]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]


def run_program(command: list[str]) -> None:
    """train.py as a person starts it in this folder, who leaves the second process to Lightning; it must end well."""
    process = started(as_program, Path.cwd(), command)
    process.join()
    assert process.exitcode == 0


def as_program(folder: Path, command: list[str]) -> None:
    os.chdir(folder)
    sys.argv = [str(REPOSITORY / "train.py"), *command]
    runpy.run_path(sys.argv[0], run_name="__main__")


def started(target: Callable[..., int | None], *arguments) -> multiprocessing.Process:
    process = SERVER.Process(target=target, args=arguments)
    with pytest.MonkeyPatch.context() as patch:  # of the server, which is started with the first process
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        patch.setenv("OMP_NUM_THREADS", "1")
        process.start()
    return process


def run_rank(environment: dict[str, str], folder: Path, target: Callable[..., int | None], arguments: tuple) -> None:
    os.environ |= environment
    os.chdir(folder)
    os._exit(target(*arguments) or 0)  # gloo's threads may abort a process that ends before them
