"""Compares the speed of GlassGPT with nanoGPT and transformers, on this machine's processor or GPU.

They take turns over several rounds, each in a process of its own; one that fails is left out, unless it is GlassGPT.
Prints a table. The last line printed is a JSON object that holds the table and more. Times are wall-clock times: stop
all other programs that compute.

Install what to compare with: git clone https://github.com/karpathy/nanoGPT, pip install transformers.
"""

import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python scripts/...` finds model/

from model.mistakes import Mistake, check_range, file_errors
from model.runs.code import git
from model.runs.terminal import exit_status, say
from scripts.parser import read_command

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
# What `time_to_loss` trains on each device. train_options: what else configs/shakespeare_char.yaml says to change.
LEARNING = {
    "cpu": {
        "size": SMALL | {"dropout": 0.0},
        "batch_size": 12,
        "our_steps": 80,
        "steps": 2000,
        "train_options": [],
    },
    "cuda": {
        "size": MEDIUM | {"dropout": 0.2},
        "batch_size": 64,
        "our_steps": 450,
        "steps": 5000,
        "train_options": [
            "--model.gpt.ngram_sizes=[]",
            "--model.optimizer.matrix_learning_rate=0.04",
            "--model.optimizer.weight_decay=0.25",
        ],
    },
}
# What `growth` compares: (context, layers and heads) of configs/debug.yaml, and vocabularies.
RUNS = [(64, 2), (256, 2), (1024, 2), (256, 8)]
VOCABULARIES = (2048, 50304)
WIDE = {"num_layers": 4, "num_heads": 3, "embed_dim": 192, "context_length": 128}
# What the table shows of a row, if the row has it.
FIGURES = ("seconds", "milliseconds_per_step", "times_faster", "steps_to_target", "recording_in_steps", "page_in_steps")

Device = Literal["cpu", "cuda"]
Row = dict[str, Any]


@exit_status
def main(argv: list[str] | None = None) -> None:
    benchmarks = {function.__name__: function for function in (train, generate, time_to_loss, growth)}
    options = read_command(benchmarks, argv, __doc__)
    benchmark = options.pop("command")
    rows = benchmarks[benchmark](**options)
    machine, *_ = [row.pop("machine") for row in rows]
    say("{device}, {threads} threads:\n".format(**machine))
    for row in rows:
        figures = [f"{name} {row[name]:,.2f}" for name in FIGURES if name in row]
        say(f"{row['work']:44} {row['contender']:12} {', '.join(figures)}")
    commit = git("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes").strip() or None
    say("\n" + json.dumps({"benchmark": benchmark, "machine": machine, "commit": commit, "rows": rows}))


def train(*, device: Device = "cpu", nanogpt: Path | None = None, rounds: int = 3) -> list[Row]:
    """Measures the time of a training step: GlassGPT with GPT-2's architecture against nanoGPT, both in the same loop.

    Takes 3 minutes on 2 CPU cores.

    Args:
        device: where the networks run
        nanogpt: checkout of nanoGPT (default: leave nanoGPT out)
        rounds: how often to measure each
    """
    rows = []
    for size, batch_size in STEPS_OF[device]:
        job = {"function": "measure_step", "size": size, "batch_size": batch_size}
        work = f"training step, {NAME.format(**size)}, batches of {batch_size}x{size['context_length']}"
        rows += compare(work, take_turns(["glassgpt", "nanogpt"], job, device, nanogpt, rounds))
    return rows


def generate(*, device: Device = "cpu", nanogpt: Path | None = None, rounds: int = 3) -> list[Row]:
    """Measures the time to write 128 tokens after 16: GlassGPT against nanoGPT and the GPT-2 of transformers.

    All have the same architecture and size, 6 layers of width 384, and random weights. Of the three, only nanoGPT has
    no cache of keys and values.
    Takes 4 minutes on 2 CPU cores.

    Args:
        device: where the networks run
        nanogpt: checkout of nanoGPT (default: leave nanoGPT out)
        rounds: how often to measure each
    """
    rows = []
    for texts in TEXTS:
        job = {"function": "measure_writing", "size": WRITER, "batch_size": texts, "new_tokens": NEW_TOKENS}
        results = take_turns(["glassgpt", "nanogpt", "transformers"], job, device, nanogpt, rounds)
        rows += compare(f"writing {texts} x {NEW_TOKENS} tokens, {NAME.format(**WRITER)}", results)
    return rows


def time_to_loss(
    train_options: list[str] | None = None,
    *,
    device: Device = "cpu",
    nanogpt: Path | None = None,
    rounds: int = 1,
    data: str = "tinyshakespeare.txt",
) -> list[Row]:
    """Measures the time to a validation loss on the characters of a text: shakespeare_char.yaml against nanoGPT.

    On a GPU, ours has the options that the comment in shakespeare_char.yaml gives. nanoGPT trains with its published
    settings. The target is the lowest loss that nanoGPT reaches in every round; without nanoGPT, the lowest loss that
    GlassGPT reaches. The clock stops during evaluation. The steps before the first of 20 evaluations, in which PyTorch
    may compile, count as much as the average of the later steps. A round takes 3 minutes on 2 CPU cores; use --rounds 3
    for a figure to publish.

    Args:
        train_options: after --, more options for our train.py; paths in them start at the root of the repository
        device: where the networks run
        nanogpt: checkout of nanoGPT (default: leave nanoGPT out)
        rounds: how often to measure each
        data: ASCII text to train on
    """
    path = Path(data)
    with file_errors(path):
        text = path.read_bytes()
    if not text.isascii():
        raise Mistake(f"--data {data} is not pure ASCII: ours reads bytes and nanoGPT characters, which differ")
    job = LEARNING[device] | {"function": "learn_characters", "data": str(path.resolve())}
    job["train_options"] = job["train_options"] + (train_options or [])
    results = take_turns(["glassgpt", "nanogpt"], job, device, nanogpt, rounds)
    target = max(map(lowest_loss, results.get("nanogpt", results["glassgpt"])))
    rows = {name: [reached(result, target) for result in of_rounds] for name, of_rounds in results.items()}
    return compare(f"training to {target:.3f} nats, {path.stem}", rows)


def growth(*, device: Device = "cpu", rounds: int = 1) -> list[Row]:
    """Measures what grows with the size of the work: a step, a recording, a page, the vocabulary, and tokenising.

    Steps, recordings and pages are those of configs/debug.yaml. recording_in_steps and page_in_steps say how many steps
    take as long. Takes 4 minutes on 2 CPU cores.

    Args:
        device: where the networks run
        rounds: how often to measure each
    """
    ours, rows = ["glassgpt"], []
    for context, heads in RUNS:
        sizes = {"context_length": context, "num_layers": heads, "num_heads": heads}
        options = [f"--model.gpt.{name}={size}" for name, size in sizes.items()]
        job = {"function": "measure_run", "train_options": options, "batch_size": 32}
        rows += compare(
            f"step, context {context}, {heads} x {heads} heads", take_turns(ours, job, device, None, rounds)
        )
    for vocabulary in VOCABULARIES:
        job = {"function": "measure_step", "size": WIDE | {"vocab_size": vocabulary}, "batch_size": 16}
        rows += compare(f"step, vocabulary {vocabulary}", take_turns(ours, job, device, None, rounds))
    job = {"function": "measure_tokenising"}
    return rows + compare("tokenising by bytes", take_turns([*ours, "numpy"], job, device, None, rounds))


def reached(result: Row, target: float) -> Row:
    """Adds to `result` the time and the step of the first evaluation with a loss of `target` or less.

    Raises Mistake if there is none, as when GlassGPT does not reach nanoGPT's loss.
    """
    for point in result["curve"]:
        if point["loss"] <= target:
            return {"seconds": point["seconds"], "steps_to_target": point["step"], **result}
    raise Mistake(
        f"ours did not reach nanoGPT's lowest loss, {target:.3f} nats: its own lowest is {lowest_loss(result):.3f}"
    )


def lowest_loss(result: Row) -> float:
    return min(point["loss"] for point in result["curve"])


def run(job: Row) -> Row:
    """Does a job in a new process, which says itself what goes wrong. Exits if train.py refuses an option."""
    command = [sys.executable, "-m", "scripts.benchmarks.gpt2", json.dumps(job)]
    process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if process.returncode == 2:
        sys.exit(2)
    process.check_returncode()
    return json.loads(process.stdout.splitlines()[-1])


def take_turns(
    names: Sequence[str], job: Row, device: Device, nanogpt: Path | None, rounds: int
) -> dict[str, list[Row]]:
    """Lets each contender do the job once a round, so that a time in which the machine is slow affects all of them.

    A peer that fails is left out, with a message. Raises CalledProcessError if ours fails: nothing could be compared.

    job: the "function" of scripts/benchmarks/gpt2.py that measures, and the options for it.
    """
    from model.kernels import check_device

    check_range("--rounds", rounds, 1)
    check_device("--device", device)
    if nanogpt and not (nanogpt / "model.py").is_file():
        raise Mistake(f"--nanogpt {nanogpt} is not a checkout of nanoGPT: it has no model.py")
    job = job | {"device": device, "checkout": nanogpt and str(nanogpt.resolve())}
    results: dict[str, list[Row]] = {name: [] for name in names if nanogpt or name != "nanogpt"}
    for seed in range(rounds):
        for name in list(results):
            say(f"round {seed + 1}/{rounds}  {name}", sys.stderr)
            try:
                results[name].append(run(job | {"contender": name, "seed": seed}))
            except subprocess.CalledProcessError as error:
                if name == "glassgpt":
                    raise
                say(f"{name} is left out: it ended with exit status {error.returncode}", sys.stderr)
                del results[name]
    return results


def compare(work: str, results: dict[str, list[Row]]) -> list[Row]:
    """Makes a row for each contender: the result of its first round, with the median time of all rounds.

    times_faster: the contender's time divided by ours, per round, in which the machine is in the same state for both;
    then the median over the rounds.
    """
    unit = "seconds" if "seconds" in results["glassgpt"][0] else "milliseconds_per_step"
    times = {name: [result[unit] for result in rounds] for name, rounds in results.items()}
    rows = []
    for name, theirs in times.items():
        ratios = [their_time / our_time for their_time, our_time in zip(theirs, times["glassgpt"], strict=True)]
        row = {"work": work, "contender": name, **results[name][0], f"{unit}_of_rounds": theirs}
        rows.append(row | {unit: statistics.median(theirs), "times_faster": statistics.median(ratios)})
    return rows


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # to die at once would leave the contender running
    sys.exit(main())
