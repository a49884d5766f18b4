"""Compares the speed of GlassGPT with nanoGPT and transformers, on this machine's processor or GPU.

They take turns over several rounds, each in a process of its own; one that fails is left out, unless it is GlassGPT.
Prints a table. The last line printed is a JSON object that holds the table and more. Times are wall-clock times: stop
all other programs that compute.

Install what to compare with: git clone https://github.com/karpathy/nanoGPT, pip install transformers.
"""

import argparse
import inspect
import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python scripts/...` finds model/

from model.mistakes import Mistake, check_range, file_errors
from model.runs.code import git
from model.runs.terminal import exit_status, say
from scripts.parser import Parser, choose_device

ROOT = Path(__file__).resolve().parents[1]
# Networks of nanoGPT: in its README, for a CPU; in its config/train_shakespeare_char.py; GPT-2.
SMALL = {
    "num_layers": 4,
    "num_heads": 4,
    "embed_dim": 128,
    "context_length": 64,
    "vocab_size": 65,
}
MEDIUM = {
    "num_layers": 6,
    "num_heads": 6,
    "embed_dim": 384,
    "context_length": 256,
    "vocab_size": 65,
}
LARGE = {
    "num_layers": 12,
    "num_heads": 12,
    "embed_dim": 768,
    "context_length": 1024,
    "vocab_size": 50304,
}
NAME = "{num_layers}x{embed_dim}"
# What `train` measures on each device: (network, sequences in a batch). nanoGPT's batch for MEDIUM is 64.
STEPS_OF = {
    "cpu": [(SMALL, 12), (MEDIUM, 16)],
    "cuda": [(MEDIUM, 64), (LARGE, 12)],
}
WRITER = MEDIUM | {"context_length": 1024, "vocab_size": 257}  # 256 bytes and end-of-text
NEW_TOKENS = 128
TEXTS = (1, 16)  # how many texts `generate` writes at once
# What `time_to_loss` trains on each device: (network, sequences in a batch, our steps, nanoGPT's steps).
LEARNING = {
    "cpu": (SMALL | {"dropout": 0.0}, 12, 80, 2000),
    "cuda": (MEDIUM | {"dropout": 0.2}, 64, 450, 5000),
}
# What `growth` compares: (context, layers and heads) of configs/debug.yaml, and vocabularies.
RUNS = [(64, 2), (256, 2), (1024, 2), (256, 8)]
VOCABULARIES = (2048, 50304)
WIDE = {"num_layers": 4, "num_heads": 3, "embed_dim": 192, "context_length": 128}
# What else configs/shakespeare_char.yaml says to change for the network of each device.
LEARNING_OPTIONS = {
    "cpu": [],
    "cuda": [
        "--model.gpt.ngram_sizes=[]",
        "--model.optimizer.matrix_learning_rate=0.04",
        "--model.optimizer.weight_decay=0.25",
    ],
}
CONTENDER = "import sys; from scripts.benchmarks.gpt2 import main; main(*sys.argv[1:])"

Row = dict[str, Any]
Job = dict[str, Any]  # what a contender does: a "function" of scripts/benchmarks/gpt2.py, and the options for it


@exit_status("benchmark.py")
def main(argv: list[str] | None = None) -> None:
    parser = Parser(prog="benchmark.py", description=__doc__)
    subparsers = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for function, rounds in ((train, 3), (generate, 3), (time_to_loss, 1), (growth, 1)):
        text = inspect.getdoc(function)
        subparser = subparsers.add_parser(function.__name__, help=text.splitlines()[0], description=text)
        subparser.set_defaults(function=function, nanogpt=None)
        add = subparser.add_argument
        add("--device", choices=tuple(STEPS_OF), default="cpu", help="where the networks run (default: cpu)")
        if function is not growth:
            add("--nanogpt", type=checkout, metavar="PATH", help="checkout of nanoGPT (default: leave nanoGPT out)")
        add("--rounds", type=int, default=rounds, metavar="N", help=f"how often to measure each (default: {rounds})")
        if function is time_to_loss:
            add(
                "--data",
                type=Path,
                default="tinyshakespeare.txt",
                metavar="FILE",
                help="ASCII text to train on (default: %(default)s)",
            )
            add(
                "train_options",
                nargs="*",
                metavar="-- OPTION",
                help="more options for our train.py; paths in them start at the root of the repository",
            )
    options = parser.parse_args(argv)
    check_range("--rounds", options.rounds, 1)
    choose_device(options.device)  # raises for a missing GPU, before any contender starts
    rows = options.function(options)
    machines = [row.pop("machine") for row in rows]
    say("{device}, {threads} threads:\n".format(**machines[0]))
    for row in rows:
        time = f"{row['seconds']:,.2f} s" if "seconds" in row else f"{row['milliseconds_per_step']:,.2f} ms"
        say(f"{row['work']:44} {row['contender']:16} {time:>13} {row['times_faster']:>7,.2f} times ours")
        for work in ("recording", "page"):
            if f"{work}_in_steps" in row:
                say(f"  {work:42} {row[f'{work}_in_steps']:.1f} steps")
    say("")
    commit = git("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes").strip() or None
    result = {"benchmark": options.benchmark, "machine": machines[0], "commit": commit, "rows": rows}
    say(json.dumps(result))


def checkout(folder: str) -> str:
    """Parses --nanogpt: the path of a checkout of nanoGPT, made absolute."""
    if not Path(folder, "model.py").is_file():
        raise argparse.ArgumentTypeError(f"{folder} is not a checkout of nanoGPT: it has no model.py")
    return str(Path(folder).resolve())


def train(options: argparse.Namespace) -> list[Row]:
    """Measures the time of a training step: GlassGPT with GPT-2's architecture against nanoGPT, both in the same loop.

    Takes 3 minutes on 2 CPU cores.
    """
    rows = []
    for size, batch_size in STEPS_OF[options.device]:
        work = f"training step, {NAME.format(**size)}, batches of {batch_size}x{size['context_length']}"
        job = {
            "function": "measure_step",
            "size": size,
            "batch_size": batch_size,
            "steps": 2000,
        }
        rows += compare(work, take_turns(contenders(options), job, options))
    return rows


def generate(options: argparse.Namespace) -> list[Row]:
    """Measures the time to write 128 tokens after 16: GlassGPT against nanoGPT and the GPT-2 of transformers.

    All have the same architecture and size, 6 layers of width 384, and random weights. Of the three, only nanoGPT has
    no cache of keys and values.
    Takes 4 minutes on 2 CPU cores.
    """
    rows = []
    for texts in TEXTS:
        work = f"writing {texts} x {NEW_TOKENS} tokens, {NAME.format(**WRITER)}"
        job = {
            "function": "measure_writing",
            "size": WRITER,
            "batch_size": texts,
            "new_tokens": NEW_TOKENS,
        }
        rows += compare(work, take_turns([*contenders(options), "transformers"], job, options))
    return rows


def time_to_loss(options: argparse.Namespace) -> list[Row]:
    """Measures the time to a validation loss on the characters of a text: shakespeare_char.yaml against nanoGPT.

    On a GPU, ours has the options that the comment in shakespeare_char.yaml gives. nanoGPT trains with its published
    settings. The target is the lowest loss that nanoGPT reaches in every round; without nanoGPT, the lowest loss that
    GlassGPT reaches. The clock stops during evaluation. The first three steps, in which PyTorch may compile, count as
    much as the average of the later steps. A round takes 3 minutes on 2 CPU cores; use --rounds 3 for a figure to
    publish.
    """
    size, batch_size, our_steps, their_steps = LEARNING[options.device]
    with file_errors(options.data):
        text = options.data.read_bytes()
    if not text.isascii():
        raise Mistake(f"--data {options.data} is not pure ASCII: ours reads bytes and nanoGPT characters, which differ")
    job = {
        "function": "learn_characters",
        "size": size | {"vocab_size": len(set(text))},
        "batch_size": batch_size,
        "steps": their_steps,
        "our_steps": our_steps,
        "train_options": LEARNING_OPTIONS[options.device] + options.train_options,
        "data": str(options.data.resolve()),
    }
    results = take_turns(contenders(options), job, options)
    target = max(map(lowest_loss, results.get("nanogpt", results["glassgpt"])))
    rows = {name: [reached(result, target) for result in rounds] for name, rounds in results.items()}
    return compare(f"training to {target:.3f} nats, {options.data.stem}", rows)


def growth(options: argparse.Namespace) -> list[Row]:
    """Measures what grows with the size of the work: a step, a recording, a page, the vocabulary, and tokenising.

    Steps, recordings and pages are those of configs/debug.yaml. recording_in_steps and page_in_steps say how many steps
    take as long. Takes 4 minutes on 2 CPU cores.
    """
    rows = []
    for context, heads in RUNS:
        sizes = {"context_length": context, "num_layers": heads, "num_heads": heads}
        job = {
            "function": "measure_run",
            "train_options": [f"--model.gpt.{name}={size}" for name, size in sizes.items()],
            "batch_size": 32,
            "steps": 2000,
        }
        rows += compare(f"step, context {context}, {heads} x {heads} heads", take_turns(["glassgpt"], job, options))
    for vocabulary in VOCABULARIES:
        job = {"function": "measure_step", "size": WIDE | {"vocab_size": vocabulary}, "batch_size": 16, "steps": 2000}
        rows += compare(f"step, vocabulary {vocabulary}", take_turns(["glassgpt"], job, options))
    job = {"function": "measure_tokenising"}
    return rows + compare("tokenising by bytes", take_turns(["glassgpt", "numpy"], job, options))


def reached(result: Row, target: float) -> Row:
    """Adds to `result` the time and the step of the first evaluation with a loss of `target` or less.

    Raises Mistake if there is none, as when GlassGPT does not reach nanoGPT's loss.
    """
    lowest = lowest_loss(result)
    if lowest > target:
        raise Mistake(f"ours did not reach nanoGPT's lowest loss, {target:.3f} nats: its own lowest is {lowest:.3f}")
    first = next(point for point in result["curve"] if point["loss"] <= target)
    return {
        "seconds": first["seconds"],
        "target": target,
        "lowest_loss": lowest,
        "steps_to_target": first["step"],
        **result,
    }


def lowest_loss(result: Row) -> float:
    return min(point["loss"] for point in result["curve"])


def contenders(options: argparse.Namespace) -> list[str]:
    return ["glassgpt", "nanogpt"] if options.nanogpt else ["glassgpt"]


def run(job: Job) -> Row:
    """Does a job in a new process and returns the result. Raises Mistake if its status is 2, else RuntimeError."""
    command = [sys.executable, "-c", CONTENDER, json.dumps(job)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    errors = process.stderr.strip().splitlines() or ["it wrote nothing"]
    if process.returncode == 2:
        raise Mistake(errors[-1])
    if process.returncode:
        say("\n".join(errors[-30:]), sys.stderr)
        raise RuntimeError(f"it ended with exit status {process.returncode}: {errors[-1]}")
    return json.loads(process.stdout.splitlines()[-1])


def take_turns(names: Sequence[str], job: Job, options: argparse.Namespace) -> dict[str, list[Row]]:
    """Lets each contender do the job once a round, so that a time in which the machine is slow affects all of them.

    A peer that fails is left out, with a message. Raises RuntimeError if ours fails: nothing could be compared.
    """
    results: dict[str, list[Row]] = {name: [] for name in names}
    job = job | {"device": options.device, "checkout": options.nanogpt}
    for seed in range(options.rounds):
        for name in list(results):
            say(f"round {seed + 1}/{options.rounds}  {name}", sys.stderr)
            try:
                results[name].append(run(job | {"contender": name, "seed": seed}))
            except RuntimeError as error:
                if name == "glassgpt":
                    raise
                say(f"{name} is left out: {error}", sys.stderr)
                del results[name]
    return results


def compare(work: str, results: Mapping[str, list[Row]]) -> list[Row]:
    """Makes a row for each contender: the result of its first round, with the median time of all rounds.

    times_faster: the contender's time divided by ours, per round, in which the machine is in the same state for both;
    then the median over the rounds.
    """
    unit = "seconds" if "seconds" in results["glassgpt"][0] else "milliseconds_per_step"
    times = {name: [result[unit] for result in rounds] for name, rounds in results.items()}
    rows = []
    for name, theirs in times.items():
        ratios = [their_time / our_time for their_time, our_time in zip(theirs, times["glassgpt"], strict=True)]
        row = {
            "work": work,
            "contender": name,
            **results[name][0],
            unit: statistics.median(theirs),
            f"{unit}_of_rounds": theirs,
            "times_faster": statistics.median(ratios),
        }
        rows.append(row)
    return rows


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # to die at once would leave the contender running
    sys.exit(main())
