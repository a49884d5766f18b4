"""Every contender runs in a process of its own: allocator, threads and compiled code are then nobody else's.

The process that alternates them imports no torch.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Turn(NamedTuple):
    """One go of one contender.

    Attributes:
        number: of the round, from 0 on; the seed.
        cache: folder for what this contender compiles: empty in its first round, and its own in all.
    """

    number: int
    cache: str


def run_job(function: str, options: dict[str, Any], cache: str | None = None) -> dict[str, Any]:
    """What `function` ("module:name" below scripts.benchmarks) returns for `options`, in a new process.

    Raises:
        ValueError: where it ends with status 2, a mistake; the message is its sentence.
        RuntimeError: where it fails otherwise; the message is the end of what it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "result.json")
        return _run(["-m", "scripts.benchmarks.job", function, json.dumps(options), str(output)], output, cache)


def config_path(typed: str) -> Path:
    """A config of train.py: a file from here, or else from the repository's root, as the defaults are spelled."""
    return Path(typed).resolve() if Path(typed).exists() else ROOT / typed


def one_device(device: str) -> dict[str, Any]:
    """What makes train.py use `device`, cpu or cuda, and one of it."""
    return {"trainer.accelerator": "gpu" if device == "cuda" else "cpu", "trainer.devices": 1}


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """Options as the command line has them."""
    return [f"--{name}={value}" for name, value in arguments.items()]


def run_training(
    callback: str, options: dict[str, Any], arguments: Mapping[str, Any], extra: list[str], cache: str | None = None
) -> dict[str, Any]:
    """What a callback of ours measures in `python train.py ARGUMENTS`; raises as `run_job`.

    Args:
        callback: its name in scripts.benchmarks.callbacks.
        options: its arguments, but for `output`.
        arguments: options of train.py, such as {"trainer.devices": 1}.
        extra: more of them, as a person has typed them; they come behind and so win.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "result.json")
        callbacks = [
            {"class_path": f"scripts.benchmarks.callbacks.{callback}", "init_args": {"output": str(output), **options}}
        ]
        command = [
            "train.py",
            *flags(arguments),
            *extra,
            "--wandb=disabled",
            f"--trainer.callbacks={json.dumps(callbacks)}",
        ]
        return _run(command, output, cache)


def _run(arguments: list[str], output: Path, cache: str | None) -> dict[str, Any]:
    """Runs Python in the repository's root; returns the JSON that it leaves in `output`."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor", "TRITON_CACHE_DIR": f"{cache}/triton"} if cache else {}
    process = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | caches,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = process.stdout.strip().splitlines()
    if process.returncode == 2:
        raise ValueError(lines[-1] if lines else f"{arguments[0]} stopped with status 2")
    if process.returncode or not output.exists():
        shown = "\n".join(lines[-30:])
        raise RuntimeError(f"python {' '.join(arguments)}\nstopped with status {process.returncode}:\n{shown}")
    return json.loads(output.read_text())


def alternate(
    jobs: Mapping[str, Callable[[Turn], dict[str, Any]]], rounds: int, patience: float | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Runs every job once, then every job again, ...: what slows the machine down meanwhile meets all of them.

    Args:
        jobs: a name to what runs.
        patience: a job whose result says `seconds` above this is not run again.
    """
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in jobs}
    with tempfile.TemporaryDirectory() as caches:
        for number in range(rounds):
            for name, job in jobs.items():
                if patience and any(result["seconds"] > patience for result in results[name]):
                    continue
                print(f"round {number + 1}/{rounds}  {name}", file=sys.stderr, flush=True)
                results[name].append(job(Turn(number, f"{caches}/{name}")))
    return results


def median(results: list[dict[str, Any]], key: str) -> float | None:
    """The median of one figure over the rounds; None where a round has none."""
    values = [result[key] for result in results]
    return None if None in values else statistics.median(values)


def fastest_of_ours(results: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]] | None:
    """The rounds of that contender of ours whose median of seconds is the least; None where none took part."""
    ours = [rounds for name, rounds in results.items() if name.startswith("glassgpt")]
    # Who did not get there, None, comes last.
    return min(ours, key=lambda rounds: median(rounds, "seconds") or math.inf, default=None)


def times_faster(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], key: str = "seconds") -> float | None:
    """The median over the rounds of their time by ours; both of a round met the same machine."""
    pairs = [(theirs[key], ours[key]) for ours, theirs in zip(ours, theirs, strict=False)]
    return None if any(None in pair for pair in pairs) else statistics.median(their / our for their, our in pairs)
