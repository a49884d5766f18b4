"""Measures GlassGPT beside its peers on this machine's processor, or on its GPU.

Each contender runs in a process of its own, in turn, over several rounds; one that fails is left out. Prints a table,
and as the last line the same and more as JSON. Times are wall-clock time: close everything else that computes.

The peers are not part of this project: git clone https://github.com/karpathy/nanoGPT, pip install transformers.
"""

import argparse
import inspect
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file too

from model.mistakes import Mistake, file_errors
from model.runs.exit_status import exit_status
from scripts.parser import Parser, whole_number

ROOT = Path(__file__).resolve().parents[1]
# Those of nanoGPT's README for a CPU and of its config.
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
# The networks that are trained, and the sequences in a batch: on a CPU fewer than in nanoGPT's config.
STEPS_OF = {
    "cpu": [(SMALL, 12), (MEDIUM, 16)],
    "cuda": [(MEDIUM, 64), (LARGE, 12)],
}
SECONDS = 5.0  # of training in each round, at least
WRITER = MEDIUM | {"context_length": 1024, "vocab_size": 257}  # every byte, and an end of text
PROMPT_TOKENS = 16
NEW_TOKENS = 128
TEXTS = (1, 16)  # written at once
# The network, its dropout, a batch, our steps and the peer's.
LEARNING = {
    "cpu": (SMALL, 0.0, 12, 80, 2000),
    "cuda": (MEDIUM, 0.2, 64, 600, 5000),
}
REASONS = {
    "nanogpt": "set --nanogpt to a checkout of it",
    "transformers": "pip install transformers",
}
CONTENDER = "import sys; from scripts.benchmarks.gpt2 import main; main(*sys.argv[1:])"

Row = dict[str, Any]
Job = dict[str, Any]  # `function`, one of scripts/benchmarks/gpt2.py, and what it reads


@exit_status("benchmark.py")
def main(argv: list[str] | None = None) -> int | None:
    """Runs the command line; returns the exit status: 0, 1 if ours fails, 2 for a mistake, 130 for Ctrl-C."""
    parser = Parser(prog="benchmark.py", description=__doc__)
    subparsers = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK", parser_class=Parser)
    for function, rounds in ((train, 3), (generate, 3), (time_to_loss, 1)):
        text = inspect.getdoc(function)
        subparser = subparsers.add_parser(function.__name__, help=text.splitlines()[0], description=text)
        subparser.set_defaults(function=function)
        add = subparser.add_argument
        add("--device", choices=tuple(STEPS_OF), default="cpu", help="where networks are (default: cpu)")
        add("--nanogpt", type=checkout, metavar="PATH", help="checkout of nanoGPT (default: it does not take part)")
        turns = f"turns of each contender (default: {rounds})"
        add("--rounds", type=whole_number, default=rounds, metavar="N", help=turns)
        if function is time_to_loss:
            usual = Path("tinyshakespeare.txt")
            add("--data", type=Path, default=usual, metavar="FILE", help=f"ASCII text (default: {usual})")
            add("train_options", nargs="*", metavar="-- OPTION", help="for our train.py, paths from the repository")
    options = parser.parse_args(argv)
    try:
        rows = options.function(options)
    except RuntimeError as error:
        print(f"benchmark.py: {error}", file=sys.stderr)
        return 1
    machines = [row.pop("machine") for row in rows]
    print("{device}, {threads} threads:\n".format(**machines[0]))
    for row in rows:
        seconds, milliseconds = row.get("seconds"), row.get("milliseconds_per_step")
        time = f"{milliseconds:,.2f} ms" if milliseconds else figure(seconds, " s")
        print(f"{row['work']:44} {row['contender']:16} {time:>13} {figure(row['times_faster']):>7} times ours")
    print()
    result = {
        "benchmark": options.benchmark,
        "machine": machines[0],
        "commit": commit(),
        "rows": rows,
    }
    print(json.dumps(result))


def figure(value: float | None, unit: str = "") -> str:
    """A dash for a loss that was not reached."""
    return "-" if value is None else f"{value:,.2f}{unit}"


def checkout(folder: str) -> str:
    """For `type=` of an option."""
    if not Path(folder, "model.py").is_file():
        raise argparse.ArgumentTypeError(f"{folder} is not a checkout of nanoGPT: it has no model.py")
    return str(Path(folder).resolve())


def train(options: argparse.Namespace) -> list[Row]:
    """Time of a training step: our GPT in GPT-2's architecture against nanoGPT, each in a bare loop.

    3 minutes on 2 CPU cores.
    """
    names = contenders(nanogpt=options.nanogpt)
    rows = []
    for size, batch_size in STEPS_OF[options.device]:
        job = {
            "device": options.device,
            "function": "measure_step",
            "checkout": options.nanogpt,
            "size": size,
            "batch_size": batch_size,
            "seconds": SECONDS,
            "steps": 2000,
        }
        results = take_turns(dict.fromkeys(names, job), options.rounds)
        work = f"training step, {NAME.format(**size)}, batches of {batch_size}x{size['context_length']}"
        rows += compare(work, results, same=("parameters", "tokens"))
    return rows


def generate(options: argparse.Namespace) -> list[Row]:
    """Time to write 128 tokens after 16: ours, nanoGPT, and GPT-2 of `transformers` with its cache.

    All have the same architecture and size, 6 layers of width 384, and random weights. nanoGPT has no cache.
    4 minutes on 2 CPU cores.
    """
    names = contenders(nanogpt=options.nanogpt, transformers=find_spec("transformers"))
    rows = []
    for texts in TEXTS:
        job = {
            "device": options.device,
            "function": "measure_writing",
            "checkout": options.nanogpt,
            "size": WRITER,
            "batch_size": texts,
            "prompt_tokens": PROMPT_TOKENS,
            "new_tokens": NEW_TOKENS,
        }
        results = take_turns(dict.fromkeys(names, job), options.rounds)
        work = f"writing {texts} x {NEW_TOKENS} tokens, {NAME.format(**WRITER)}"
        rows += compare(work, results, same=("parameters", "tokens"))
    return rows


def time_to_loss(options: argparse.Namespace) -> list[Row]:
    """Time to a validation loss on the characters of a text: configs/shakespeare_char.yaml against nanoGPT.

    nanoGPT has its published settings. The target is its lowest loss, of the seed in which that is highest; without
    it, our own. The clock stops for evaluation, and the first three steps, in which PyTorch may compile, count as long
    as the later ones. A round takes 3 minutes on 2 CPU cores; to publish a figure take --rounds 3.
    """
    size, dropout, batch_size, our_steps, their_steps = LEARNING[options.device]
    with file_errors(options.data):
        text = options.data.read_bytes()
    if not text.isascii():
        raise Mistake(f"--data {options.data} is not all ASCII: its bytes, which ours reads, are not its characters")
    both = {
        "device": options.device,
        "dropout": dropout,
        "size": size | {"vocab_size": len(set(text))},
        "batch_size": batch_size,
        "data": str(options.data.resolve()),
    }
    jobs = {
        "glassgpt": {"function": "train_by_recipe", "steps": our_steps, "train_options": options.train_options},
        "nanogpt": {"function": "learn_characters", "steps": their_steps, "checkout": options.nanogpt},
    }
    jobs = {name: both | jobs[name] for name in contenders(nanogpt=options.nanogpt)}
    results = take_turns(jobs, options.rounds)
    target = max(map(lowest_loss, results.get("nanogpt", results["glassgpt"])))
    reaching = {name: [reached(turn, target) for turn in turns] for name, turns in results.items()}
    return compare(f"training to {target:.3f} nats, {options.data.stem}", reaching)


def reached(result: Row, target: float) -> Row:
    """With the lowest loss, and the first evaluation at which it is `target` or less; None if there is none."""
    first = next((point for point in result["curve"] if point["loss"] <= target), {})
    return {
        "seconds": first.get("seconds"),
        "steps_to_target": first.get("step"),
        "target": target,
        "lowest_loss": lowest_loss(result),
        **result,
    }


def lowest_loss(result: Row) -> float:
    return min(point["loss"] for point in result["curve"])


def contenders(**able: Any) -> list[str]:
    """Ours, and the peers that can take part; a sentence on standard error names each that cannot."""
    for name in able:
        if not able[name]:
            print(f"{name} is left out: {REASONS[name]}", file=sys.stderr)
    return ["glassgpt", *(name for name in able if able[name])]


def run(job: Job) -> Row:
    """What a new process measures; Mistake if it ends with status 2, for a mistake, RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [sys.executable, "-c", CONTENDER, json.dumps({**job, "folder": folder})],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = process.stdout.strip().splitlines() or ["it wrote nothing"]
        if process.returncode == 2:
            raise Mistake(lines[-1])
        if process.returncode:
            print(*lines[-30:], sep="\n", file=sys.stderr)
            raise RuntimeError(f"it ended with exit status {process.returncode}: {lines[-1]}")
        return json.loads(Path(folder, "result.json").read_text())


def take_turns(jobs: Mapping[str, Job], rounds: int) -> dict[str, list[Row]]:
    """Runs every contender once, then every contender again, so that a slow spell of the machine meets all of them.

    A peer that fails is left out with a sentence; RuntimeError if ours fails, as nothing could be compared.
    """
    results: dict[str, list[Row]] = {name: [] for name in jobs}
    for seed in range(rounds):
        for name in list(results):
            print(f"round {seed + 1}/{rounds}  {name}", file=sys.stderr, flush=True)
            try:
                results[name].append(run({**jobs[name], "contender": name, "seed": seed}))
            except RuntimeError as error:
                if name == "glassgpt":
                    raise
                print(f"{name} is left out: {error}", file=sys.stderr)
                del results[name]
    return results


def compare(work: str, results: Mapping[str, list[Row]], same: Collection[str] = ()) -> list[Row]:
    """A row for each contender of `work`: the first round's result, with the median time over the rounds.

    `times_faster` is the median over the rounds of its time divided by ours, since the contenders of one round met
    the same state of the machine. A time of None means that the contender did not reach its goal. RuntimeError if the
    contenders do not agree in the keys `same`.
    """
    for key in same:
        amounts = {name: rounds[0][key] for name, rounds in results.items()}
        if len(set(amounts.values())) > 1:
            amounts = ", ".join(f"{name} {amount}" for name, amount in amounts.items())
            raise RuntimeError(f"the contenders differ in {key}, so their times cannot be compared: {amounts}")
    unit = "seconds" if "seconds" in results["glassgpt"][0] else "milliseconds_per_step"
    times = {name: [result[unit] for result in rounds] for name, rounds in results.items()}
    rows = []
    for name, own in times.items():
        pairs = zip(own, times["glassgpt"], strict=True)
        ratios = [None if None in pair else pair[0] / pair[1] for pair in pairs]
        row = {
            "work": work,
            "contender": name,
            **results[name][0],
            unit: median(own),
            f"{unit}_of_rounds": own,
            "times_faster": median(ratios),
        }
        rows.append(row)
    return rows


def median(values: Collection[float | None]) -> float | None:
    return None if None in values else statistics.median(values)


def commit() -> str | None:
    """The commit that is checked out, with "+changes" if files differ from it; None outside of a repository."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return None
    git = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    return subprocess.run(git, cwd=ROOT, capture_output=True, text=True).stdout.strip() or None


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the contender that is running is ended too
    sys.exit(main())
