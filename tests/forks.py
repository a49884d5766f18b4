"""Processes forked from one that has imported everything and run nothing, because importing takes seconds.

A Python program that is started in one of them is a fork, too.
"""

import logging
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch

requests = None  # the tests' end of a socket to the process that forks


def start_server() -> None:
    """To be called before the first test, as threads cannot be forked: forks a process that serves until this ends."""
    global requests
    if not hasattr(os, "fork"):  # on Windows
        return
    requests, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        return
    requests.close()
    logging.getLogger().handlers.clear()  # pytest's
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that `keep`
    while handles := socket.recv_fds(theirs, 1, 1)[1]:
        if not os.fork():
            keep(Connection(*handles))
        os.close(*handles)
    os._exit(0)


def keep(tests: Connection) -> None:
    """Tells the tests the number of the process that makes their call, and then how it ended and what it wrote."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    subprocess.Popen = Program
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            write_to(output.fileno(), output.fileno())
            folder, target, arguments = tests.recv()
            os.chdir(folder)
            process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
            process.start()
            tests.send(process.pid)
            process.join()
            output.seek(0)
            tests.send((process.exitcode, output.read()))
        finally:
            os._exit(0)


class Forked:
    """A process that calls a function in this folder."""

    def __init__(self, target: Callable[..., object], *arguments):
        self.keeper, theirs = multiprocessing.Pipe()
        socket.send_fds(requests, [b"0"], [theirs.fileno()])
        theirs.close()
        self.keeper.send((Path.cwd(), target, arguments))
        self.pid = self.keeper.recv()

    def status(self) -> int:
        """How it ended, when it has or after two minutes; what it wrote is in the output of the test."""
        if not self.keeper.poll(120):  # such as when a library's threads were there before the fork
            os.kill(self.pid, signal.SIGKILL)
        status, written = self.keeper.recv()
        print(written)
        return status


def run_forked(target: Callable[..., object], *arguments) -> None:
    """The call must end well."""
    assert Forked(target, *arguments).status() == 0


def run_ranks(target: Callable[..., int | None], *arguments) -> None:
    """Calls the target in two, as a launcher of distributed trainings does; both must end well."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1]), "WORLD_SIZE": "2"}
    ranks = [Forked(run_rank, address | {"RANK": rank, "LOCAL_RANK": rank}, target, arguments) for rank in "01"]
    assert [rank.status() for rank in ranks] == [0, 0]


def run_rank(environment: dict[str, str], target: Callable[..., int | None], arguments: tuple) -> None:
    os.environ |= environment
    os._exit(target(*arguments) or 0)  # gloo's threads may abort a process that ends before them


def write_to(output: int, error: int) -> None:
    os.dup2(output, 1)
    os.dup2(error, 2)
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1, closefd=False) for stream in (1, 2))


class Program(subprocess.Popen):
    """A program, or code, of Python in a fork of this process."""

    def __init__(self, command: list, env: dict[str, str] | None = None, **options):
        super().__init__(command, env=env, preexec_fn=lambda: become([*map(str, command[1:])], env), **options)


def become(command: list[str], environment: dict[str, str] | None) -> None:
    os.closerange(3, 2**12)  # a new program would not have these either, and one tells that this has begun
    os.environ |= environment or {}
    write_to(1, 2)
    try:
        if command[0] == "-c":
            sys.argv = ["-c", *command[2:]]
            exec(command[1], {"__name__": "__main__"})
        else:
            sys.argv = command
            runpy.run_path(command[0], run_name="__main__")
        os._exit(0)
    except SystemExit as ended:
        os._exit(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
