"""Measures GlassGPT beside its peers on this machine.

Each contender runs in a process of its own, in turn, over several rounds. Prints a table, and as the last line the same
and more as JSON, which is also appended to a file. Times are wall-clock time: close everything else that computes.

The peers are not part of this project: git clone https://github.com/karpathy/nanoGPT, pip install transformers.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if not __package__:  # run as a file, Python looks for modules beside it and not in the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from model.runs.mistakes import exit_status
from scripts.benchmarks import contenders, results
from scripts.benchmarks.contenders import WARM_UP, Row, alternate, call, compare, fit, parse_size, present
from scripts.parser import Parser, at_least

RESULTS = Path("runs/benchmarks.jsonl")
PACKAGES = ("torch", "lightning", "transformers", "numpy")

# "reduce-overhead" compiles with CUDA graphs.
TRAINED = ["glassgpt", "glassgpt+compile", "glassgpt+reduce-overhead", "nanogpt", "nanogpt+compile"]
TRAINED_BY_DEFAULT = {"cpu": "glassgpt nanogpt", "cuda": "glassgpt glassgpt+reduce-overhead nanogpt nanogpt+compile"}
# Those of nanoGPT's README and configs; on a CPU in smaller batches, GPT-2 with its vocabulary made a multiple of 64.
SIZES = {"cpu": "4x4x128/12x64/65 6x6x384/16x256/65", "cuda": "6x6x384/64x256/65 12x12x768/32x1024/50304"}

LLAMA_WORKS = (1, "cpu", "float32")  # texts at once, device, precision
WRITERS = ["glassgpt", "nanogpt", "transformers", "llama.cpp", "llama.cpp+q8_0"]
VOCABULARY, PROMPT_TOKENS = 65, 16

LEARNERS = ["glassgpt", "gpt2+adamw", "nanogpt", "nanogpt+compile"]
# Size, our steps, the peer's steps, nanoGPT's dropout: those of nanoGPT's README for a CPU, of its config for a GPU.
LEARNING = {"cpu": ("4x4x128/12x64", 260, 2000, 0.0), "cuda": ("6x6x384/64x256", 1000, 5000, 0.2)}

NO_VALIDATION = ("--trainer.val_check_interval=1000000000", "--trainer.limit_val_batches=1")
BARE = ("--attention.enabled=false", "--samples.max_new_tokens=0", "--trainer.accumulate_grad_batches=1")
BARE += ("--trainer.max_steps=1000000000", *NO_VALIDATION)


@exit_status("benchmark.py")
def main(argv: list[str] | None = None) -> int | None:
    """Runs the command line; returns the exit status: 0, 1 if a contender fails, 2 for a mistake, 130 for Ctrl-C."""
    options = build_parser().parse_args(argv)
    try:
        print(results.markdown(options.results) if options.benchmark == "table" else measure(options))
    except RuntimeError as error:
        print(f"benchmark.py: {error}", file=sys.stderr)
        return 1


def build_parser() -> argparse.ArgumentParser:
    """The options; each help text names the unit and the default."""
    parser = Parser(prog="benchmark.py", description=__doc__)
    subparsers = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK", parser_class=Parser)
    number, seconds, steps = at_least(1), at_least(0, float), at_least(WARM_UP + 1)
    by_device = "{cpu}; on a GPU {cuda}".format

    kept, where = Parser(add_help=False), f"where JSON is kept (default: {RESULTS})"
    kept.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help=where)

    def benchmark(function: Callable, rounds: int, names: Sequence = (), usual: str = "", config: str = "") -> Callable:
        """Adds a function of this file, with `names` as its contenders; returns what adds one more option."""
        text = inspect.getdoc(function)
        options = {"help": text.splitlines()[0], "description": text, "parents": [kept]}
        subparser = subparsers.add_parser(function.__name__, **options)
        subparser.set_defaults(rows_of=function)
        add = subparser.add_argument
        add("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu; see CUDA_VISIBLE_DEVICES")
        add("--nanogpt", metavar="PATH", help="checkout of nanoGPT (default: it does not take part)")
        add("--rounds", type=number, default=rounds, metavar="N", help=f"turns of each contender (default: {rounds})")
        if names:
            listed = f"of {', '.join(names)} (default: {usual})"
            add("--contenders", nargs="+", choices=names, metavar="NAME", help=listed)
        if config:
            add("--config", default=config, metavar="YAML", help=f"what is trained (default: {config})")
            add("train_options", nargs="*", metavar="-- OPTION", help="for train.py, paths from the repository")
        return add

    add = benchmark(train, 3, TRAINED, by_device(**TRAINED_BY_DEFAULT))
    sizes = f"LAYERSxHEADSxWIDTH/BATCHxCONTEXT/VOCABULARY (default: {by_device(**SIZES)})"
    add("--sizes", nargs="+", metavar="SIZE", help=sizes)
    add("--seconds", type=seconds, default=5.0, help="of training in each round, at least (default: 5)")

    add = benchmark(generate, 3, WRITERS, "all")
    add("--batches", nargs="+", type=number, default=[1, 16], metavar="N", help="texts at once (default: 1 16)")
    add("--new_tokens", nargs="+", type=number, default=[128], metavar="N", help="length in tokens (default: 128)")
    add("--model", default="6x6x384", metavar="LAYERSxHEADSxWIDTH", help="(default: 6x6x384)")
    add("--context", type=number, default=1024, help="of the models, for prompt and text (default: 1024)")
    add("--dtype", choices=("float32", "bfloat16"), help="of weights and cache (default: float32; on a GPU bfloat16)")

    add = benchmark(time_to_loss, 1, LEARNERS, "glassgpt and a peer", config="configs/shakespeare_char.yaml")
    add("--data", metavar="FILE", help="ASCII text, read by characters; its last tenth validates")
    add("--size", help="LAYERSxHEADSxWIDTH/BATCHxCONTEXT (default: with --data nanoGPT's, otherwise the config's)")
    add("--steps", type=steps, help="of our whole schedule (default: 260; on a GPU 1000)")
    add("--peer_steps", type=steps, help="of the peer's (default: nanoGPT's, 2000; on a GPU 5000)")
    add("--peer_learning_rate", type=at_least(0.000001, float), help="of gpt2+adamw (default: nanoGPT's, 0.001)")
    add("--evaluations", type=number, default=20, help="in each training, evenly spaced (default: 20)")
    add("--target", type=at_least(0.001, float), metavar="NATS", help="loss per token (default: the peer's lowest)")

    add = benchmark(overhead, 1, config="configs/default.yaml")
    add("--seconds", type=seconds, default=45.0, help="of stretches in each round (default: 45)")
    add("--stretch", type=number, default=10, help="steps in a stretch (default: 10)")
    add("--steps", type=number, default=60, help="of the training that records maps (default: 60)")

    subparsers.add_parser("table", parents=[kept], help=results.__doc__, description=results.__doc__)
    return parser


def measure(options: argparse.Namespace) -> str:
    """Runs one benchmark and appends its record to the file of results; returns what to print."""
    if options.device == "cuda":
        import torch  # only here, as it takes seconds

        if not torch.cuda.is_available():
            raise ValueError("--device cuda: PyTorch finds no GPU here; leave it out to measure on the processor")
    if options.nanogpt and not Path(options.nanogpt, "model.py").is_file():
        raise FileNotFoundError(f"--nanogpt {options.nanogpt} is not a checkout of nanoGPT: it has no model.py")
    options.nanogpt = options.nanogpt and str(Path(options.nanogpt).resolve())
    notes: list[str] = []
    rows = list(options.rows_of(options, notes))
    if options.nanogpt and not any("nanogpt" in row["contender"] for row in rows):
        notes.append("--nanogpt changes nothing here: nanoGPT takes no part")
    machine = [row.pop("machine") for row in rows][-1]
    versions = {name: version(name) for name in PACKAGES if find_spec(name)}
    versions["nanogpt"] = options.nanogpt and results.commit(Path(options.nanogpt))
    hidden = ("benchmark", "results", "nanogpt", "rows_of")
    record = {
        "benchmark": options.benchmark,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": results.commit(contenders.ROOT),
        "machine": machine,
        "versions": versions,
        "options": {name: value for name, value in vars(options).items() if name not in hidden},
        "rows": rows,
        "notes": notes,
    }
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with options.results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    heading = f"{machine['device']}, {machine['threads']} threads:"
    return "\n\n".join([heading, results.table(rows), *notes, json.dumps(record)])


def train(options: argparse.Namespace, notes: list[str]) -> Iterator[Row]:
    """Time of a training step: our GPT in GPT-2's architecture against nanoGPT, each in a bare loop.

    With the defaults 3 minutes on 2 CPU cores. A compiled contender takes a minute more for each size.
    """
    names = present(options.contenders or TRAINED_BY_DEFAULT[options.device].split(), options.nanogpt, notes)
    works = {text: parse_size(text) for text in options.sizes or SIZES[options.device].split()}
    for text, (batch_size, size) in works.items():
        work = {"batch_size": batch_size, "size": size, "seconds": options.seconds, "dropout": 0.0}
        yield from compete(f"training step, {text}", "measure_step", names, options, **work)


def generate(options: argparse.Namespace, notes: list[str]) -> Iterator[Row]:
    """Time to write text after 16 tokens: ours, nanoGPT, GPT-2 of `transformers` with its cache, and llama.cpp.

    All have the same architecture and size, and random weights. With the defaults 4 minutes on 2 CPU cores. nanoGPT
    has no cache: 16 texts of 1000 tokens take it half an hour. llama.cpp takes part with one text at a time, on a
    processor, in float32 and with weights in 8 bits.
    """
    longest = PROMPT_TOKENS + max(options.new_tokens)
    if longest > options.context:
        raise ValueError(f"--context {options.context} is too short for the {longest} tokens of prompt and text")
    dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
    names = present(options.contenders or WRITERS, options.nanogpt, notes)
    for batch, new_tokens in itertools.product(options.batches, options.new_tokens):
        _, size = parse_size(f"{options.model}/{batch}x{options.context}/{VOCABULARY}")
        work = f"writing {batch} x {new_tokens} tokens, {options.model}"
        able = [name for name in names if "llama" not in name or (batch, options.device, dtype) == LLAMA_WORKS]
        if not able:
            raise ValueError("llama.cpp writes one text at a time, on a processor, in float32: name other contenders")
        job = {"batch_size": batch, "size": size, "dtype": dtype, "new_tokens": new_tokens}
        yield from compete(work, "measure_writing", able, options, prompt_tokens=PROMPT_TOKENS, **job)


def compete(work: str, function: str, names: list[str], options: argparse.Namespace, **arguments: Any) -> list[Row]:
    """The rows of contenders that call `function`; they must do it with equally large networks."""
    where = {"device": options.device, "checkout": options.nanogpt, **arguments}
    results = alternate({name: call(function, contender=name, **where) for name in names}, options.rounds)
    return compare(work, results, same=("parameters", "tokens"))


def time_to_loss(options: argparse.Namespace, notes: list[str]) -> Iterator[Row]:
    """Time to a validation loss: `python train.py` with one of our recipes against a peer on the same text.

    With --data the peer is nanoGPT with its published settings, and the text is read by characters. Otherwise it is
    the same config with GPT-2's architecture and AdamW (gpt2+adamw). The target is the peer's lowest loss, of the seed
    in which that is highest. The clock stops for evaluation, and the first three steps, in which PyTorch may compile,
    count as long as the later ones. A round takes 3 minutes on 2 CPU cores; to publish a figure take --rounds 3.
    """
    nanogpt = "nanogpt+compile" if options.device == "cuda" else "nanogpt"
    names = options.contenders or ["glassgpt", nanogpt if options.data else "gpt2+adamw"]
    names = present(names, options.nanogpt, notes)
    peers = [name for name in names if name != "glassgpt"]
    if not peers and options.target is None:
        raise ValueError("; ".join(["without a peer there is no loss to reach: set --target", *notes]))
    if not options.data and any(name.startswith("nanogpt") for name in names):
        raise ValueError("nanogpt reads a text by characters: name it with --data")
    for option, peer in {"peer_steps": peers, "peer_learning_rate": "gpt2+adamw" in names}.items():
        if getattr(options, option) is not None and not peer:
            raise ValueError(f"--{option} is for a peer that takes no part: leave it out")
    shape, our_steps, peer_steps, dropout = LEARNING[options.device]
    path = Path(options.data or "").resolve()
    batch_size, size = parse_size(f"{options.size or shape}/{count_characters(path) if options.data else 1}")
    recipe = list(NO_VALIDATION)
    if options.data:
        recipe += [f"--data.files={path}", "--data.tokenizer=bytes", "--data.vocab_size=null"]
    if options.size or options.data:
        recipe += [f"--model.gpt.{name}={value}" for name, value in size.items() if name != "vocab_size"]
        recipe += [f"--data.batch_size={batch_size}"]
    commands = {}
    for name in names:
        steps = (options.steps or our_steps) if name == "glassgpt" else (options.peer_steps or peer_steps)
        evaluations = min(options.evaluations, steps // (WARM_UP + 1))
        if name.startswith("nanogpt"):
            work = {"batch_size": batch_size, "size": size, "data": str(path), "steps": steps, "dropout": dropout}
            where = {"device": options.device, "checkout": options.nanogpt, "evaluations": evaluations}
            commands[name] = call("learn_characters", contender=name, **work, **where)
        else:
            typed = [*recipe, *options.train_options, f"--trainer.max_steps={steps}"]
            if name == "gpt2+adamw":  # after what was typed for both, or it would no longer be this peer
                typed += [f"--config={contenders.GPT2_RECIPE}"]
                if options.peer_learning_rate:
                    typed += [f"--model.optimizer.learning_rate={options.peer_learning_rate}"]
            commands[name] = fit("LearningCurve", options.config, options.device, typed, evaluations=evaluations)
    results = alternate(commands, options.rounds)
    target = options.target or max(min(point["loss"] for point in turn["curve"]) for turn in results[peers[0]])
    reaching = {name: [{**turn, **reached(turn, target)} for turn in turns] for name, turns in results.items()}
    work = f"training to {target:.3f} nats, {Path(options.config).stem}"
    yield from compare(work, reaching, same=("validation_tokens",))


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


def overhead(options: argparse.Namespace, notes: list[str]) -> Iterator[Row]:
    """What the Trainer costs beside a bare loop, and what recording attention costs.

    Stretches of the Trainer and of a bare loop alternate in one process, on the same model, optimizer and data, without
    maps, samples and validation. The recording is timed in a whole `python train.py`: "with maps" is all of its time,
    "without maps" the same less the seconds inside the recorder. With the defaults 3 minutes on 2 CPU cores.
    """
    recorded = (f"--trainer.max_steps={options.steps}", "--attention.enabled=true")
    measured = {
        "training step": ("BesideBareLoop", BARE, {"stretch": options.stretch, "seconds": options.seconds}),
        f"{options.steps} steps": ("RecordingClock", recorded, {}),
    }
    for work, (callback, last, arguments) in measured.items():
        typed = [*options.train_options, *last]
        commands = {work: fit(callback, options.config, options.device, typed, **arguments)}
        turns = alternate(commands, options.rounds)[work]
        results = {name: [row for turn in turns for row in turn[name]] for name in turns[0]}
        yield from compare(f"{work}, {Path(options.config).stem}", results)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the contender that is running is ended too
    sys.exit(main())
