"""The contender protocol: each runs in a process of its own, in turn, and their times are compared round by round.

A contender is a name, such as "nanogpt+compile", and a function (seed, folder) -> arguments of Python: the command of
one round. The command runs in the repository's root, may use the folder, and leaves `result.json` there, an object:

    seconds or milliseconds_per_step    the time that is compared
    tokens                              how many it trains on or writes in that time (optional)
    parameters, precision, machine      of measuring.py, and what else describes the work

The processes of `overhead` measure two contenders at once: their object holds a list of such objects for each.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from operator import truediv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from model.runs.mistakes import exit_status

ROOT = Path(__file__).resolve().parents[2]
GPT2_RECIPE = "scripts/benchmarks/gpt2_adamw.yaml"
WARM_UP = 3  # steps
OURS = ("glassgpt", "trainer", "with maps")  # what the others are compared with

Command = Callable[[int, Path], list[str]]
Row = dict[str, Any]


def parse_size(text: str) -> tuple[int, dict[str, int]]:
    """The size of a batch and fields of GPTConfig; ValueError if `text` is not written as a size is."""
    match = re.fullmatch(r"(\d+)x(\d+)x(\d+)/(\d+)x(\d+)/(\d+)", text)
    numbers = [int(number) for number in match.groups()] if match else [0]
    if 0 in numbers:
        raise ValueError(f"{text!r} is not a size: write LAYERSxHEADSxWIDTH/BATCHxCONTEXT/VOCABULARY, all above 0")
    layers, heads, width, batch_size, context, vocabulary = numbers
    if width % heads:
        raise ValueError(f"in the size {text!r} the width {width} is not a multiple of the {heads} heads")
    size = {"num_layers": layers, "num_heads": heads, "embed_dim": width, "context_length": context}
    return batch_size, size | {"vocab_size": vocabulary}


def present(names: Sequence[str], nanogpt: str | None, notes: list[str]) -> list[str]:
    """Those of `names` that can take part; `notes` gets the reason for each that cannot, ValueError if none can."""
    missing = {} if nanogpt else {"nanogpt": "set --nanogpt to a checkout of it"}
    if find_spec("transformers") is None:
        missing["transformers"] = "it is not installed"
    if find_spec("llama_cpp") is None or find_spec("gguf") is None:
        missing["llama.cpp"] = "pip install gguf llama-cpp-python"
    absent = {name: reason for name in names if (reason := missing.get(name.split("+")[0]))}
    notes.extend(f"{name} is left out: {reason}" for name, reason in absent.items())
    if len(absent) == len(names):
        raise ValueError(f"no contender is left to measure: {'; '.join(notes)}")
    return [name for name in names if name not in absent]


def call(function: str, **arguments: Any) -> Command:
    """The command that calls a `function` of gpt2.py with a namespace of `arguments` and the round's `seed`."""
    module = ["-m", "scripts.benchmarks.contenders", function]
    return lambda seed, folder: [*module, json.dumps({**arguments, "seed": seed}), str(folder)]


def fit(callback: str, config: str, device: str, options: Sequence[str], **arguments: Any) -> Command:
    """The command `python train.py` with a class of measuring.py, which gets `arguments` and calls `leave_result`."""
    config = Path(config).resolve() if Path(config).exists() else config  # found from here, or in the repository
    accelerator = "gpu" if device == "cuda" else "cpu"
    own = ["train.py", f"--config={config}", f"--trainer.accelerator={accelerator}", "--trainer.devices=1"]

    def command(seed: int, folder: Path) -> list[str]:
        init_args = {"output": str(folder), **arguments}
        callbacks = json.dumps([{"class_path": f"scripts.benchmarks.measuring.{callback}", "init_args": init_args}])
        of_round = [f"--seed_everything={seed}", f"--trainer.default_root_dir={folder}", "--wandb=disabled"]
        return [*own, *of_round, *options, f"--trainer.callbacks={callbacks}"]

    return command


def leave_result(folder: str, figures: dict[str, Any]) -> None:
    """What a contender's process calls at its end."""
    Path(folder, "result.json").write_text(json.dumps(figures))


def run(command: Command, seed: int = 0) -> Row:
    """What a new process measures; ValueError if it ends with status 2, for a mistake, RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, *command(seed, Path(folder))]
        process = subprocess.run(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        result, lines = Path(folder, "result.json"), process.stdout.strip().splitlines()
        if process.returncode == 2 and lines:
            raise ValueError(lines[-1])
        if process.returncode or not result.exists():
            raise RuntimeError(
                "\n".join([" ".join(arguments), f"ended with status {process.returncode}:", *lines[-30:]])
            )
        return json.loads(result.read_text())


def alternate(contenders: Mapping[str, Command], rounds: int) -> dict[str, list[Row]]:
    """Runs every contender once, then every contender again, so that a slow spell of the machine meets all of them."""
    results: dict[str, list[Row]] = {name: [] for name in contenders}
    for seed in range(rounds):
        for name, command in contenders.items():
            print(f"round {seed + 1}/{rounds}  {name}", file=sys.stderr, flush=True)
            results[name].append(run(command, seed))
    return results


def compare(work: str, results: Mapping[str, list[Row]], same: Sequence[str] = ()) -> list[Row]:
    """A row for each contender of `work`: fractions are medians over the rounds, the rest is the first's.

    `times_faster` is the median over the rounds of its time divided by ours, since the contenders of one round met
    the same state of the machine. Of several contenders that are ours the fastest counts. A time of None means that
    the contender did not reach its goal. RuntimeError if the rows do not agree in the keys `same`.
    """
    time = "seconds" if "seconds" in next(iter(results.values()))[0] else "milliseconds_per_step"
    ours = [rounds for name, rounds in results.items() if name.split("+")[0] in OURS]
    fastest = min(ours, key=lambda rounds: median(rounds, time) or math.inf, default=[])
    our_times, rows = [result[time] for result in fastest], []
    for name, rounds in results.items():
        times = [result[time] for result in rounds]
        medians = {key: median(rounds, key) for key in rounds[0]}
        row = {"work": work, "contender": name, **medians, f"{time}_of_rounds": times}
        if "tokens" in row:
            row["tokens_per_second"] = row["tokens"] / row[time] * (1 if time == "seconds" else 1000)
        ratios = None if None in (*times, *our_times) else list(map(truediv, times, our_times))
        row["times_faster"] = statistics.median(ratios) if ratios else None
        rows.append(row)
    for key in same:
        if len({row[key] for row in rows}) > 1:
            amounts = ", ".join(f"{row['contender']} {row[key]}" for row in rows)
            raise RuntimeError(f"the contenders differ in {key}, so their times cannot be compared: {amounts}")
    return rows


def median(rounds: Sequence[Row], key: str) -> Any:
    """The median of a fraction over the rounds, None if a round has none; of anything else the first round's value."""
    values = [result[key] for result in rounds]
    if None in values:
        return None
    return statistics.median(values) if isinstance(values[0], float) else values[0]


@exit_status("a contender")
def main(function: str, arguments: str, folder: str) -> None:
    """What `call` starts; returns the exit status, 2 for a mistake."""
    from scripts.benchmarks import gpt2  # only here: it imports torch

    leave_result(folder, getattr(gpt2, function)(SimpleNamespace(**json.loads(arguments))))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
