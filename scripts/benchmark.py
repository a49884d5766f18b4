"""Measures GlassGPT beside its peers on this machine.

Each contender runs in a process of its own, in turn, over several rounds; one that fails is left out. Prints a table,
and as the last line the same and more as JSON. Times are wall-clock time: close everything else that computes.

The peers are not part of this project: git clone https://github.com/karpathy/nanoGPT, pip install transformers.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if not __package__:  # run as a file, Python looks for modules beside it and not in the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from model.runs.mistakes import exit_status
from scripts.parser import Parser, at_least

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "lightning", "transformers", "llama_cpp_python", "numpy")
# Layers, heads, width, sequences in a batch, context, vocabulary: those of nanoGPT's README for a CPU and of its
# configs; on a CPU in smaller batches, and GPT-2's vocabulary as a multiple of 64.
SMALL = (4, 4, 128, 12, 64, 65)
SIZES = {
    "cpu": [SMALL, (6, 6, 384, 16, 256, 65)],
    "cuda": [(6, 6, 384, 64, 256, 65), (12, 12, 768, 32, 1024, 50304)],
}
SECONDS = 5.0  # of training in each round, at least
WRITER, PROMPT_TOKENS, NEW_TOKENS, TEXTS = (6, 6, 384, 1024, 65), 16, 128, (1, 16)  # TEXTS: written at once
# Size, our steps, the peer's steps and dropout: those of nanoGPT's README for a CPU, of its config for a GPU.
LEARNING = {"cpu": (SMALL, 260, 2000, 0.0), "cuda": ((6, 6, 384, 64, 256, 65), 1000, 5000, 0.2)}
EVALUATIONS = 20  # of each training, evenly spaced

Row = dict[str, Any]
Command = Callable[[int, Path], list[str]]  # (seed, folder) -> arguments of Python, which leave `result.json` there


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
        add("--nanogpt", type=Path, metavar="PATH", help="checkout of nanoGPT (default: it does not take part)")
        add("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu; see CUDA_VISIBLE_DEVICES")
        turns = f"turns of each contender (default: {rounds})"
        add("--rounds", type=at_least(1), default=rounds, metavar="N", help=turns)
        if function is train:
            add("--compile", action="store_true", help="measure each network compiled too, a minute more a size")
        if function is time_to_loss:
            usual = Path("tinyshakespeare.txt")
            add("--data", type=Path, default=usual, metavar="FILE", help=f"ASCII text (default: {usual})")
            add("train_options", nargs="*", metavar="-- OPTION", help="for our train.py, paths from the repository")
    options = parser.parse_args(argv)
    try:
        print(measure(options))
    except RuntimeError as error:
        print(f"benchmark.py: {error}", file=sys.stderr)
        return 1


def measure(options: argparse.Namespace) -> str:
    """Runs one benchmark; returns what to print, of which the last line is JSON."""
    if options.device == "cuda":
        import torch  # only here, as it takes seconds

        if not torch.cuda.is_available():
            raise ValueError("--device cuda: PyTorch finds no GPU here; leave it out to measure on the processor")
    if options.nanogpt and not (options.nanogpt / "model.py").is_file():
        raise FileNotFoundError(f"--nanogpt {options.nanogpt} is not a checkout of nanoGPT: it has no model.py")
    options.nanogpt = options.nanogpt and str(options.nanogpt.resolve())
    notes: list[str] = []
    rows = options.function(options, notes)
    machine = [row.pop("machine") for row in rows][-1]
    typed = {name: value for name, value in vars(options).items() if name not in ("benchmark", "function", "nanogpt")}
    record = {
        "benchmark": options.benchmark,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(ROOT),
        "machine": machine,
        "versions": {name: version(name) for name in PACKAGES if find_spec(name.removesuffix("_python"))}
        | {"nanogpt": options.nanogpt and commit(Path(options.nanogpt))},
        "options": typed,
        "rows": rows,
        "notes": notes,
    }
    heading = f"{machine['device']}, {machine['threads']} threads:"
    return "\n\n".join([heading, table(rows), *notes, json.dumps(record, default=str)])


def train(options: argparse.Namespace, notes: list[str]) -> list[Row]:
    """Time of a training step: our GPT in GPT-2's architecture against nanoGPT, each in a bare loop.

    3 minutes on 2 CPU cores.
    """
    names = ["glassgpt", *taking_part({"nanogpt": options.nanogpt}, notes)]
    names += [f"{name}+compile" for name in names if options.compile]
    rows = []
    for layers, heads, width, batch_size, context, vocab_size in SIZES[options.device]:
        size = gpt_size(layers, heads, width, context, vocab_size)
        commands = {}
        for name in names:
            work = {"contender": name, "size": size, "batch_size": batch_size, "seconds": SECONDS, "dropout": 0.0}
            commands[name] = call("measure_step", options, **work)
        results = alternate(commands, options.rounds, notes)
        work = f"training step, {layers}x{width}, batches of {batch_size}x{context}"
        rows += compare(work, results, same=("parameters", "tokens"))
    return rows


def generate(options: argparse.Namespace, notes: list[str]) -> list[Row]:
    """Time to write 128 tokens after 16: ours, nanoGPT, GPT-2 of `transformers` with its cache, and llama.cpp.

    All have the same architecture and size, 6 layers of width 384, and random weights. nanoGPT has no cache. llama.cpp
    takes part with one text at a time on a processor, in float32 and with weights in 8 bits. 4 minutes on 2 CPU cores.
    """
    has_llama = find_spec("llama_cpp") and find_spec("gguf") and options.device == "cpu"
    able = {"nanogpt": options.nanogpt, "transformers": find_spec("transformers"), "llama.cpp": has_llama}
    peers, rows = taking_part(able, notes), []
    layers, _, width, *_ = WRITER
    for texts in TEXTS:
        names = ["glassgpt", *(name for name in peers if name != "llama.cpp")]
        if texts == 1 and "llama.cpp" in peers:
            names += ["llama.cpp", "llama.cpp+q8_0"]
        commands = {}
        for name in names:
            work = {"contender": name, "size": gpt_size(*WRITER), "batch_size": texts, "prompt_tokens": PROMPT_TOKENS}
            dtype = "float32" if options.device == "cpu" else "bfloat16"
            commands[name] = call("measure_writing", options, **work, new_tokens=NEW_TOKENS, dtype=dtype)
        results = alternate(commands, options.rounds, notes)
        work = f"writing {texts} x {NEW_TOKENS} tokens, {layers}x{width}"
        rows += compare(work, results, same=("parameters", "tokens"))
    return rows


def time_to_loss(options: argparse.Namespace, notes: list[str]) -> list[Row]:
    """Time to a validation loss on the characters of a text: configs/shakespeare_char.yaml against a peer.

    The peer is nanoGPT with its published settings; without --nanogpt our network in GPT-2's architecture, trained
    with the same settings. The target is the peer's lowest loss, of the seed in which that is highest. The clock stops
    for evaluation, and the first three steps, in which PyTorch may compile, count as long as the later ones. A round
    takes 3 minutes on 2 CPU cores; to publish a figure take --rounds 3.
    """
    (layers, heads, width, batch_size, context, _), our_steps, peer_steps, dropout = LEARNING[options.device]
    text = options.data.resolve()
    size = gpt_size(layers, heads, width, context, count_characters(text))
    peer = "gpt2+adamw" if not options.nanogpt else "nanogpt" if options.device == "cpu" else "nanogpt+compile"
    taking_part({"nanogpt": options.nanogpt}, notes)

    ours = {f"model.gpt.{name}": value for name, value in size.items() if name != "vocab_size"}
    ours |= {"data.files": text, "data.batch_size": batch_size, "trainer.max_steps": our_steps, "trainer.devices": 1}
    ours |= {"trainer.accelerator": "cpu" if options.device == "cpu" else "gpu", "wandb": "disabled"}
    ours |= {"trainer.val_check_interval": 10**9, "trainer.limit_val_batches": 1}  # validation is the benchmark's

    def train_py(seed: int, folder: Path) -> list[str]:
        of_round = {"seed_everything": seed, "trainer.default_root_dir": folder}
        typed = [f"--{name}={value}" for name, value in {**ours, **of_round}.items()]
        arguments = {"output": str(folder), "evaluations": EVALUATIONS}
        callback = {"class_path": "scripts.benchmarks.measuring.LearningCurve", "init_args": arguments}
        callbacks = f"--trainer.callbacks={json.dumps([callback])}"
        config = "--config=configs/shakespeare_char.yaml"
        return ["train.py", config, *typed, *options.train_options, callbacks]

    work = {"contender": peer, "size": size, "batch_size": batch_size, "dropout": dropout, "data": str(text)}
    work |= {"steps": peer_steps, "evaluations": EVALUATIONS}
    commands = {"glassgpt": train_py, peer: call("learn_characters", options, **work)}
    results = alternate(commands, options.rounds, notes)
    if peer not in results:
        raise RuntimeError("without a peer there is no loss to reach: " + "; ".join(notes))
    target = max(min(point["loss"] for point in turn["curve"]) for turn in results[peer])
    reaching = {name: [{**turn, **reached(turn, target)} for turn in turns] for name, turns in results.items()}
    return compare(f"training to {target:.3f} nats, {text.stem}", reaching, same=("validation_tokens",))


def gpt_size(layers: int, heads: int, width: int, context: int, vocab_size: int) -> dict[str, int]:
    """Fields of GPTConfig."""
    size = {"num_layers": layers, "num_heads": heads, "embed_dim": width}
    return {**size, "context_length": context, "vocab_size": vocab_size}


def taking_part(able: Mapping[str, Any], notes: list[str]) -> list[str]:
    """The peers that can take part; `notes` gets a sentence for each that cannot."""
    reasons = {
        "nanogpt": "set --nanogpt to a checkout of it",
        "transformers": "pip install transformers",
        "llama.cpp": "pip install gguf llama-cpp-python, and measure on a processor",
    }
    notes.extend(f"{name} is left out: {reasons[name]}" for name in able if not able[name])
    return [name for name in able if able[name]]


def reached(result: Row, target: float) -> Row:
    """The lowest loss, and the first evaluation at which it is `target` or less; None if there is none."""
    lowest, targets = min(point["loss"] for point in result["curve"]), result["curve"][0]["targets"]
    first = next((point for point in result["curve"] if point["loss"] <= target), {})
    time = {"seconds": first.get("seconds"), "steps_to_target": first.get("step")}
    loss = {"lowest_loss": lowest, "bits_per_byte": lowest * targets / math.log(2) / result["validation_bytes"]}
    return {"target": target, "validation_tokens": targets, **loss, **time}


def count_characters(path: Path) -> int:
    """The number of different characters; ValueError or OSError if the text cannot be used."""
    content = path.read_bytes()
    if not content.isascii():
        raise ValueError(f"--data {path} is not all ASCII: its bytes, which ours reads, are not its characters")
    if len(content) < 1000:
        raise ValueError(f"--data {path} has {len(content)} characters: at least 1000 are needed")
    return len(set(content))


def call(function: str, options: argparse.Namespace, **work: Any) -> Command:
    """The command that calls a `function` of gpt2.py with a namespace of `work` and the round's `seed`."""
    work |= {"device": options.device, "checkout": options.nanogpt}
    module = ["-m", "scripts.benchmarks.gpt2", function]
    return lambda seed, folder: [*module, json.dumps({**work, "seed": seed}), str(folder)]


def run(command: Command, seed: int = 0) -> Row:
    """What a new process measures; ValueError if it ends with status 2, for a mistake, RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, *command(seed, Path(folder))]
        process = subprocess.run(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        result, lines = Path(folder, "result.json"), process.stdout.strip().splitlines()
        status, last = process.returncode, lines[-1] if lines else "it wrote nothing"
        if status == 2 and lines:
            raise ValueError(last)
        if status or not result.exists():
            print(*lines[-30:], sep="\n", file=sys.stderr)
            how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            raise RuntimeError(f"it ended with {how}: {last}")
        return json.loads(result.read_text())


def alternate(commands: Mapping[str, Command], rounds: int, notes: list[str]) -> dict[str, list[Row]]:
    """Runs every contender once, then every contender again, so that a slow spell of the machine meets all of them.

    A peer that fails is left out, and `notes` says why; RuntimeError if ours fails, as nothing could be compared.
    """
    results: dict[str, list[Row]] = {name: [] for name in commands}
    for seed in range(rounds):
        for name in list(results):
            print(f"round {seed + 1}/{rounds}  {name}", file=sys.stderr, flush=True)
            try:
                results[name].append(run(commands[name], seed))
            except RuntimeError as error:
                if name == "glassgpt":
                    raise
                notes.append(f"{name} is left out: {error}")
                del results[name]
    return results


def compare(work: str, results: Mapping[str, list[Row]], same: Sequence[str] = ()) -> list[Row]:
    """A row for each contender of `work`: fractions are medians over the rounds, the rest is the first's.

    `times_faster` is the median over the rounds of its time divided by ours, since the contenders of one round met
    the same state of the machine. Of several contenders that are ours the fastest counts. A time of None means that
    the contender did not reach its goal. RuntimeError if the rows do not agree in the keys `same`.
    """
    time = "seconds" if "seconds" in next(iter(results.values()))[0] else "milliseconds_per_step"
    ours = [rounds for name, rounds in results.items() if name.startswith("glassgpt")]
    fastest, rows = min(ours, key=lambda rounds: median(rounds, time) or math.inf), []
    for name, rounds in results.items():
        pairs = [(result[time], our[time]) for result, our in zip(rounds, fastest, strict=True)]
        row = {"work": work, "contender": name, **{key: median(rounds, key) for key in rounds[0]}}
        row[f"{time}_of_rounds"] = [result for result, _ in pairs]
        if "tokens" in row:
            row["tokens_per_second"] = row["tokens"] / row[time] * (1 if time == "seconds" else 1000)
        is_complete = all(None not in pair for pair in pairs)
        row["times_faster"] = statistics.median(theirs / our for theirs, our in pairs) if is_complete else None
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


def table(rows: Sequence[Row]) -> str:
    """The rows for a person, a line each; a dash stands for a loss that was not reached."""
    lines = []
    for row in rows:
        unit = "s " if "seconds" in row else "ms"
        figures = (row.get("seconds", row.get("milliseconds_per_step")), row["times_faster"])
        time, ratio = ("-" if figure is None else f"{figure:,.2f}" for figure in figures)
        lines.append(f"{row['work']:44} {row['contender']:16} {time:>10} {unit} {ratio:>7} times ours")
    return "\n".join(lines)


def commit(folder: Path) -> str | None:
    """The commit that is checked out, with "+changes" if files differ from it; None if `folder` is not a repository."""
    if shutil.which("git") is None or not Path(folder, ".git").exists():
        return None
    git = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip() or None


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the contender that is running is ended too
    sys.exit(main())
